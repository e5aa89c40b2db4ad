// SPDX-License-Identifier: Apache-2.0
#include "sampling/verify.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "sampling/row_ops.h"

namespace deepinfer::sampling {
namespace {

// Lowest id of the largest value.
int32_t Argmax(std::span<const float> values) {
  const RowOps& ops = GetRowOps();
  const int64_t n = static_cast<int64_t>(values.size());
  const int32_t key = ops.max_key(values.data(), n);
  const float max = std::bit_cast<float>(key ^ ((key >> 31) & 0x7fffffff));
  return static_cast<int32_t>(ops.find_equal(values.data(), n, max));
}

bool InRange(int32_t id, std::span<const float> row) { return id >= 0 && static_cast<size_t>(id) < row.size(); }

}  // namespace

void WeightsFromLogprobs(std::span<const float> logprobs, std::span<uint32_t> weights) {
  GetRowOps().weights(logprobs.data(), static_cast<int64_t>(logprobs.size()), weights.data());
}

VerifiedRow VerifyByRejection(std::span<const float> target_logprobs,
                              int32_t draft_id,
                              std::span<const float> draft_logprobs,
                              uint64_t seed,
                              int32_t position,
                              DrawWorkspace& workspace) {
  const RowOps& ops = GetRowOps();
  const int64_t n = static_cast<int64_t>(target_logprobs.size());
  workspace.Reserve(n);
  const std::span<uint32_t> weights(workspace.weights.data(), target_logprobs.size());
  const bool has_draft = InRange(draft_id, target_logprobs);
  VerifiedRow row;
  if (has_draft) {
    const float sum = ops.residual(target_logprobs.data(),
                                   draft_logprobs.data(),
                                   n,
                                   workspace.values.data(),
                                   weights.data(),
                                   workspace.float_lanes.data(),
                                   NumLanes(n));
    row.estimated_acceptance = std::max(1.0f - sum, 0.0f);
    const size_t d = static_cast<size_t>(draft_id);
    const float u = UniformFromWord(PhiloxStream(seed, position, DrawCase::kAccept).Next());
    // A draft token outside the target's kept set has log probability -infinity and is never accepted.
    if (u < ops.exp(std::min(target_logprobs[d] - draft_logprobs[d], 0.0f))) {
      row.is_accepted = true;
      row.id = draft_id;
      return row;
    }
  } else {
    row.estimated_acceptance = 0.0f;
    WeightsFromLogprobs(target_logprobs, weights);
  }
  row.id = DrawInverseCdf(weights, PhiloxStream(seed, position, DrawCase::kResidual), workspace);
  if (row.id < 0) row.id = Argmax(target_logprobs);
  return row;
}

VerifiedRow VerifyExactly(std::span<const float> target_logprobs,
                          int32_t draft_id,
                          uint64_t seed,
                          int32_t position,
                          DrawWorkspace& workspace) {
  workspace.Reserve(static_cast<int64_t>(target_logprobs.size()));
  const std::span<uint32_t> weights(workspace.weights.data(), target_logprobs.size());
  WeightsFromLogprobs(target_logprobs, weights);
  VerifiedRow row;
  row.id = DrawRace(weights, PhiloxStream(seed, position, DrawCase::kTarget), workspace);
  if (row.id < 0) row.id = Argmax(target_logprobs);
  row.is_accepted = draft_id >= 0 && row.id == draft_id;
  return row;
}

VerifiedRow VerifyGreedily(std::span<const float> target_logits, int32_t draft_id) {
  VerifiedRow row;
  row.id = Argmax(target_logits);
  row.is_accepted = draft_id >= 0 && row.id == draft_id;
  return row;
}

}  // namespace deepinfer::sampling
