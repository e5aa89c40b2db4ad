// SPDX-License-Identifier: Apache-2.0
#include "protocols/completion_request.h"

#include <algorithm>
#include <charconv>

#include <fmt/format.h>

#include "constrain/structured_output.h"
#include "protocols/inference_options.h"
#include "protocols/json_reader.h"
#include "protocols/request_extensions.h"

namespace deepinfer::protocols {

namespace {

constexpr uint64_t kMaxCount = INT32_MAX;

bool IsTokenId(const Json& value) {
  return value.is_number_unsigned() ? value.get<uint64_t>() <= kMaxCount : value.is_number_integer() && value.get<int64_t>() >= 0;
}

// False if the value is no list of token ids.
bool ReadIds(const Json& value, std::vector<int32_t>& ids) {
  if (!value.is_array()) return false;
  for (const Json& id : value) {
    if (!IsTokenId(id)) return false;
    ids.push_back(static_cast<int32_t>(id.get<int64_t>()));
  }
  return true;
}

// A string, a list of ids, or a list of either.
void ReadPrompt(JsonReader& reader, CompletionRequest& request) {
  const Json* prompt = reader.Find("prompt");
  if (prompt == nullptr) return reader.Fail("", "missing field `prompt`");
  const auto add = [&](const Json& json) {
    CompletionPrompt& added = request.prompts.emplace_back();
    if (json.is_string()) {
      added.text = json.get<std::string>();
    } else if (!ReadIds(json, added.ids)) {
      reader.Fail("prompt", "expected a string, a list of token ids, or a list of either");
    }
  };
  if (!prompt->is_array() || prompt->empty() || prompt->front().is_number()) return add(*prompt);
  for (const Json& item : *prompt) {
    add(item);
    if (!reader.ok()) return;
  }
}

void ReadStop(JsonReader& reader, SamplingParams& params) {
  const Json* stop = reader.Find("stop");
  if (stop == nullptr) return;
  if (stop->is_string()) {
    params.stop = {stop->get<std::string>()};
    return;
  }
  const bool is_list = stop->is_array() && std::all_of(stop->begin(), stop->end(), [](const Json& text) { return text.is_string(); });
  if (!is_list) return reader.Fail("stop", "expected a string or a list of strings");
  for (const Json& text : *stop) params.stop.push_back(text.get<std::string>());
}

void ReadBias(JsonReader& reader, SamplingParams& params) {
  const Json* bias = reader.Object("logit_bias");
  if (bias == nullptr) return;
  for (const auto& [key, value] : bias->items()) {
    int32_t id = 0;
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), id);
    if (error != std::errc() || end != key.data() + key.size() || !value.is_number()) {
      return reader.Fail("logit_bias", "expected token ids and numbers");
    }
    params.logit_bias[id] = value.get<double>();
  }
}

template <typename T>
void Assign(const std::optional<T>& value, T& field) {
  if (value) field = *value;
}

void AssignCount(JsonReader& reader, std::string_view key, uint64_t max, int64_t& field) {
  if (const auto value = reader.Unsigned(key, max)) field = static_cast<int64_t>(*value);
}

}  // namespace

