// SPDX-License-Identifier: Apache-2.0
#include "protocols/inference_options.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include <fmt/format.h>

#include "core/json.h"
#include "protocols/json_reader.h"

namespace deepinfer::protocols {

namespace {

constexpr int64_t kDefaultMaxTokens = 8192;
constexpr int64_t kDefaultMaxTokensThinking = 65536;
constexpr int64_t kDefaultMaxTokensMaxEffort = 131072;
constexpr int kHighEffort = 75;  // efforts above it have the default of `max`
constexpr double kMinTopPThinking = 0.95;
constexpr size_t kMaxStopStrings = 16;

Status OutOfRange(std::string_view field, std::string_view range) {
  return InvalidArgument(fmt::format("Invalid {0} value, the valid range of {0} is {1}", field, range), std::string(field));
}

// NaN is outside every range.
bool IsWithin(const std::optional<double>& value, double low, double high) {
  return !value || (*value >= low && *value <= high);
}

}  // namespace

std::string_view ConstraintKindName(ConstraintKind kind) {
  switch (kind) {
    case ConstraintKind::kToolCall: return "tool_call";
    case ConstraintKind::kToolCallRequired: return "tool_call_required";
    case ConstraintKind::kJson: return "json";
    case ConstraintKind::kRegex: return "regex";
  }
  return "";
}

ClientSampling ReadClientSampling(JsonReader& reader, SamplingPolicy policy) {
  ClientSampling out;
  out.frequency_penalty = reader.Number("frequency_penalty");
  out.presence_penalty = reader.Number("presence_penalty");
  if (policy != SamplingPolicy::kClient) return out;
  if (const Json* top_k = reader.Find("top_k")) {
    // -1 and 0 mean no limit; an integer without sign is stored as unsigned.
    if (top_k->is_number_unsigned() && top_k->get<uint64_t>() <= uint64_t{INT32_MAX}) {
      out.top_k = top_k->get<int64_t>();
    } else if (top_k->is_number_integer() && !top_k->is_number_unsigned() && top_k->get<int64_t>() == -1) {
      out.top_k = 0;
    } else {
      reader.Fail("top_k", "expected an integer from -1 to 2147483647");
    }
  }
  out.min_p = reader.Number("min_p");
  out.repetition_penalty = reader.Number("repetition_penalty");
  if (const Json* bias = reader.Object("logit_bias")) {
    for (const auto& [key, value] : bias->items()) {
      int32_t id = 0;
      const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), id);
      if (error != std::errc() || end != key.data() + key.size() || id < 0) {
        reader.Fail("logit_bias", fmt::format("key \"{}\" is not a token id", key));
        break;
      }
      if (!value.is_number()) {
        reader.Fail("logit_bias", fmt::format("value of \"{}\" is not a number", key));
        break;
      }
      out.logit_bias.emplace_back(id, value.get<double>());
    }
  }
  return out;
}

Status ApplySampling(const SamplingFields& fields,
                     bool thinking,
                     bool clamp_max_tokens,
                     const ConvertOptions& options,
                     InferenceOptions& out) {
  if (!IsWithin(fields.temperature, 0.0, 2.0)) return OutOfRange("temperature", "[0, 2]");
  if (!IsWithin(fields.top_p, 0.0, 1.0) || fields.top_p == 0.0) return OutOfRange("top_p", "(0, 1.0]");
  if (fields.max_tokens) {
    const uint64_t limit = static_cast<uint64_t>(options.max_output_tokens);
    uint64_t value = *fields.max_tokens;
    if (clamp_max_tokens) value = std::min(value, limit);
    if (value < 1 || value > limit) return OutOfRange("max_tokens", fmt::format("[1, {}]", limit));
    out.max_tokens = static_cast<int64_t>(value);
  }
  if (!IsWithin(fields.client.frequency_penalty, -2.0, 2.0)) return OutOfRange("frequency_penalty", "[-2, 2]");
  if (!IsWithin(fields.client.presence_penalty, -2.0, 2.0)) return OutOfRange("presence_penalty", "[-2, 2]");
  if (fields.seed && *fields.seed >= uint64_t{1} << 63) return OutOfRange("seed", "[0, 2^63)");
  out.seed = fields.seed;

  if (options.sampling_policy == SamplingPolicy::kClient) {
    if (!IsWithin(fields.client.min_p, 0.0, 1.0)) return OutOfRange("min_p", "[0, 1]");
    if (fields.client.repetition_penalty && !(*fields.client.repetition_penalty > 0.0 && *fields.client.repetition_penalty <= 2.0)) {
      return OutOfRange("repetition_penalty", "(0, 2]");
    }
    for (const auto& [id, value] : fields.client.logit_bias) {
      if (!IsWithin(value, -100.0, 100.0)) return OutOfRange("logit_bias", "[-100, 100]");
    }
    out.temperature = fields.temperature.value_or(1.0);
    out.top_p = fields.top_p.value_or(1.0);
    out.client = fields.client;
    return Status::Ok();
  }
  // The vendor's policy: thinking ignores the temperature and bounds top_p from below, the other mode ignores top_p.
  out.temperature = thinking ? 1.0 : fields.temperature.value_or(1.0);
  out.top_p = thinking && fields.top_p ? std::max(*fields.top_p, kMinTopPThinking) : 1.0;
  return Status::Ok();
}

Status CheckStopStrings(
    const std::vector<std::string>& stops, bool is_list, std::string_view field, const ConvertOptions& options) {
  if (stops.size() > kMaxStopStrings) {
    return InvalidArgument(fmt::format("Stop string array too long: {}", stops.size()), std::string(field));
  }
  for (size_t i = 0; i < stops.size(); ++i) {
    const std::string place = is_list ? fmt::format("{}[{}]", field, i) : std::string(field);
    if (stops[i].empty()) {
      return InvalidArgument(fmt::format("Invalid '{}': empty string. Expected a string with minimum length 1, but got an "
                                         "empty string instead.",
                                         place),
                             place);
    }
    if (stops[i].size() > options.max_stop_bytes) {
      return InvalidArgument(fmt::format("Invalid '{}': string too long. Expected a string of at most {} bytes, but got {} "
                                         "bytes instead.",
                                         place,
                                         options.max_stop_bytes,
                                         stops[i].size()),
                             place);
    }
  }
  return Status::Ok();
}

Result<int64_t> ResolveMaxTokens(
    const InferenceOptions& inference, bool thinking, int effort, int64_t num_prompt_tokens, int64_t context_limit) {
  const int64_t asked = inference.max_tokens.value_or(0);
  // Compared without adding, so that no count can overflow.
  if (num_prompt_tokens > context_limit || asked > context_limit - num_prompt_tokens) {
    return InvalidArgument(
        fmt::format("This model's maximum context length is {} tokens. However, you requested {} tokens ({} in the messages, "
                    "{} in the completion). Please reduce the length of the messages or completion.",
                    context_limit,
                    num_prompt_tokens + asked,
                    num_prompt_tokens,
                    asked));
  }
  if (inference.max_tokens) return asked;
  const int64_t mode_default = !thinking             ? kDefaultMaxTokens
                               : effort > kHighEffort ? kDefaultMaxTokensMaxEffort
                                                      : kDefaultMaxTokensThinking;
  return std::max<int64_t>(1, std::min(mode_default, context_limit - num_prompt_tokens));
}

}  // namespace deepinfer::protocols
