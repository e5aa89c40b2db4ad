// SPDX-License-Identifier: Apache-2.0
//
// Device code of the router's choice and of the general experts: every (row, choice) pair on its own.
#pragma once

#include "backends/cuda/ops/dot.cuh"

namespace deepinfer::cuda {

inline constexpr int kMaxExperts = 1024;
inline constexpr int kMaxChosen = 32;

// By one warp; products in `scores`, which become the scores.
__device__ __forceinline__ void ChooseExperts(const device::RouterArgs& args, int num_experts, int64_t t, float* scores, float* biased, int32_t* chosen) {
  const int lane = threadIdx.x & 31, k = args.num_chosen;
  const float* bias = args.bias_image != nullptr && args.is_image != nullptr && args.is_image[t] != 0 ? args.bias_image : args.bias;
#pragma unroll 1
  for (int e = lane; e < num_experts; e += 32) {
    const float z = scores[e] / args.temperature;
    const float softplus = z > 20.0f ? z : log1pf(expf(z));
    scores[e] = sqrtf(softplus);
    biased[e] = scores[e] + bias[e];
    args.biased_scores[t * num_experts + e] = biased[e];
  }
  __syncwarp();
  float sum = 0;
#pragma unroll 1
  for (int i = 0; i < k; ++i) {
    float best = -INFINITY;
    int at = num_experts;
#pragma unroll 1
    for (int e = lane; e < num_experts; e += 32)
      if (biased[e] > best) best = biased[e], at = e;
#pragma unroll
    for (int d = 16; d > 0; d >>= 1) {
      const float v = __shfl_xor_sync(~0u, best, d);
      const int other = __shfl_xor_sync(~0u, at, d);
      if (v > best || (v == best && other < at)) best = v, at = other;
    }
    if (at >= num_experts) at = 0;  // not a number anywhere
    if (lane == 0) chosen[i] = at, biased[at] = -INFINITY;
    __syncwarp();
    sum += scores[at];
  }
#pragma unroll 1
  for (int i = lane; i < k; i += 32) {
    float w = scores[chosen[i]];
    if (k > 1) w = w / (sum + 1e-20f);
    args.weights[t * k + i] = w * args.scaling;
    args.experts[t * k + i] = chosen[i];
  }
}

inline constexpr int kSmallRouterExperts = 64, kSmallRouterInputs = 1024;
struct SmallRouteShared {
  float scores[kSmallRouterExperts], biased[kSmallRouterExperts];
  int32_t chosen[kMaxChosen];
};
// Row t by the first `threads` threads of a block: a warp a product, then the choice.
template <typename X>
__device__ __forceinline__ void SmallRouteRow(const device::RouterArgs& args, const WeightView& gate, const X* x, int64_t x_stride, int64_t t,
                                              SmallRouteShared& shared, unsigned threads) {
  const int num_experts = static_cast<int>(gate.rows);
#pragma unroll 1
  for (int e = threadIdx.x >> 5; e < num_experts; e += static_cast<int>(threads >> 5)) {
    const float v = WarpDot(gate, e, x + t * x_stride);
    if ((threadIdx.x & 31) == 0) shared.scores[e] = v;
  }
  BlockSync(threads);
  if (threadIdx.x < 32) ChooseExperts(args, num_experts, t, shared.scores, shared.biased, shared.chosen);
}

__device__ __forceinline__ WeightView ExpertOf(WeightView first, int64_t bytes, int64_t scale_bytes, int32_t expert) {
  first.data += expert * bytes;
  if (first.scale != nullptr) first.scale += expert * scale_bytes;
  return first;
}

inline constexpr int kExpertRowsAtOnce = 4;

// What the two products of the experts read beside their inputs.
struct ExpertChoices {
  int32_t num_chosen = 0;
  const int32_t* experts = nullptr;  // [rows, num_chosen]
  const float* weights = nullptr;
};

// Channels [32 * part, 32 * part + 32) of slot t * (num_chosen + 1) + choice by 512 threads; choice num_chosen is the shared
// expert. Sixteen warps of two channels each. `products`: 64 floats of shared memory.
template <typename X>
__device__ __forceinline__ void GateUpPart(const device::Arithmetic& a, const ExpertBankView& bank, const ExpertChoices& choices, float limit,
                                           const X* x, int64_t x_stride, float* act, int64_t slot, int part, float* products) {
  const int64_t t = slot / (choices.num_chosen + 1);
  const int choice = static_cast<int>(slot % (choices.num_chosen + 1));
  const bool is_shared = choice == choices.num_chosen;
  const int32_t expert = is_shared ? 0 : choices.experts[t * choices.num_chosen + choice];
  if (expert < 0) return;
  const WeightView w = is_shared ? bank.shared.gate_up : ExpertOf(bank.routed.gate_up, bank.gate_up_bytes, bank.gate_up_scale_bytes, expert);
  const int64_t first = static_cast<int64_t>(part) * 32;
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
  const float weight = is_shared ? 1.0f : choices.weights[t * choices.num_chosen + choice];
  {
    // Channels behind the last one read some row; nobody reads their products.
    const int64_t c0 = min(first + 2 * warp, bank.inner - 1), c1 = min(first + 2 * warp + 1, bank.inner - 1);
    const int64_t rows[kExpertRowsAtOnce] = {c0, c1, bank.inner + c0, bank.inner + c1};
    float sums[kExpertRowsAtOnce];
    WarpRowDots(w, rows, x + t * x_stride, sums);
    if (lane == 0) {
      products[2 * warp] = RoundIf(sums[0], a.round_bf16);
      products[2 * warp + 1] = RoundIf(sums[1], a.round_bf16);
      products[32 + 2 * warp] = RoundIf(sums[2], a.round_bf16);
      products[32 + 2 * warp + 1] = RoundIf(sums[3], a.round_bf16);
    }
  }
  BlockSync(512);
  if (warp != 0) return;
  float g = products[lane], u = products[32 + lane];
  if (limit > 0) {
    g = g < limit ? g : limit;
    u = u < -limit ? -limit : (u > limit ? limit : u);
  }
  float v = first + lane < bank.inner ? RoundIf(weight * (g / (1.0f + expf(-g)) * u), a.round_bf16) : 0.0f;
  if (a.quantize) v = FakeFp8Lane(v);
  act[slot * bank.padded_inner + first + lane] = v;
}

// Outputs of row t in groups of four, `kGroups` groups from `first` on, by kWarps warps: a warp a group and expert, then the sum
// over the chosen experts in ascending order and the shared one.
template <int kGroups>
struct DownShared {
  float results[kMaxChosen + 1][kGroups * kExpertRowsAtOnce];
  int32_t order[kMaxChosen];  // choices by ascending expert
};
template <int kWarps, int kGroups>
__device__ __forceinline__ void DownGroups(const device::Arithmetic& a, const ExpertBankView& bank, const ExpertChoices& choices, const float* act,
                                           F out, int64_t t, int64_t first, DownShared<kGroups>& shared) {
  constexpr int kOutputs = kGroups * kExpertRowsAtOnce;
  const int num_chosen = choices.num_chosen;
  const int32_t* chosen = choices.experts + t * num_chosen;
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
  if (warp == kWarps - 1) {
    const int32_t own = lane < num_chosen ? chosen[lane] : -1;
    int before = 0, count = 0;
#pragma unroll 1
    for (int j = 0; j < num_chosen; ++j) {
      const int32_t other = __shfl_sync(~0u, own, j);
      before += other >= 0 && other < own;
      count += other >= 0;
    }
    if (own >= 0) shared.order[before] = lane;
    if (lane >= count) shared.order[lane] = -1;
  }
#pragma unroll 1
  for (int task = warp; task < (num_chosen + 1) * kGroups; task += kWarps) {
    const int choice = task / kGroups, group = task % kGroups;
    const bool is_shared = choice == num_chosen;
    const int32_t expert = is_shared ? 0 : chosen[choice];
    if (expert < 0) continue;
    const WeightView w = is_shared ? bank.shared.down : ExpertOf(bank.routed.down, bank.down_bytes, bank.down_scale_bytes, expert);
    int64_t rows[kExpertRowsAtOnce];
#pragma unroll
    for (int r = 0; r < kExpertRowsAtOnce; ++r) rows[r] = min(first + group * kExpertRowsAtOnce + r, bank.hidden - 1);
    float sums[kExpertRowsAtOnce];
    WarpRowDots(w, rows, act + (t * (num_chosen + 1) + choice) * bank.padded_inner, sums);
#pragma unroll
    for (int r = 0; r < kExpertRowsAtOnce; ++r)
      if (lane == r) shared.results[choice][group * kExpertRowsAtOnce + r] = RoundIf(sums[r], a.round_bf16);
  }
  BlockSync(kWarps * 32);
  const int r = threadIdx.x;
  if (r >= kOutputs || first + r >= bank.hidden) return;
  float sum = 0;
#pragma unroll 1
  for (int i = 0; i < num_chosen && shared.order[i] >= 0; ++i) sum += shared.results[shared.order[i]][r];
  sum += shared.results[num_chosen][r];
  out.data[t * out.stride + first + r] = RoundIf(sum, a.round_bf16);
}

}  // namespace deepinfer::cuda
