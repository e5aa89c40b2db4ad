// SPDX-License-Identifier: Apache-2.0
//
// Device code of the router's choice and of the general experts: every (row, choice) pair on its own.
#pragma once

#include "backends/cuda/ops/dot.cuh"

namespace deepinfer::cuda {

inline constexpr int kMaxExperts = 1024;
inline constexpr int kMaxChosen = 32;

struct RouteShared {
  float scores[kMaxExperts], biased[kMaxExperts];
  float weights[kMaxChosen];
  int32_t chosen[kMaxChosen];
};
__device__ __forceinline__ const float* RouteBias(const device::RouterArgs& args, int64_t t) {
  return args.bias_image != nullptr && args.is_image != nullptr && args.is_image[t] != 0 ? args.bias_image : args.bias;
}
// By one warp. On entry `scores` holds the products and `biased` the bias. The choice stays in `shared`; `writes`: it goes to its
// place in memory too.
template <typename Shared>
__device__ __forceinline__ void ChooseExperts(const device::RouterArgs& args, int num_experts, int64_t t, Shared& shared, bool writes) {
  const int lane = threadIdx.x & 31, k = args.num_chosen;
#pragma unroll 1
  for (int e = lane; e < num_experts; e += 32) {
    const float z = shared.scores[e] / args.temperature;
    const float softplus = z > 20.0f ? z : log1pf(expf(z));
    const float score = sqrtf(softplus), biased = score + shared.biased[e];
    shared.scores[e] = score;
    shared.biased[e] = biased;
    if (writes) args.biased_scores[t * num_experts + e] = biased;
  }
  __syncwarp();
  float sum = 0;
  if (num_experts <= 32) {
    // An expert a lane: how many are better than it. What is not a number is never chosen; expert 0 stands for those that lack.
    const float own = lane < num_experts && shared.biased[lane] > -INFINITY ? shared.biased[lane] : -INFINITY;
    int rank = 0;
#pragma unroll 8
    for (int e = 0; e < num_experts; ++e) {
      const float other = __shfl_sync(~0u, own, e);
      rank += other > own || (other == own && e < lane);
    }
    if (rank < k && lane < num_experts) shared.chosen[rank] = own > -INFINITY ? lane : 0;
    __syncwarp();
#pragma unroll 1
    for (int i = 0; i < k; ++i) sum += shared.scores[shared.chosen[i]];
  }
#pragma unroll 1
  for (int i = 0; num_experts > 32 && i < k; ++i) {
    float best = -INFINITY;
    int at = num_experts;
#pragma unroll 1
    for (int e = lane; e < num_experts; e += 32)
      if (shared.biased[e] > best) best = shared.biased[e], at = e;
#pragma unroll
    for (int d = 16; d > 0; d >>= 1) {
      const float v = __shfl_xor_sync(~0u, best, d);
      const int other = __shfl_xor_sync(~0u, at, d);
      if (v > best || (v == best && other < at)) best = v, at = other;
    }
    if (at >= num_experts) at = 0;  // not a number anywhere
    if (lane == 0) shared.chosen[i] = at, shared.biased[at] = -INFINITY;
    __syncwarp();
    sum += shared.scores[at];
  }
  if (lane >= k) return;
  float w = shared.scores[shared.chosen[lane]];
  if (k > 1) w = w / (sum + 1e-20f);
  shared.weights[lane] = w * args.scaling;
  if (!writes) return;
  args.weights[t * k + lane] = w * args.scaling;
  args.experts[t * k + lane] = shared.chosen[lane];
}

inline constexpr int kSmallRouterExperts = 64, kSmallRouterInputs = 1024;
struct SmallRouteShared {
  float scores[kSmallRouterExperts], biased[kSmallRouterExperts];
  float weights[kMaxChosen];
  int32_t chosen[kMaxChosen];
};
// Row t by the whole block: a warp a product, then the choice.
template <typename X>
__device__ __forceinline__ void SmallRouteRow(const device::RouterArgs& args, const WeightView& gate, const X* x, int64_t x_stride, int64_t t,
                                              SmallRouteShared& shared, bool writes) {
  const int num_experts = static_cast<int>(gate.rows);
  if (threadIdx.x < static_cast<unsigned>(num_experts)) shared.biased[threadIdx.x] = RouteBias(args, t)[threadIdx.x];
#pragma unroll 1
  for (int e = threadIdx.x >> 5; e < num_experts; e += static_cast<int>(blockDim.x >> 5)) {
    const float v = WarpDot(gate, e, x + t * x_stride);
    if ((threadIdx.x & 31) == 0) shared.scores[e] = v;
  }
  __syncthreads();
  if (threadIdx.x < 32) ChooseExperts(args, num_experts, t, shared, writes);
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

// Channels [32 * part, 32 * part + 32) of one (row, choice) pair by 512 threads: sixteen warps of two channels each; w: of the
// expert. `products`: 64 floats of shared memory.
template <typename X>
__device__ __forceinline__ void GateUpPart(const device::Arithmetic& a, const WeightView& w, int64_t inner, float weight, float limit, const X* x,
                                           float* act, int part, float* products) {
  const int64_t first = static_cast<int64_t>(part) * 32;
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
  {
    // Channels behind the last one read some row; nobody reads their products.
    const int64_t c0 = min(first + 2 * warp, inner - 1), c1 = min(first + 2 * warp + 1, inner - 1);
    const int64_t rows[kExpertRowsAtOnce] = {c0, c1, inner + c0, inner + c1};
    float sums[kExpertRowsAtOnce];
    WarpRowDots(w, rows, x, sums);
    if (lane == 0) {
      products[2 * warp] = RoundIf(sums[0], a.round_bf16);
      products[2 * warp + 1] = RoundIf(sums[1], a.round_bf16);
      products[32 + 2 * warp] = RoundIf(sums[2], a.round_bf16);
      products[32 + 2 * warp + 1] = RoundIf(sums[3], a.round_bf16);
    }
  }
  __syncthreads();
  if (warp != 0) return;
  float g = products[lane], u = products[32 + lane];
  if (limit > 0) {
    g = g < limit ? g : limit;
    u = u < -limit ? -limit : (u > limit ? limit : u);
  }
  float v = first + lane < inner ? RoundIf(weight * (g / (1.0f + expf(-g)) * u), a.round_bf16) : 0.0f;
  if (a.quantize) v = FakeFp8Lane(v);
  act[first + lane] = v;
}

}  // namespace deepinfer::cuda
