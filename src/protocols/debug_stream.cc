// SPDX-License-Identifier: Apache-2.0
#include "protocols/debug_stream.h"

#include <algorithm>
#include <ctime>
#include <random>

#include <fmt/format.h>

#include "protocols/convert_request.h"

namespace deepinfer::protocols {

namespace {

// One piece of model output.
struct Piece {
  bool is_text = true;
  std::string text;
  int64_t num_tokens = 1;
  std::vector<int32_t> ids;
  std::vector<SampledLogprob> logprobs;
};

Result<SampledLogprob> ParseLogprob(const Json& json) {
  const Status fault = InvalidArgument("logprobs: expected [logprob, [[id, logprob], ...]] for each id", "logprobs");
  if (!json.is_array() || json.size() != 2 || !json[0].is_number() || !json[1].is_array()) return fault;
  SampledLogprob out;
  out.logprob = json[0].get<double>();
  for (const Json& pair : json[1]) {
    if (!pair.is_array() || pair.size() != 2 || !pair[0].is_number_integer() || !pair[1].is_number()) return fault;
    out.top.emplace_back(pair[0].get<int32_t>(), pair[1].get<double>());
  }
  return out;
}

Result<Piece> ParsePiece(const Json& line, const text::Tokenizer& tokenizer) {
  Piece piece;
  if (line.is_string()) {
    piece.text = line.get<std::string>();
    return piece;
  }
  const Status fault =
      InvalidArgument("a line must be a string, {\"text\", \"tokens\"?} or {\"ids\", \"logprobs\"?}");
  if (!line.is_object()) return fault;
  if (const auto text = line.find("text"); text != line.end()) {
    if (!text->is_string()) return fault;
    piece.text = text->get<std::string>();
    if (const auto tokens = line.find("tokens"); tokens != line.end()) {
      if (!tokens->is_number_integer() || tokens->get<double>() < 0 || tokens->get<double>() > INT32_MAX) {
        return InvalidArgument("tokens: expected a count");
      }
      piece.num_tokens = tokens->get<int64_t>();
    }
    return piece;
  }
  const auto ids = line.find("ids");
  if (ids == line.end() || !ids->is_array()) return fault;
  piece.is_text = false;
  for (const Json& id : *ids) {
    if (!id.is_number_integer() || id.get<double>() < 0 || id.get<double>() >= tokenizer.vocab_size()) {
      return InvalidArgument(fmt::format("ids: {} is no token id; the tokenizer has {}", DumpJson(id), tokenizer.vocab_size()));
    }
    piece.ids.push_back(id.get<int32_t>());
  }
  if (const auto logprobs = line.find("logprobs"); logprobs != line.end() && !logprobs->is_null()) {
    if (!logprobs->is_array() || logprobs->size() != piece.ids.size()) {
      return InvalidArgument("logprobs: expected one entry for each id");
    }
    for (const Json& entry : *logprobs) {
      DI_ASSIGN_OR_RETURN(SampledLogprob logprob, ParseLogprob(entry));
      piece.logprobs.push_back(std::move(logprob));
    }
  }
  return piece;
}

}  // namespace

std::vector<Json> ReadServerSentEvents(std::string_view bytes) {
  std::vector<Json> lines;
  while (!bytes.empty()) {
    const size_t end = std::min(bytes.find("\n\n"), bytes.size());
    std::string_view event = bytes.substr(0, end);
    bytes.remove_prefix(std::min(bytes.size(), end + 2));
    Json line = Json::object();
    line["event"] = nullptr;
    line["data"] = nullptr;
    while (!event.empty()) {
      const size_t line_end = std::min(event.find('\n'), event.size());
      const std::string_view field = event.substr(0, line_end);
      event.remove_prefix(std::min(event.size(), line_end + 1));
      if (field.starts_with("event: ")) {
        line["event"] = std::string(field.substr(7));
      } else if (field.starts_with("data: ")) {
        Result<Json> data = ParseJson(field.substr(6));
        line["data"] = data.ok() ? *std::move(data) : Json(std::string(field.substr(6)));
      }
    }
    lines.push_back(std::move(line));
  }
  return lines;
}

Result<EngineFinish> ParseEngineFinish(std::string_view name) {
  if (name == "stop") return EngineFinish::kStop;
  if (name == "length") return EngineFinish::kLength;
  if (name == "content_filter") return EngineFinish::kContentFilter;
  return InvalidArgument(fmt::format("unknown finish reason {}; use stop, length or content_filter", name), "finish");
}

Result<std::unique_ptr<DebugStream>> DebugStream::Create(Api api,
                                                         std::string_view request_body,
                                                         const text::Tokenizer& tokenizer,
                                                         ConvertOptions convert_options,
                                                         const DebugStreamOptions& options) {
  // Parsing needs no special tokens: a tokenizer without some of them is fine here.
  if (Result<text::PromptTokens> tokens = text::PromptTokens::FromTokenizer(tokenizer); tokens.ok()) {
    convert_options.tokens = *std::move(tokens);
  }
  DI_ASSIGN_OR_RETURN(const ConvertedRequest request, ConvertRequest(api, request_body, convert_options));
  DebugStreamOptions filled = options;
  if (!filled.prompt_tokens) {
    const auto ids = tokenizer.EncodePrompt(request.prompt.text, request.prompt.special_ranges);
    filled.prompt_tokens = ids.ok() ? static_cast<int64_t>(ids->size()) : 0;
  }
  std::random_device random;
  const auto bits = [&random] { return uint64_t{random()} << 32 | random(); };
  std::string id = options.normalize ? "ID" : MakeResponseId(api, bits(), bits());
  ResponseSetup setup = MakeResponseSetup(request, std::move(id), options.normalize ? 0 : static_cast<int64_t>(std::time(nullptr)));
  if (options.normalize) setup.model = "MODEL";
  setup.system_fingerprint = options.system_fingerprint;
  setup.is_stream = !options.accumulate;
  return std::unique_ptr<DebugStream>(new DebugStream(request, setup, tokenizer, filled, bits()));
}

DebugStream::DebugStream(const ConvertedRequest& request,
                         const ResponseSetup& setup,
                         const text::Tokenizer& tokenizer,
                         const DebugStreamOptions& options,
                         uint64_t id_seed)
    : tokenizer_(tokenizer), options_(options), stream_(request, &tokenizer, setup, id_seed) {
  if (options.normalize) stream_.UseFixedToolIds();
}

std::vector<Json> DebugStream::Start() {
  stream_.Start(options_.prompt_tokens.value_or(0), options_.cached_tokens, bytes_);
  return TakeLines();
}

Result<std::vector<Json>> DebugStream::Push(const Json& line) {
  if (stream_.is_stopped()) return std::vector<Json>();
  DI_ASSIGN_OR_RETURN(const Piece piece, ParsePiece(line, tokenizer_));
  if (piece.is_text) {
    stream_.PushText(piece.text, piece.num_tokens, bytes_);
  } else {
    stream_.PushTokens(piece.ids, piece.logprobs, bytes_);
  }
  if (stream_.is_stopped()) WriteEnd();
  return TakeLines();
}

std::vector<Json> DebugStream::Finish() {
  if (!has_ended_) WriteEnd();
  return TakeLines();
}

void DebugStream::WriteEnd() {
  has_ended_ = true;
  stream_.Finish(options_.finish, options_.normalize ? 0 : static_cast<int64_t>(std::time(nullptr)), bytes_);
}

std::vector<Json> DebugStream::TakeLines() {
  std::vector<Json> lines;
  if (!options_.accumulate) {
    lines = ReadServerSentEvents(bytes_);
  } else if (!bytes_.empty()) {
    Result<Json> response = ParseJson(bytes_);
    lines.push_back(response.ok() ? *std::move(response) : Json(bytes_));
  }
  bytes_.clear();
  return lines;
}

}  // namespace deepinfer::protocols
