// SPDX-License-Identifier: Apache-2.0
#include "protocols/completion_request.h"

#include <algorithm>
#include <charconv>

#include <fmt/format.h>

#include "constrain/structured_output.h"
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

void ReadPrompt(JsonReader& reader, CompletionRequest& request) {
  const Json* prompt = reader.Find("prompt");
  if (prompt == nullptr) return reader.Fail("", "missing field `prompt`");
  // A list of one prompt is that prompt.
  if (prompt->is_array() && prompt->size() == 1 && ((*prompt)[0].is_string() || (*prompt)[0].is_array())) prompt = &(*prompt)[0];
  if (prompt->is_string()) {
    request.prompt = prompt->get<std::string>();
  } else if (!ReadIds(*prompt, request.prompt_ids)) {
    reader.Fail("prompt", "expected a string or a list of token ids (one prompt a request)");
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
  const bool echo = reader.Bool("echo").value_or(false);
  const bool has_suffix = reader.String("suffix").has_value();
  if (!reader.ok()) return reader.status();
  DI_RETURN_IF_ERROR(CheckModelName(request.model, options));
  if (echo || has_suffix) {
    return Unimplemented(fmt::format("{} is not in this version; leave it out", echo ? "echo" : "suffix"));
  }
  if (request.prompt ? request.prompt->empty() : request.prompt_ids.empty()) return InvalidArgument("Empty prompt", "prompt");
  if (params.n < 1) return InvalidArgument(fmt::format("Invalid n value, the valid range of n is [1, {}]", kMaxCompletionSamples), "n");
  return request;
}

}  // namespace deepinfer::protocols