Result<CompletionRequest> ConvertCompletionRequest(const Json& body, const ConvertOptions& options) {
  JsonReader reader(body, "");
  if (!reader.ok()) return DeserializeError("", "expected a JSON object");
  CompletionRequest request;
  SamplingParams& params = request.params;
  request.model = reader.RequiredString("model");
  ReadPrompt(reader, request);
  if (const auto max_tokens = reader.Unsigned("max_tokens", kMaxCount)) {
    params.max_tokens = static_cast<int64_t>(*max_tokens);
    request.has_max_tokens = true;
  }
  AssignCount(reader, "min_tokens", kMaxCount, params.min_tokens);
  Assign(reader.Number("temperature"), params.temperature);
  Assign(reader.Number("top_p"), params.top_p);
  Assign(reader.Number("min_p"), params.min_p);
  Assign(reader.Number("presence_penalty"), params.presence_penalty);
  Assign(reader.Number("frequency_penalty"), params.frequency_penalty);
  Assign(reader.Number("repetition_penalty"), params.repetition_penalty);
  if (const Json* top_k = reader.Find("top_k")) {
    if (top_k->is_number_integer() && top_k->get<double>() >= -1 && top_k->get<double>() <= static_cast<double>(kMaxCount)) {
      params.top_k = top_k->get<int64_t>();
    } else {
      reader.Fail("top_k", "expected an integer from -1 to 2147483647");
    }
  }
  if (const auto seed = reader.Unsigned("seed", UINT64_MAX)) params.seq_seed = *seed;
  int64_t n = 1;
  AssignCount(reader, "n", kMaxCompletionSamples, n);
  params.n = static_cast<int>(n);
  Assign(reader.Bool("ignore_eos"), params.ignore_eos);
  Assign(reader.Bool("include_stop_str_in_output"), params.include_stop_str_in_output);
  Assign(reader.Bool("skip_special_tokens"), params.skip_special_tokens);
  ReadStop(reader, params);
  if (const Json* ids = reader.Find("stop_token_ids")) {
    if (!ReadIds(*ids, params.stop_token_ids)) reader.Fail("stop_token_ids", "expected a list of token ids");
  }
  ReadBias(reader, params);
  if (const auto logprobs = reader.Unsigned("logprobs", kMaxCompletionLogprobs)) {
    request.logprobs = static_cast<int>(*logprobs);
    params.top_logprobs = *request.logprobs;
  }
  std::optional<int> priority;
  ReadExtensions(reader, request.cache_salt, request.cache_mode, priority);
  Assign(priority, params.priority);
  if (const Json* so_args = reader.Find("so_args")) {
    if (Result<constrain::GrammarSpec> spec = constrain::ParseSoArgs(*so_args); spec.ok()) {
      params.so_args = constrain::StructuredOutputOf(*spec);
    } else {
      reader.Fail("so_args", spec.status().message());
    }
  }
  request.echo = reader.Bool("echo").value_or(false);
  request.suffix = reader.String("suffix");
  if (request.suffix && request.suffix->empty()) request.suffix.reset();
  request.stream = reader.Bool("stream").value_or(false);
  if (const Json* stream_options = reader.Object("stream_options")) {
    JsonReader inner(*stream_options, "stream_options");
    request.include_usage = inner.Bool("include_usage").value_or(false);
    reader.Absorb(inner.status());
  }
  if (!reader.ok()) return reader.status();
  DI_RETURN_IF_ERROR(CheckModelName(request.model, options));
  if (request.prompts.size() > kMaxCompletionPrompts) {
    return InvalidArgument(fmt::format("Too many prompts: {}, the limit is {}", request.prompts.size(), kMaxCompletionPrompts), "prompt");
  }
  for (const CompletionPrompt& prompt : request.prompts) {
    const bool is_empty = prompt.text ? prompt.text->empty() : prompt.ids.empty();
    if (is_empty && !request.suffix) return InvalidArgument("Empty prompt", "prompt");
  }
  const auto stop = body.find("stop");
  DI_RETURN_IF_ERROR(CheckStopStrings(params.stop, stop != body.end() && stop->is_array(), "stop", options));
  if (request.include_usage && !request.stream) {
    return InvalidArgument("stream_options should be set along with stream = true", "stream_options");
  }
  params.prompt_logprobs = request.echo && request.logprobs.has_value();
  if (params.n < 1) return InvalidArgument(fmt::format("Invalid n value, the valid range of n is [1, {}]", kMaxCompletionSamples), "n");
  return request;
}

Result<std::vector<int32_t>> CompletionPromptIds(const CompletionPrompt& prompt,
                                                 const std::optional<std::string>& suffix,
                                                 const text::Tokenizer& tokenizer) {
  for (const int32_t id : prompt.ids) {
    if (id >= tokenizer.vocab_size()) {
      return InvalidArgument(fmt::format("prompt: {} is no token id; the model has {}", id, tokenizer.vocab_size()), "prompt");
    }
  }
  std::vector<int32_t> ids = prompt.text ? tokenizer.EncodeFull(*prompt.text) : prompt.ids;
  const int bos = tokenizer.FindAddedToken(text::PromptTokens().bos);
  if (!suffix) {
    const bool has_bos = !ids.empty() && ids.front() == bos;
    if (prompt.text && bos >= 0 && !has_bos) ids.insert(ids.begin(), bos);
    return ids;
  }
  const int begin = tokenizer.FindAddedToken("<｜fim▁begin｜>");
  const int hole = tokenizer.FindAddedToken("<｜fim▁hole｜>");
  const int end = tokenizer.FindAddedToken("<｜fim▁end｜>");
  if (bos < 0 || begin < 0 || hole < 0 || end < 0) {
    return InvalidArgument("suffix: the model's tokenizer has no fill-in-the-middle tokens; leave it out", "suffix");
  }
  std::vector<int32_t> out = {bos, begin};
  const size_t skip = !ids.empty() && ids.front() == bos ? 1 : 0;
  out.insert(out.end(), ids.begin() + static_cast<std::ptrdiff_t>(skip), ids.end());
  out.push_back(hole);
  const std::vector<int32_t> suffix_ids = tokenizer.EncodeFull(*suffix);
  out.insert(out.end(), suffix_ids.begin(), suffix_ids.end());
  out.push_back(end);
  return out;
}

}  // namespace deepinfer::protocols
