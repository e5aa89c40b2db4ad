// SPDX-License-Identifier: Apache-2.0
//
// What a generation returns: one TokenOutput per output token while it runs, one Completion at its end.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace deepinfer {

enum class FinishReason {
  kNone,                 // still running
  kStop,                 // end token, stop token or stop string
  kLength,               // max_tokens or the context length
  kAbort,                // cancelled by the caller
  kTimeout,              // timeout_s
  kPromptLengthExceeded, // the prompt does not fit; nothing ran
  kInvalidToken,         // a prompt id outside the vocabulary; nothing ran
  kInvalidLogits,        // the model gave NaN or infinite logits
  kInsufficientResource, // taken off the device for lack of cache memory and not resumed
  kInternalError,        // the step that computed it failed
  kStructuredOutputFailed,  // so_args could not be compiled or held; the last output token is id 0 and means nothing
};

// "", "stop", "length", "abort", "timeout", "prompt_length_exceeded", "invalid_token", "error: invalid logits",
// "insufficient_system_resource", "error: internal", "xgrammar runtime errors or timeout".
std::string_view FinishReasonName(FinishReason reason);

// Log probabilities are natural logarithms, floored at this value.
inline constexpr float kLogprobFloor = -9999.0f;

enum class LogprobsMode {
  kProcessed,  // of the distribution that was sampled from (after temperature, top-p, top-k, penalties)
  kRaw,        // log-softmax of the model's logits
};

struct TokenOutput {
  int32_t token_id = -1;  // -1: no token (a request that ended without running)
  float logprob = 1.0f;   // > 0: invalid
  float sum_smaller_probs = -1.0f;  // probability of the less likely tokens and this one; -1: not asked for
  std::vector<int32_t> top_token_ids;  // best first
  std::vector<float> top_logprobs;
  int64_t num_output_tokens = 0;  // 1-based index of this token in the output
};

struct Completion;

// What the streaming callback receives, once per output token and once more for text that was held back at the end.
struct StreamUpdate {
  const TokenOutput* token = nullptr;  // null in the last update if it carries text only
  std::string_view text;               // new text; whole UTF-8 characters; may be empty
  FinishReason finish_reason = FinishReason::kNone;  // set in the last update of a request
  const Completion* completion = nullptr;  // the sample so far, this token included; null if nothing ran
};

enum class StreamAction {
  kContinue,
  kStop,   // end the request with finish reason "stop" (the caller recognised its own stop condition)
  kAbort,  // end it with "abort"
};

using StreamCallback = std::function<StreamAction(const StreamUpdate&)>;

// Cancels a running generation from another thread or from a signal handler (a lock-free store). A subclass may poll
// something else; it is asked before every step from the thread that generates.
class CancelToken {
 public:
  virtual ~CancelToken() = default;
  void Cancel() { is_cancelled_.store(true, std::memory_order_relaxed); }
  void Reset() { is_cancelled_.store(false, std::memory_order_relaxed); }
  virtual bool is_cancelled() const { return is_cancelled_.load(std::memory_order_relaxed); }

 private:
  std::atomic<bool> is_cancelled_{false};
  static_assert(std::atomic<bool>::is_always_lock_free);
};

struct Usage {
  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;  // prompt tokens found in the prefix cache
  int64_t completion_tokens = 0;
};

struct Timing {
  double load_s = 0;        // of the engine, the same for all its requests
  double ttft_s = 0;        // from the call to the first token
  double total_s = 0;
  double tokens_per_s = 0;  // output tokens after the first one per second; 0 with fewer than two
  double prefill_tokens_per_s = 0;
};

struct Speculation {
  int64_t steps = 0;    // decode steps, the first token included
  double emitted_per_step = 0;
};

struct Completion {
  std::vector<int32_t> prompt_ids;
  std::vector<int32_t> ids;  // the end token included
  std::string text;
  FinishReason finish_reason = FinishReason::kNone;
  std::optional<int32_t> stop_token_id;    // the stop or end token that ended the request
  std::optional<std::string> stop_string;  // the stop string that did
  std::vector<TokenOutput> tokens;         // one per id
  std::vector<float> prompt_logprobs;      // prompt length - 1 values if asked for
  Usage usage;
  Timing timing;
  Speculation speculation;
  uint64_t seed = 0;  // the seed that was used (meaningless for greedy requests)
};

}  // namespace deepinfer
