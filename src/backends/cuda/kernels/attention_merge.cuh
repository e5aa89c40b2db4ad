// SPDX-License-Identifier: Apache-2.0
//
// How partial results of sparse attention become one, and results in memory.
#pragma once

#include "backends/cuda/kernels/attention_keys.cuh"
#include "backends/cuda/kernels/numbers.cuh"

namespace deepinfer::cuda {

constexpr float kLowest = -1e30f;
constexpr float kLog2e = 1.44269504f;

__device__ __forceinline__ float Exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// State of the merge of parts for one head. Maxima are kept in units of log2.
struct Merged {
  float top = kLowest, sum = 0.0f;
};
// Factors of the old and the new part.
__device__ __forceinline__ void MergeFactors(
    Merged& m, float top, float sum, float& old_factor, float& new_factor) {
  const float both = fmaxf(m.top, top);
  old_factor = Exp2(m.top - both);
  new_factor = Exp2(top - both);
  m.sum = __fmaf_rn(sum, new_factor, __fmul_rn(m.sum, old_factor));
  m.top = both;
}
__device__ __forceinline__ float MergeValue(float old_value,
                                            float old_factor,
                                            float value,
                                            float new_factor) {
  return __fmaf_rn(value, new_factor, __fmul_rn(old_value, old_factor));
}
__device__ __forceinline__ float Denominator(const Merged& m, float sink) {
  return m.sum + Exp2(sink * kLog2e - m.top);
}

// Two neighbouring channels of one head, rounded, their rotation undone, stored.
template <bool kIsPlain>
__device__ __forceinline__ void StorePair(
    const SparseAttentionArgs& a, int row, int64_t at, int column, float x, float y) {
  const bool rounds = kIsPlain || a.out_type != OutputType::kFloat;
  if (rounds) x = RoundBf16(x), y = RoundBf16(y);
  const auto store = [&](void* to) {
    if (kIsPlain || a.out_type == OutputType::kBf16) {
      *reinterpret_cast<uint32_t*>(static_cast<__nv_bfloat16*>(to) + at + column) = PackBf16(x, y);
    } else {
      *reinterpret_cast<float2*>(static_cast<float*>(to) + at + column) = make_float2(x, y);
    }
  };
  if (!kIsPlain && a.unrotated != nullptr) store(a.unrotated);
  if (column >= kDim - a.rope_dim) {
    const int pair = (column - (kDim - a.rope_dim)) / 2;
    const float c = a.rope[int64_t{row} * a.rope_dim + pair],
                s = a.rope[int64_t{row} * a.rope_dim + a.rope_dim / 2 + pair];
    const float rx = x * c + y * s, ry = y * c - x * s;
    x = rx, y = ry;
    if (rounds) x = RoundBf16(x), y = RoundBf16(y);
  }
  store(a.out);
}

// Partial results of single splits: values [row][split][64][512], then maximum and sum
// [row][split][64][2].
struct AttentionWorkspace {
  float* values;
  float* stats;
};

// One block per row and head, two channels a thread. The kernel before it has waited for all
// earlier ones when this one starts, so only its own results must be waited for.
template <bool kIsPlain>
__global__ void AttentionMergeKernel(const __grid_constant__ SparseAttentionArgs a,
                                     AttentionWorkspace ws,
                                     int max_splits) {
  const int row = blockIdx.y, head = blockIdx.x, column = threadIdx.x * 2;
  const RowKeys keys = KeysOf(a, row);
  const float sink = a.sink[head];
  DependencyLaunch();
  DependencyWait();
  const int splits = keys.splits();
  constexpr int kAhead = 12;  // loads in flight
  Merged parts[2];
  float2 values[2] = {};
  const int64_t at = int64_t{row} * max_splits * kHeads + head;
  for (int base = 0; base < splits; base += kAhead) {
    float2 stats[kAhead], v[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      if (base + i >= splits) break;
      stats[i] = *reinterpret_cast<const float2*>(ws.stats + (at + (base + i) * kHeads) * 2);
      v[i] =
          *reinterpret_cast<const float2*>(ws.values + (at + (base + i) * kHeads) * kDim + column);
    }
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      if (base + i >= splits) break;
      float old_factor, new_factor;
      MergeFactors(parts[i & 1], stats[i].x, stats[i].y, old_factor, new_factor);
      values[i & 1].x = MergeValue(values[i & 1].x, old_factor, v[i].x, new_factor);
      values[i & 1].y = MergeValue(values[i & 1].y, old_factor, v[i].y, new_factor);
    }
  }
  Merged merged = parts[0];
  float2 value = values[0];
  if (splits > 1) {
    float old_factor, new_factor;
    MergeFactors(merged, parts[1].top, parts[1].sum, old_factor, new_factor);
    value.x = MergeValue(value.x, old_factor, values[1].x, new_factor);
    value.y = MergeValue(value.y, old_factor, values[1].y, new_factor);
  }
  const float inverse = kKeyFactor * __frcp_rn(Denominator(merged, sink));
  StorePair<kIsPlain>(
      a, row, row * a.ldo + int64_t{head} * kDim, column, value.x * inverse, value.y * inverse);
}

}  // namespace deepinfer::cuda
