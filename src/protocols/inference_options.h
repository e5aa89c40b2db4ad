// SPDX-License-Identifier: Apache-2.0
//
// What a request asks of the engine besides the prompt, and the rules that fill it in (protocols.md 3.2, 3.5).
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/status.h"
#include "protocols/convert_options.h"

namespace deepinfer::protocols {

class JsonReader;

enum class ConstraintKind { kToolCall, kToolCallRequired, kJson, kRegex };
std::string_view ConstraintKindName(ConstraintKind kind);  // tool_call, tool_call_required, json, regex

struct Constraint {
  ConstraintKind kind = ConstraintKind::kJson;
  std::string schema;  // compact JSON of the tools or the schema, or the pattern; empty: any JSON object
  std::string grammar_schema = {};  // of strict requests: what is compiled instead, with the keywords that `schema` drops
  std::optional<std::string> response_schema = {};  // kToolCall: an answer without calls is held to it
};

// Honoured under SamplingPolicy::kClient only.
struct ClientSampling {
  std::optional<int64_t> top_k;
  std::optional<double> min_p;
  std::optional<double> repetition_penalty;
  std::optional<double> frequency_penalty;
  std::optional<double> presence_penalty;
  std::vector<std::pair<int32_t, double>> logit_bias;
};

struct InferenceOptions {
  std::optional<int64_t> max_tokens;  // see ResolveMaxTokens
  double temperature = 1.0;
  double top_p = 1.0;
  bool logprobs = false;
  std::optional<int> top_logprobs;
  std::optional<uint64_t> seed;
  std::optional<Constraint> constraint;
  ClientSampling client;
  bool parallel_tool_calls = true;  // false: the grammar allows one call
};

// The sampling fields as the client sent them; ranges not yet checked.
struct SamplingFields {
  std::optional<double> temperature;
  std::optional<double> top_p;
  std::optional<uint64_t> max_tokens;
  std::optional<uint64_t> seed;
  ClientSampling client;
};

// top_k, min_p, repetition_penalty, logit_bias, frequency_penalty, presence_penalty. The first four are read only under
// SamplingPolicy::kClient: other servers' clients may send anything there.
ClientSampling ReadClientSampling(JsonReader& reader, SamplingPolicy policy);

// Checks every range (max_tokens: 1..limit, or cut to the limit with `clamp_max_tokens`) and applies the policy.
Status ApplySampling(const SamplingFields& fields,
                     bool thinking,
                     bool clamp_max_tokens,
                     const ConvertOptions& options,
                     InferenceOptions& out);

// Status of `stop`: 16 non-empty strings at most. `field` is "stop" or "stop_sequences".
Status CheckStopStrings(const std::vector<std::string>& stops, bool is_list, std::string_view field, const ConvertOptions& options);

// The number of tokens to generate: the client's, or the default for its mode, within the context. `num_prompt_tokens` counts
// images as their expanded tokens.
Result<int64_t> ResolveMaxTokens(const InferenceOptions& inference,
                                 bool thinking,
                                 int effort,
                                 int64_t num_prompt_tokens,
                                 int64_t context_limit);

}  // namespace deepinfer::protocols
