// SPDX-License-Identifier: Apache-2.0
//
// Sampler: one row of float logits in, one token out. The steps and their order are those of the sampling pipeline of the
// specification (engine.md 14): masks and bias, penalties, temperature, min-p, joint top-p and top-k with fixed-point
// masses, renormalisation, then argmax, integer inverse CDF or exponential race. Every number that decides a token is
// computed in a fixed order with the project's own exp and log, so a seed gives the same tokens on every machine.
// All buffers are made once for a vocabulary size; Sample allocates only what a request asks for (top log probabilities).
// Not thread-safe: one Sampler per thread.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/status.h"
#include "deepinfer/output.h"
#include "deepinfer/sampling_params.h"
#include "sampling/draw.h"
#include "sampling/token_counts.h"

namespace deepinfer::sampling {

// How a random token is drawn. kRace is used by requests with an explicit seed and in deterministic mode: speculation with
// exact verification then gives the same tokens as none.
enum class DrawMode { kInverseCdf, kRace };

// Everything about one row that is not in SamplingParams.
struct RowContext {
  uint64_t seed = 0;
  int32_t position = 0;  // index the new token will have in its sequence
  DrawMode draw_mode = DrawMode::kInverseCdf;
  // One bit per id, bit clear = banned. Empty = all allowed; both apply.
  std::span<const uint32_t> allowed_mask;  // request and token policy
  std::span<const uint32_t> grammar_mask;  // structured output
  std::span<const int32_t> banned_ids;     // min_tokens and first-token bans of this row
  const TokenCounts* counts = nullptr;     // needed by penalties
  std::span<const int32_t> drafts_before;  // verification row j: drafts 1..j belong to the context
  int32_t forced_id = -1;                  // golden token of this position
  // Verification rows: the draft that stands here (-1: rejected whatever is drawn) and, for kInverseCdf, the log
  // probabilities [V] of the distribution that it was drawn from.
  bool verifies = false;
  int32_t draft_id = -1;
  std::span<const float> draft_logprobs;
  LogprobsMode logprobs_mode = LogprobsMode::kProcessed;
  bool compute_sum_smaller_probs = false;
  bool only_token = false;  // drafts: neither its log probability nor the top ones are wanted
};

struct SampledToken {
  int32_t id = -1;
  float logprob = 0;  // processed or raw as asked, floored at kLogprobFloor
  float sum_smaller_probs = -1;
  bool is_accepted = false;        // verification rows: the draft stays, `id` is the draft
  float estimated_acceptance = 0;  // of verification rows, for statistics
  std::vector<int32_t> top_ids;  // best first, ties by id
  std::vector<float> top_logprobs;
};

// What the temperature step multiplies by; greedy rows take the smallest temperature.
float InverseTemperature(const SamplingParams& params);
// The sampler's own logarithm.
float Log(float x);

class Sampler {
 public:
  explicit Sampler(int vocab_size);

  int vocab_size() const { return vocab_size_; }

  // `params` are valid and Normalized(). Errors: kInternal "invalid logits" for a row with NaN or +infinity, or with every
  // token banned.
  Result<SampledToken> Sample(std::span<const float> logits, const SamplingParams& params, const RowContext& context);

  // Everything up to the renormalised log probabilities (-infinity = dropped), for verification, prompt log probabilities
  // and tests. Valid until the next call.
  Result<std::span<const float>> Process(std::span<const float> logits,
                                         const SamplingParams& params,
                                         const RowContext& context);

  // The processed log probabilities of the newest Sample that was not greedy.
  std::span<const float> logprobs() const { return logprobs_; }

  // Log-softmax value of one token of an untouched row, floored at kLogprobFloor.
  float RawLogprob(std::span<const float> logits, int32_t id);

 private:
  struct RowSum {
    float max = 0;
    float log_sum = 0;
  };
  struct Cutoff {
    float threshold = -1.0f;  // probabilities above it are kept
    int32_t tie_limit = -1;   // and those equal to it up to this id
  };

  void ApplyMasksAndPenalties(std::span<const float> logits, const SamplingParams& params, const RowContext& context);
  void ApplyPenalties(const SamplingParams& params, const RowContext& context);
  Result<RowSum> SumRow(std::span<const float> row, float inv_t);
  void ProcessRow(const SamplingParams& params, const RowSum& sum, float inv_t);
  int64_t PreselectCandidates(double top_p, uint64_t count_limit, uint64_t mass_limit);
  Cutoff FindCutoff(double top_p, int64_t top_k);
  void TopLogprobs(std::span<const float> values, int k, SampledToken& out);

  int vocab_size_;
  int num_lanes_;
  std::span<const float> row_;     // what the temperature step reads: the caller's row or modified_
  std::vector<float> modified_;    // [V] logits after masks, bias and penalties
  std::vector<float> logprobs_;    // [V]
  std::vector<float> probs_;       // [V]
  std::vector<uint32_t> weights_;  // [V] fixed-point probabilities
  std::vector<float> lanes_;
  std::vector<uint32_t> bucket_counts_;
  std::vector<uint64_t> bucket_masses_;
  std::vector<int32_t> candidates_;  // [V]
  DrawWorkspace draw_;
};

}  // namespace deepinfer::sampling
