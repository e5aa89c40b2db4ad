// SPDX-License-Identifier: Apache-2.0
#include "sampling/params.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string_view>

#include <fmt/format.h>

#include "core/escape.h"
#include "core/utf8.h"

namespace deepinfer::sampling {
namespace {

constexpr int64_t kMaxInt32 = std::numeric_limits<int32_t>::max();

Status Bad(std::string_view field, std::string message) {
  return InvalidArgument(fmt::format("{} {}", field, message), std::string(field));
}

// Numbers as people write them: 1.5, -2, nan, inf.
Status CheckRange(std::string_view field, double value, double low, double high) {
  if (!(value >= low && value <= high)) {
    return Bad(field, fmt::format("is {} but must be in [{}, {}]", value, low, high));
  }
  return Status::Ok();
}

Status CheckId(std::string_view field, int64_t id, int vocab_size) {
  if (id < 0 || (vocab_size > 0 && id >= vocab_size)) {
    return Bad(field,
               vocab_size > 0 ? fmt::format("holds {} but token ids are 0..{}", id, vocab_size - 1)
                              : fmt::format("holds {} but token ids are not negative", id));
  }
  return Status::Ok();
}

}  // namespace

Status ValidateSamplingParams(const SamplingParams& p, int vocab_size) {
  if (!std::isfinite(p.temperature) || p.temperature < 0) {
    return Bad("temperature", fmt::format("is {} but must be finite and at least 0", p.temperature));
  }
  if (!(p.top_p > 0 && p.top_p <= 1)) return Bad("top_p", fmt::format("is {} but must be in (0, 1]", p.top_p));
  if (p.top_k < -1 || p.top_k == 0 || p.top_k > kMaxInt32) {
    return Bad("top_k", fmt::format("is {} but must be -1 (off) or in [1, {}]", p.top_k, kMaxInt32));
  }
  DI_RETURN_IF_ERROR(CheckRange("min_p", p.min_p, 0, 1));
  const int64_t max_tokens = p.max_tokens == 0 ? 1 : p.max_tokens;
  if (max_tokens < 1 || max_tokens > kMaxInt32) {
    return Bad("max_tokens", fmt::format("is {} but must be in [1, {}]", p.max_tokens, kMaxInt32));
  }
  if (p.min_tokens < 0 || p.min_tokens > max_tokens) {
    return Bad("min_tokens", fmt::format("is {} but must be in [0, max_tokens = {}]", p.min_tokens, max_tokens));
  }
  if (p.top_logprobs < 0 || p.top_logprobs > 1000) {
    return Bad("top_logprobs", fmt::format("is {} but must be in [0, 1000]", p.top_logprobs));
  }
  DI_RETURN_IF_ERROR(CheckRange("presence_penalty", p.presence_penalty, -2, 2));
  DI_RETURN_IF_ERROR(CheckRange("frequency_penalty", p.frequency_penalty, -2, 2));
  if (!std::isfinite(p.repetition_penalty) || p.repetition_penalty <= 0) {
    return Bad("repetition_penalty", fmt::format("is {} but must be finite and above 0", p.repetition_penalty));
  }
  for (const auto& [id, bias] : p.logit_bias) {
    DI_RETURN_IF_ERROR(CheckId("logit_bias", id, vocab_size));
    if (std::isnan(bias)) return Bad("logit_bias", fmt::format("of token {} is nan but must be a number", id));
  }
  if (p.allowed_token_ids) {
    if (p.allowed_token_ids->empty()) return Bad("allowed_token_ids", "is empty but must name at least one token");
    for (const int32_t id : *p.allowed_token_ids) DI_RETURN_IF_ERROR(CheckId("allowed_token_ids", id, vocab_size));
  }
  for (const int32_t id : p.stop_token_ids) DI_RETURN_IF_ERROR(CheckId("stop_token_ids", id, vocab_size));
  for (const int32_t id : p.golden_token_ids) {
    if (id != -1) DI_RETURN_IF_ERROR(CheckId("golden_token_ids", id, vocab_size));
  }
  if (!p.cache_mode.empty() && p.cache_mode != "replay" && p.cache_mode != "exact" && p.cache_mode != "off") {
    return Bad("cache_mode", fmt::format("is \"{}\" but must be replay, exact or off", Escape(p.cache_mode)));
  }
  if (p.stop.size() > 16) return Bad("stop", fmt::format("has {} strings but at most 16 are allowed", p.stop.size()));
  for (size_t i = 0; i < p.stop.size(); ++i) {
    if (p.stop[i].empty()) return Bad("stop", fmt::format("has an empty string at index {}; leave it out", i));
    if (!IsValidUtf8(p.stop[i])) return Bad("stop", fmt::format("string {} is not valid UTF-8", i));
  }
  if (!p.stop.empty() && !p.detokenize) return Bad("stop", "needs detokenize to be true");
  if (p.n < 1 || p.n > 16384) return Bad("n", fmt::format("is {} but must be in [1, 16384]", p.n));
  if (p.n > 1 && p.is_greedy()) {
    return Bad("n", fmt::format("must be 1 when using greedy sampling, got {}", p.n));
  }
  if (p.max_output_bytes && *p.max_output_bytes <= 0) {
    return Bad("max_output_bytes", fmt::format("is {} but must be above 0", *p.max_output_bytes));
  }
  if (p.timeout_s && !(*p.timeout_s > 0)) {
    return Bad("timeout_s", fmt::format("is {} but must be above 0", *p.timeout_s));
  }
  return Status::Ok();
}

SamplingParams Normalized(SamplingParams p) {
  p.max_tokens = std::max<int64_t>(p.max_tokens, 1);
  if (p.is_greedy()) {
    p.temperature = 0;  // the pipeline computes with kSamplingEps
    p.top_p = 1;
    p.top_k = -1;
    p.min_p = 0;
  }
  for (auto& [id, bias] : p.logit_bias) bias = std::clamp(bias, -100.0, 100.0);
  return p;
}

}  // namespace deepinfer::sampling
