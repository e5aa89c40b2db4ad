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
#include "text/tokenizer.h"

namespace deepinfer::protocols {

inline constexpr uint64_t kMaxCompletionSamples = 8;
inline constexpr size_t kMaxCompletionPrompts = 1024;
inline constexpr uint64_t kMaxCompletionLogprobs = 20;

// Text, or token ids when `text` is unset.
struct CompletionPrompt {
  std::optional<std::string> text;
  std::vector<int32_t> ids;
};

struct CompletionRequest {
  std::string model;
  std::vector<CompletionPrompt> prompts;  // at least one; each gives params.n choices
  std::optional<std::string> suffix;      // fill in the middle: the prompt is what stands before the hole
  SamplingParams params;
  bool has_max_tokens = false;  // else params.max_tokens is the default, 16
  std::optional<int> logprobs;  // number of best tokens to report beside each chosen one
  bool echo = false;            // the choices begin with the prompt
  bool stream = false;
  bool include_usage = false;   // usage key on every chunk

  // Engine extensions.
  std::string cache_salt;
  std::optional<CacheMode> cache_mode;
};

Result<CompletionRequest> ConvertCompletionRequest(const Json& body, const ConvertOptions& options);

// The ids of a prompt: text is tokenized with all added tokens and begins with BOS; ids are checked and taken as they are; with
// a suffix both stand in the model's fill-in-the-middle form.
Result<std::vector<int32_t>> CompletionPromptIds(const CompletionPrompt& prompt,
                                                 const std::optional<std::string>& suffix,
                                                 const text::Tokenizer& tokenizer);

}  // namespace deepinfer::protocols
