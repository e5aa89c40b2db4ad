// SPDX-License-Identifier: Apache-2.0
//
// Verification of drafted tokens against the target distribution of their rows: by rejection (the emitted law is the
// target's within 5e-5) or exactly (each row draws as it would without speculation and the draft is accepted when equal).
// Rows are processed log probabilities (Sampler::Process); dropped tokens are -inf.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "sampling/draw.h"
#include "sampling/philox.h"

namespace deepinfer::sampling {

struct VerifiedRow {
  bool is_accepted = false;
  int32_t id = -1;                  // the draft if accepted, else the replacement
  float estimated_acceptance = 1;   // statistics: max(1 - sum of the residual, 0)
};

// `draft_logprobs` [V]: the distribution the draft was drawn from; ignored for draft_id < 0, which is always rejected.
// `position` is the row's position: base + row * kRowPositionStride.
VerifiedRow VerifyByRejection(std::span<const float> target_logprobs, int32_t draft_id,
                              std::span<const float> draft_logprobs, uint64_t seed, int32_t position,
                              DrawWorkspace& workspace);

// `position` is the absolute index of the token: base + row.
VerifiedRow VerifyExactly(std::span<const float> target_logprobs, int32_t draft_id, uint64_t seed, int32_t position,
                          DrawWorkspace& workspace);

// Greedy rows: accepted when the draft is the argmax (ties: lowest id).
VerifiedRow VerifyGreedily(std::span<const float> target_logits, int32_t draft_id);

// Fixed-point weights of log probabilities: trunc(exp(l) * 2^31).
void WeightsFromLogprobs(std::span<const float> logprobs, std::span<uint32_t> weights);

}  // namespace deepinfer::sampling
