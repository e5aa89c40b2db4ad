// SPDX-License-Identifier: Apache-2.0
//
// Generator: prompt ids in, tokens and text out. Runs chunked prefill and the decode loop, samples, detokenises, looks for
// stop tokens and stop strings, and reports usage and timing. One request at a time; every call starts a fresh sequence.
// Not thread-safe: one thread calls Generate; CancelToken may be used from any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/clock.h"
#include "core/status.h"
#include "deepinfer/output.h"
#include "deepinfer/sampling_params.h"
#include "engine/step_runner.h"
#include "sampling/sampler.h"
#include "text/tokenizer.h"

namespace deepinfer::engine {

struct GeneratorOptions {
  // At most. Smaller chunks are run where that lets a request be cancelled soon; the results do not depend on it.
  int64_t prefill_chunk_tokens = 2048;
  LogprobsMode logprobs_mode = LogprobsMode::kProcessed;
  bool compute_sum_smaller_probs = false;
  // Tokens that are never generated, whatever a request says.
  std::vector<int32_t> token_blacklist;
  double load_s = 0;  // copied into every Timing
  const Clock* clock = &Clock::Steady();
};

struct GenerateRequest {
  std::vector<int32_t> prompt_ids;
  SamplingParams params;
  // Only the added tokens that belong to an answer can be sampled (token_policy.h). On for chat, off for raw text.
  bool apply_token_policy = false;
  // The end or stop token that finishes the request leaves no text. Its id is always reported.
  bool hide_stop_token = false;
};

// Fields of Status that Validate and Generate report for prompts.
inline constexpr const char* kPromptField = "prompt";              // empty
inline constexpr const char* kPromptTokensField = "prompt_token_ids";  // an id outside the vocabulary
inline constexpr const char* kPromptLengthField = "prompt_length";  // longer than the context

// The checks of a request that need no model. `longest_model_len`: what max_model_len can be raised to, for the message.
// Errors: kInvalidArgument (empty prompt, bad id, bad parameter; the field is named), kResourceExhausted (prompt longer than
// the context).
Status ValidateRequest(const GenerateRequest& request, int vocab_size, int64_t max_model_len, int64_t longest_model_len);

// What a valid request runs with: normalized, and without prompt log probabilities where there are no logits for them, which
// a warning says once.
SamplingParams EffectiveParams(SamplingParams params, bool has_prompt_logits);

class Generator {
 public:
  // `runner` and `tokenizer` outlive the generator. `eos_token_id` (of the configuration) counts if the tokenizer has no
  // end-of-sentence token.
  Generator(StepRunner& runner, const text::Tokenizer& tokenizer, int eos_token_id, GeneratorOptions options = {});
  ~Generator();

  // Checks a request without running it: see ValidateRequest.
  Status Validate(const GenerateRequest& request) const;

  // Runs one request. `callback` (optional) is called from this thread for every token. A cancelled request is no error:
  // it returns what was generated, with FinishReason::kAbort. params.n is ignored: one call is one sample.
  Result<Completion> Generate(const GenerateRequest& request,
                              const StreamCallback& callback = {},
                              const CancelToken* cancel = nullptr);

  // Text as a user typed it: added tokens spelled in it are matched, unless told otherwise.
  std::vector<int32_t> EncodeText(std::string_view text, bool match_added_tokens = true) const;

  int eos_token_id() const { return eos_token_id_; }
  const text::Tokenizer& tokenizer() const { return tokenizer_; }
  int64_t max_model_len() const { return runner_.max_model_len(); }
  int vocab_size() const { return runner_.vocab_size(); }
  const GeneratorOptions& options() const { return options_; }

 private:
  class Run;  // one request

  void PaceChunks(int64_t num_tokens, double elapsed_s);

  StepRunner& runner_;
  const text::Tokenizer& tokenizer_;
  int eos_token_id_;
  int eot_token_id_;  // -1: the vocabulary has none
  GeneratorOptions options_;
  sampling::Sampler sampler_;
  std::vector<uint32_t> policy_mask_;
  std::vector<uint32_t> blacklist_mask_;  // empty without a blacklist
  int64_t paced_chunk_tokens_;            // see PaceChunks
};

}  // namespace deepinfer::engine
