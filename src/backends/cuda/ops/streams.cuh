// SPDX-License-Identifier: Apache-2.0
//
// Device code of one row of the residual streams, by the first `threads` threads of a block. A row's sums depend on its width only.
#pragma once

#include <type_traits>

#include "backends/cuda/ops/launch.h"
#include "backends/cuda/ops/numbers.cuh"

namespace deepinfer::cuda {

__device__ __forceinline__ float TableValue(const TableView& table, int64_t row, int64_t c) {
  if (table.format == device::WeightFormat::kBf16)
    return BitsToFloat(static_cast<uint32_t>(reinterpret_cast<const uint16_t*>(table.data)[row * table.cols + c]) << 16);
  return DecodeE4M3(table.data[row * table.cols + c]) * ScaleOf(table.scale[row * (table.cols / 32) + c / 32]);
}

__device__ __forceinline__ float Sigmoid(float v) { return 1.0f / (1.0f + expf(-v)); }

// Stream j of row t; `shared` has 33 floats.
__device__ __forceinline__ void EngramStream(bool round, F kv, const float* qk, const uint8_t* is_dead, int streams, int64_t hidden, float eps,
                                             F trunk, float* gate_out, int64_t t, int j, float* shared, unsigned threads) {
  const float* key = kv.data + t * kv.stride + j * hidden;
  const float* value = kv.data + t * kv.stride + streams * hidden;
  float* x = trunk.data + t * trunk.stride + j * hidden;
  float sx = 0, sk = 0, dot = 0;
#pragma unroll 1
  for (int64_t c = threadIdx.x; c < hidden; c += threads) {
    sx = fmaf(x[c], x[c], sx);
    sk = fmaf(key[c], key[c], sk);
    dot = fmaf(x[c] * qk[j * hidden + c], key[c], dot);
  }
  sx = BlockSum(sx, shared, threads);
  sk = BlockSum(sk, shared, threads);
  dot = BlockSum(dot, shared, threads);
  const float n = static_cast<float>(hidden);
  float gate = 0;
  if (is_dead == nullptr || is_dead[t] == 0) {
    const float rx = 1.0f / sqrtf(sx / n + eps), rk = 1.0f / sqrtf(sk / n + eps);
    const float d = dot * (rx * rk) * (1.0f / sqrtf(n));
    gate = Sigmoid(copysignf(sqrtf(fmaxf(fabsf(d), 1e-6f)), d));
  }
  if (gate_out != nullptr && threadIdx.x == 0) gate_out[t * streams + j] = gate;
#pragma unroll 1
  for (int64_t c = threadIdx.x; c < hidden; c += threads) x[c] = RoundIf(x[c] + gate * value[c], round);
}

// ---- hyper-connections --------------------------------------------------------------------------------------------------

inline constexpr int kMaxMixOutputs = 4 * (4 + 2);  // of at most four streams

// One warp: out[o] = products of a chunk of row t for o = first, first + step, ..., the last one (o = outputs) its sum of squares. A
// lane has 8 neighbouring values. `between` runs behind the loads of weights, which nothing writes.
template <int kMost, typename Between>
__device__ __forceinline__ void MixPartialDots(const float* fn, F trunk, int64_t n, int outputs, float* out, int64_t t, int chunk,
                                               int first, int step, Between&& between) {
  const int64_t begin = chunk * kMixChunk, end = min(begin + kMixChunk, n);
  const float* x = trunk.data + t * trunk.stride;
  const int lane = threadIdx.x & 31;
  const int64_t at = begin + 8 * lane;
  float f[kMost][8];
#pragma unroll
  for (int i = 0; i < kMost; ++i) {
    const int o = first + i * step;
#pragma unroll
    for (int c = 0; c < 8; ++c) f[i][c] = o < outputs && at + c < end ? fn[o * n + at + c] : 0.0f;
  }
  between();
  float v[8];
#pragma unroll
  for (int c = 0; c < 8; ++c) v[c] = at + c < end ? x[at + c] : 0.0f;
#pragma unroll
  for (int i = 0; i < kMost; ++i) {
    const int o = first + i * step;
    if (o > outputs) break;
    float sum = 0;
#pragma unroll
    for (int c = 0; c < 8; ++c) sum = fmaf(v[c], o < outputs ? f[i][c] : v[c], sum);
    sum = WarpSum(sum);
    if (lane == 0) out[o] = sum;
  }
}

// One warp a row. partial [chunks][outputs + 1]; g has kMaxMixOutputs + 1 floats of shared memory. `between` runs behind the loads of
// constants.
template <typename Between>
__device__ __forceinline__ void MixFinishRow(const float* partial, int chunks, int64_t n, int m, const float* base, const float* scale,
                                             float norm_eps, float eps, int iters, float* pre, float* post, float* comb, int64_t t, float* g,
                                             Between&& between) {
  const int outputs = m * (m + 2), o = threadIdx.x & 31;
  const float offset = o < outputs ? base[o] : 0.0f, factor = scale[o < m ? 0 : o < 2 * m ? 1 : 2];
  between();
  if (o <= outputs) {
    float sum = 0;
#pragma unroll 4
    for (int c = 0; c < chunks; ++c) sum += partial[c * (outputs + 1) + o];
    g[o] = sum;
  }
  __syncwarp();
  const float rstd = 1.0f / sqrtf(g[outputs] * (1.0f / static_cast<float>(n)) + norm_eps);
  if (o < outputs) {
    const float v = g[o] * rstd;
    if (o < m) {
      pre[t * m + o] = Sigmoid(v * factor + offset) + eps;
    } else if (o < 2 * m) {
      post[t * m + o - m] = 2.0f * Sigmoid(v * factor + offset);
    } else {
      g[o] = v * factor + offset;
    }
  }
  __syncwarp();
  float* c = g + 2 * m;
  if (m == 4) {
    // Lane 4j + k holds C[j][k]; upper lanes repeat.
    const int at = o & 15;
    float v = c[at];
    const auto row_sum = [](float x) {
      const int first = threadIdx.x & 28;
      const float a = __shfl_sync(~0u, x, first), b = __shfl_sync(~0u, x, first + 1), d = __shfl_sync(~0u, x, first + 2), e = __shfl_sync(~0u, x, first + 3);
      return ((a + b) + d) + e;
    };
    const auto column_sum = [](float x) {
      const int k = (threadIdx.x & 3) | (threadIdx.x & 16);
      const float a = __shfl_sync(~0u, x, k), b = __shfl_sync(~0u, x, k + 4), d = __shfl_sync(~0u, x, k + 8), e = __shfl_sync(~0u, x, k + 12);
      return ((a + b) + d) + e;
    };
    float top = fmaxf(v, __shfl_xor_sync(~0u, v, 1));
    top = fmaxf(top, __shfl_xor_sync(~0u, top, 2));
    // Quotients to an ulp or two: twenty rounds wait for nothing else.
    v = expf(v - top);
    v = __fdividef(v, row_sum(v)) + eps;
    v = __fdividef(v, column_sum(v) + eps);
#pragma unroll 1
    for (int i = 1; i < iters; ++i) {
      v = __fdividef(v, row_sum(v) + eps);
      v = __fdividef(v, column_sum(v) + eps);
    }
    if (o < 16) comb[t * 16 + at] = v;
    return;
  }
  if (o != 0) return;
#pragma unroll 1
  for (int j = 0; j < m; ++j) {
    float top = c[j * m], sum = 0;
#pragma unroll 1
    for (int k = 1; k < m; ++k) top = fmaxf(top, c[j * m + k]);
#pragma unroll 1
    for (int k = 0; k < m; ++k) sum += c[j * m + k] = expf(c[j * m + k] - top);
#pragma unroll 1
    for (int k = 0; k < m; ++k) c[j * m + k] = c[j * m + k] / sum + eps;
  }
  const auto columns = [&] {
#pragma unroll 1
    for (int k = 0; k < m; ++k) {
      float sum = c[k];
#pragma unroll 1
      for (int j = 1; j < m; ++j) sum += c[j * m + k];
#pragma unroll 1
      for (int j = 0; j < m; ++j) c[j * m + k] /= sum + eps;
    }
  };
  columns();
#pragma unroll 1
  for (int i = 1; i < iters; ++i) {
#pragma unroll 1
    for (int j = 0; j < m; ++j) {
      float sum = c[j * m];
#pragma unroll 1
      for (int k = 1; k < m; ++k) sum += c[j * m + k];
#pragma unroll 1
      for (int k = 0; k < m; ++k) c[j * m + k] /= sum + eps;
    }
    columns();
  }
#pragma unroll 1
  for (int i = 0; i < m * m; ++i) comb[t * m * m + i] = c[i];
}

// Streams of one channel after the expansion, in `v`.
template <int kM>
__device__ __forceinline__ void ExpandChannel(float y, const float* post, const float* comb, bool round, float* v) {
  float old[kM];
#pragma unroll
  for (int j = 0; j < kM; ++j) old[j] = v[j];
#pragma unroll
  for (int k = 0; k < kM; ++k) {
    float sum = comb[k] * old[0];
#pragma unroll
    for (int j = 1; j < kM; ++j) sum += comb[j * kM + k] * old[j];
    v[k] = RoundIf(post[k] * y + sum, round);
  }
}

// The streams of row t are expanded (optional), collapsed and normalised. `values` has room for `hidden` floats, `shared` for 33.
template <int kM>
__device__ __forceinline__ void CollapseRow(bool round, const ExpandPart& expand, F trunk, const float* pre, int64_t hidden, const float* norm,
                                            float eps, F collapsed, F x, const QuantizedOut& quantized, int64_t t, float* values, float* shared,
                                            unsigned threads) {
  float* row = trunk.data + t * trunk.stride;
  const float first_norm = threadIdx.x < hidden ? norm[threadIdx.x] : 0.0f;
  float p[kM], post[kM], comb[kM * kM];
#pragma unroll
  for (int j = 0; j < kM; ++j) p[j] = pre[t * kM + j];
  if (expand.post != nullptr) {
#pragma unroll
    for (int j = 0; j < kM; ++j) post[j] = expand.post[t * kM + j];
#pragma unroll
    for (int j = 0; j < kM * kM; ++j) comb[j] = expand.comb[t * kM * kM + j];
  }
  float sum = 0;
#pragma unroll 1
  for (int64_t c = threadIdx.x; c < hidden; c += threads) {
    float v[kM];
#pragma unroll
    for (int j = 0; j < kM; ++j) v[j] = row[j * hidden + c];
    if (expand.post != nullptr) {
      ExpandChannel<kM>(expand.y.data[t * expand.y.stride + c], post, comb, round, v);
#pragma unroll
      for (int j = 0; j < kM; ++j) row[j * hidden + c] = v[j];
    }
    float s = p[0] * v[0];
#pragma unroll
    for (int j = 1; j < kM; ++j) s += p[j] * v[j];
    s = RoundIf(s, round);
    values[c] = s;
    if (collapsed.data != nullptr) collapsed.data[t * collapsed.stride + c] = s;
    sum = fmaf(s, s, sum);
  }
  const float r = 1.0f / sqrtf(BlockSum(sum, shared, threads) / static_cast<float>(hidden) + eps);
#pragma unroll 1
  for (int64_t c = threadIdx.x; c < hidden; c += threads) {
    const float v = RoundIf((c == threadIdx.x ? first_norm : norm[c]) * (values[c] * r), round);
    x.data[t * x.stride + c] = v;
    if (quantized.bf16 != nullptr)  // hidden is a multiple of 32: whole warps get here
      quantized.bf16[t * quantized.stride + c] = static_cast<uint16_t>(__float_as_uint(FakeFp8Lane(v)) >> 16);
  }
}

template <int kM>
__device__ __forceinline__ void ExpandRow(bool round, const ExpandPart& expand, int64_t hidden, F trunk, int64_t t, unsigned threads) {
  float* row = trunk.data + t * trunk.stride;
#pragma unroll 1
  for (int64_t c = threadIdx.x; c < hidden; c += threads) {
    float v[kM];
#pragma unroll
    for (int j = 0; j < kM; ++j) v[j] = row[j * hidden + c];
    ExpandChannel<kM>(expand.y.data[t * expand.y.stride + c], expand.post + t * kM, expand.comb + t * kM * kM, round, v);
#pragma unroll
    for (int j = 0; j < kM; ++j) row[j * hidden + c] = v[j];
  }
}

__device__ __forceinline__ float MeanOfStreams(F trunk, int64_t t, int streams, int64_t hidden, int64_t c, bool round) {
  const float* row = trunk.data + t * trunk.stride;
  float sum = row[c];
  for (int j = 1; j < streams; ++j) sum += row[j * hidden + c];
  return RoundIf(sum / static_cast<float>(streams), round);
}

// Calls fn with the number of streams as a constant.
template <typename Fn>
__host__ __device__ __forceinline__ void ForStreams(int streams, Fn&& fn) {
  switch (streams) {
    case 1: fn(std::integral_constant<int, 1>()); break;
    case 2: fn(std::integral_constant<int, 2>()); break;
    case 3: fn(std::integral_constant<int, 3>()); break;
    case 4: fn(std::integral_constant<int, 4>()); break;
    default: break;  // refused at load
  }
}

}  // namespace deepinfer::cuda
