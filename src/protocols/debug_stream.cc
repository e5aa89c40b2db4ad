// SPDX-License-Identifier: Apache-2.0
#include "protocols/debug_stream.h"

#include <ctime>
#include <random>

#include <fmt/format.h>

#include "protocols/chat_response.h"
#include "protocols/debug_render.h"

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

class ChatDebugStream : public DebugStream {
 public:
  ChatDebugStream(const ConvertedRequest& request,
                  ChatResponseInfo info,
                  const text::Tokenizer& tokenizer,
                  const DebugStreamOptions& options,
                  uint64_t id_seed)
      : tokenizer_(tokenizer), options_(options), stream_(request.parsing, &tokenizer, id_seed), encoder_(info), builder_(info) {}

  std::vector<Json> Start() override {
    std::vector<Json> lines;
    AddLine(encoder_.First(), lines);
    return lines;
  }

  Result<std::vector<Json>> Push(const Json& line) override {
    std::vector<Json> lines;
    if (stream_.is_stopped()) return lines;
    DI_ASSIGN_OR_RETURN(const Piece piece, ParsePiece(line, tokenizer_));
    std::vector<OutputEvent> events;
    if (piece.is_text) {
      stream_.PushText(piece.text, piece.num_tokens, events);
    } else {
      stream_.PushTokens(piece.ids, piece.logprobs, events);
    }
    AddEvents(events, lines);
    if (stream_.is_stopped()) AddLast(lines);
    return lines;
  }

  std::vector<Json> Finish() override {
    std::vector<Json> lines;
    if (!stream_.is_stopped()) {
      std::vector<OutputEvent> events;
      stream_.Finish(events);
      AddEvents(events, lines);
      AddLast(lines);
    }
    if (options_.accumulate) {
      lines.push_back(builder_.Finish(stream_.ReasonFor(options_.finish), Usage()));
    } else {
      AddLine("[DONE]", lines);
    }
    return lines;
  }

 private:
  TokenUsage Usage() const {
    TokenUsage usage;
    usage.prompt_tokens = options_.prompt_tokens.value_or(0);
    usage.cached_tokens = options_.cached_tokens;
    usage.completion_tokens = stream_.num_tokens();
    usage.reasoning_tokens = stream_.num_reasoning_tokens();
    return usage;
  }

  void AddEvents(std::vector<OutputEvent>& events, std::vector<Json>& lines) {
    for (OutputEvent& event : events) {
      if (options_.normalize && !event.tool_id.empty()) event.tool_id = fmt::format("call_{:02}_X", event.tool_idx);
      if (options_.accumulate) {
        builder_.Add(event);
      } else if (std::optional<Json> chunk = encoder_.Chunk(event)) {
        AddLine(*std::move(chunk), lines);
      }
    }
  }

  void AddLast(std::vector<Json>& lines) { AddLine(encoder_.Last(stream_.ReasonFor(options_.finish), Usage()), lines); }

  void AddLine(Json data, std::vector<Json>& lines) const {
    if (options_.accumulate) return;
    Json line = Json::object();
    line["event"] = nullptr;
    line["data"] = std::move(data);
    lines.push_back(std::move(line));
  }

  const text::Tokenizer& tokenizer_;
  const DebugStreamOptions options_;
  OutputStream stream_;
  ChatStreamEncoder encoder_;
  ChatResponseBuilder builder_;
};

}  // namespace

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
  const uint64_t seed = options.normalize ? 0 : std::random_device{}();
  ChatResponseInfo info = MakeChatResponseInfo(request,
                                               options.normalize ? "ID" : fmt::format("chatcmpl-{:08x}", seed),
                                               options.normalize ? 0 : static_cast<int64_t>(std::time(nullptr)));
  if (options.normalize) info.model = "MODEL";
  info.system_fingerprint = options.system_fingerprint;
  return std::unique_ptr<DebugStream>(
      std::make_unique<ChatDebugStream>(request, std::move(info), tokenizer, filled, seed));
}

}  // namespace deepinfer::protocols
