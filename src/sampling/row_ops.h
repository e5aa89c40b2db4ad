// SPDX-License-Identifier: Apache-2.0
//
// Loops over one row of the vocabulary, compiled once per instruction set from the same source (row_ops-inl.h) and picked at
// run time. All versions give the same bits: each element is its own chain of IEEE operations, and sums have the fixed lane
// structure of SumLanes. Lane k adds elements k, k + num_lanes, ... in ascending order; the lanes are then added as a binary
// tree (lane k += lane k + half, halving).
#pragma once

#include <cstdint>
#include <span>

namespace deepinfer::sampling {

struct RowOps {
  const char* name;

  // Largest element as an ordered key (see KeyToFloat in row_ops-inl.h). Positive NaN gives a key above +infinity's.
  int32_t (*max_key)(const float* x, int64_t n);
  // Lowest index with x[i] == value, -1 if none.
  int64_t (*find_equal)(const float* x, int64_t n, float value);
  // Ids with x[i] >= limit, ascending; returns their number.
  int64_t (*collect_at_least)(const float* x, int64_t n, float limit, int32_t* ids);
  // Clears (sets to -infinity) every element whose bit is 0.
  void (*apply_mask)(float* x, int64_t n, const uint32_t* mask);
  // sum of exp((x - max) * inv_t), lanes as above; `lanes` has num_lanes elements.
  float (*sum_exp)(const float* x, int64_t n, float max, float inv_t, float* lanes, int num_lanes);
  // logprobs = (x - max) * inv_t - log_sum; probs = exp(logprobs).
  void (*log_probs)(const float* x, int64_t n, float max, float inv_t, float log_sum, float* logprobs, float* probs);
  // Drops (sets to 0 and -infinity) every token that is not kept: p > threshold, or p == threshold and id <= tie_limit;
  // and p >= min_p. Returns the sum of the probabilities kept, lanes as above.
  float (*keep)(float* probs, float* logprobs, int64_t n, float threshold, int32_t tie_limit, float min_p, float* lanes,
                int num_lanes);
  // logprobs -= log_mass.
  void (*subtract)(float* logprobs, int64_t n, float log_mass);
  // weights = trunc(exp(logprobs) * 2^31).
  void (*weights)(const float* logprobs, int64_t n, uint32_t* weights);
  // weights = trunc(probs * 2^31).
  void (*weights_from_probs)(const float* probs, int64_t n, uint32_t* weights);
  // lanes[k] = sum over m of weights[k + m * num_lanes].
  void (*sum_lanes)(const uint32_t* weights, int64_t n, uint32_t* lanes, int num_lanes);
  // Race keys e / w of ids first .. first + n (first a multiple of 4), and of the ids listed. Infinity where w = 0.
  void (*race_keys)(const uint32_t* weights, int32_t first, int64_t n, const uint32_t* stream, float* keys);
  void (*race_keys_of)(const uint32_t* weights, const int32_t* ids, int64_t n, const uint32_t* stream, float* keys);
  // Sum over tokens with l < chosen, or l == chosen and id <= chosen_id, of exp(l); lanes as above.
  float (*sum_smaller)(const float* logprobs, int64_t n, float chosen, int32_t chosen_id, float* lanes, int num_lanes);
  // Residual of a rejection: max(exp(p) - exp(q - 5e-5), 0) into `out`; weights = trunc(out * 2^31). Returns the sum, lanes as
  // above.
  float (*residual)(const float* p, const float* q, int64_t n, float* out, uint32_t* weights, float* lanes, int num_lanes);
  float (*exp)(float x);
  float (*log)(float x);
  float (*exponential)(uint32_t word);
};

// The best version for this machine.
const RowOps& GetRowOps();
// Every version this machine can run; tests compare them.
std::span<const RowOps* const> AllRowOps();

}  // namespace deepinfer::sampling
