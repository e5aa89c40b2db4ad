// SPDX-License-Identifier: Apache-2.0
//
// A Completions request (protocols.md 8): a raw prompt, text or token ids, and sampling parameters as the client gives them. The
// vendor's sampling policy is for conversations and does not apply. Ranges are checked by the engine.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/json.h"
#include "deepinfer/sampling_params.h"
#include "protocols/converted_request.h"

namespace deepinfer::protocols {

inline constexpr uint64_t kMaxCompletionSamples = 8;
inline constexpr uint64_t kMaxCompletionLogprobs = 20;

struct CompletionRequest {
  std::string model;
  std::optional<std::string> prompt;  // unset: prompt_ids
  std::vector<int32_t> prompt_ids;
  SamplingParams params;
  bool has_max_tokens = false;      // else params.max_tokens is the default, 16
  std::optional<int> logprobs;      // number of best tokens to report beside each chosen one

  // Engine extensions.
  std::string cache_salt;
  std::optional<CacheMode> cache_mode;
};

Result<CompletionRequest> ConvertCompletionRequest(const Json& body, const ConvertOptions& options);

}  // namespace deepinfer::protocols
