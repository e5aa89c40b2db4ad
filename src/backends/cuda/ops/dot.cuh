// SPDX-License-Identifier: Apache-2.0
//
// One output of a matrix product by one warp, for up to kRows inputs: lane l takes the pieces l, l + 32, ... of the row in
// ascending order, then the lanes are added by a butterfly. So an output has one order of sums, whatever else is computed.
#pragma once

#include "backends/cuda/ops/launch.h"
#include "backends/cuda/ops/numbers.cuh"

namespace deepinfer::cuda {

// Values of a lane's piece of a row.
template <device::WeightFormat kFormat>
inline constexpr int kPiece = kFormat == device::WeightFormat::kF32 ? 4 : 8;

// `kPiece` values from column k (a multiple of the piece) of a row of weights, without their scale.
template <device::WeightFormat kFormat>
__device__ __forceinline__ void LoadWeights(const uint8_t* row, int64_t k, float* w) {
  if constexpr (kFormat == device::WeightFormat::kF32) {
    const float4 v = *reinterpret_cast<const float4*>(row + k * 4);
    w[0] = v.x, w[1] = v.y, w[2] = v.z, w[3] = v.w;
  } else if constexpr (kFormat == device::WeightFormat::kBf16) {
    const uint4 v = *reinterpret_cast<const uint4*>(row + k * 2);
    const uint32_t words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) w[2 * i] = BitsToFloat(words[i] << 16), w[2 * i + 1] = BitsToFloat(words[i] & 0xffff0000u);
  } else if constexpr (kFormat == device::WeightFormat::kFp4Row32) {
    DecodeE2M1x8(*reinterpret_cast<const uint32_t*>(row + k / 2), w);
  } else {
    const uint2 v = *reinterpret_cast<const uint2*>(row + k);
    DecodeE4M3x4(v.x, w);
    DecodeE4M3x4(v.y, w + 4);
  }
}

template <int kCount>
__device__ __forceinline__ void LoadInput(const float* row, int64_t k, float* x) {
#pragma unroll
  for (int i = 0; i < kCount; i += 4) {
    const float4 v = *reinterpret_cast<const float4*>(row + k + i);
    x[i] = v.x, x[i + 1] = v.y, x[i + 2] = v.z, x[i + 3] = v.w;
  }
}
template <int kCount>
__device__ __forceinline__ void LoadInput(const uint16_t* row, int64_t k, float* x) {
#pragma unroll
  for (int i = 0; i < kCount; i += 4) {
    const uint2 v = *reinterpret_cast<const uint2*>(row + k + i);
    x[i] = BitsToFloat(v.x << 16), x[i + 1] = BitsToFloat(v.x & 0xffff0000u);
    x[i + 2] = BitsToFloat(v.y << 16), x[i + 3] = BitsToFloat(v.y & 0xffff0000u);
  }
}

// An input that is quantised to FP8 per 32 values on its way: four lanes with 8 values each hold a group.
struct QuantizedFloat {
  float value;
};
template <int kCount>
__device__ __forceinline__ void LoadInput(const QuantizedFloat* row, int64_t k, float* x) {
  static_assert(kCount == 8);
  LoadInput<8>(reinterpret_cast<const float*>(row), k, x);
  float amax = 0;
#pragma unroll
  for (int i = 0; i < 8; ++i) amax = fmaxf(amax, fabsf(x[i]));
  const unsigned group = 15u << (threadIdx.x & 28);
  amax = fmaxf(amax, __shfl_xor_sync(group, amax, 1));
  amax = fmaxf(amax, __shfl_xor_sync(group, amax, 2));
  const int e = Fp8Exponent(amax);
  const float inverse = Pow2(-e), s = Pow2(e);
#pragma unroll
  for (int i = 0; i < 8; ++i) x[i] = RoundE4M3(x[i] * inverse) * s;
}

// sums[m] = w . x[m] for m < kRows, in every lane. `scale`: of the row's groups of 32, null for formats without.
template <device::WeightFormat kFormat, typename X, int kRows>
__device__ __forceinline__ void WarpDots(const uint8_t* w_row, const uint8_t* scale, int64_t padded_cols, const X* x, int64_t stride,
                                         float* sums) {
  constexpr int kCount = kPiece<kFormat>;
  const int lane = threadIdx.x & 31;
#pragma unroll
  for (int m = 0; m < kRows; ++m) sums[m] = 0;
#pragma unroll (kRows == 1 ? 4 : 1)
  for (int k = lane * kCount; k < padded_cols; k += 32 * kCount) {
    float w[kCount];
    LoadWeights<kFormat>(w_row, k, w);
    constexpr bool kIsScaled = kFormat == device::WeightFormat::kFp8Block32 || kFormat == device::WeightFormat::kFp4Row32;
    float s = 1.0f;
    if constexpr (kIsScaled) s = ScaleOf(scale[k >> 5]);
#pragma unroll
    for (int m = 0; m < kRows; ++m) {
      float v[kCount];
      LoadInput<kCount>(x + m * stride, k, v);
      if constexpr (kIsScaled) {
        float part = 0;
#pragma unroll
        for (int i = 0; i < kCount; ++i) part = fmaf(w[i], v[i], part);
        sums[m] = fmaf(part, s, sums[m]);
      } else {
#pragma unroll
        for (int i = 0; i < kCount; ++i) sums[m] = fmaf(w[i], v[i], sums[m]);
      }
    }
  }
#pragma unroll
  for (int m = 0; m < kRows; ++m) sums[m] = WarpSum(sums[m]);
}

// sums[r] = w[first + r * step] . x for r < kCount rows of weights, one input: the sums of WarpDots, with the loads of all rows on
// their way together.
template <device::WeightFormat kFormat, typename X, int kCount>
__device__ __forceinline__ void WarpRowDots(const WeightView& w, const int64_t (&rows)[kCount], const X* x, float* sums) {
  constexpr int kValues = kPiece<kFormat>;
  constexpr bool kIsScaled = kFormat == device::WeightFormat::kFp8Block32 || kFormat == device::WeightFormat::kFp4Row32;
  const int lane = threadIdx.x & 31;
  const int64_t columns = w.padded_cols / 32;
#pragma unroll
  for (int r = 0; r < kCount; ++r) sums[r] = 0;
#pragma unroll (kCount == 1 ? 4 : 1)
  for (int k = lane * kValues; k < w.padded_cols; k += 32 * kValues) {
    float values[kCount][kValues], scales[kCount], v[kValues];
#pragma unroll
    for (int r = 0; r < kCount; ++r) {
      LoadWeights<kFormat>(w.data + rows[r] * WeightRowBytes(kFormat, w.padded_cols), k, values[r]);
      scales[r] = 1.0f;
      if constexpr (kIsScaled) scales[r] = ScaleOf(w.scale[(rows[r] >> w.scale_shift) * columns + (k >> 5)]);
    }
    LoadInput<kValues>(x, k, v);
#pragma unroll
    for (int r = 0; r < kCount; ++r) {
      if constexpr (kIsScaled) {
        float part = 0;
#pragma unroll
        for (int i = 0; i < kValues; ++i) part = fmaf(values[r][i], v[i], part);
        sums[r] = fmaf(part, scales[r], sums[r]);
      } else {
#pragma unroll
        for (int i = 0; i < kValues; ++i) sums[r] = fmaf(values[r][i], v[i], sums[r]);
      }
    }
  }
#pragma unroll
  for (int r = 0; r < kCount; ++r) sums[r] = WarpSum(sums[r]);
}
template <typename X, int kCount>
__device__ __forceinline__ void WarpRowDots(const WeightView& w, const int64_t (&rows)[kCount], const X* x, float* sums) {
  if (w.format == device::WeightFormat::kFp4Row32) {
    WarpRowDots<device::WeightFormat::kFp4Row32, X, kCount>(w, rows, x, sums);
  } else if (w.format == device::WeightFormat::kBf16) {
    WarpRowDots<device::WeightFormat::kBf16, X, kCount>(w, rows, x, sums);
  } else {
    WarpRowDots<device::WeightFormat::kFp8Block32, X, kCount>(w, rows, x, sums);
  }
}
// Asks for the first pieces of a row of weights, which no kernel writes.
template <device::WeightFormat kFormat>
__device__ __forceinline__ void PrefetchWeights(const uint8_t* row, int64_t padded_cols) {
  const int64_t at = static_cast<int64_t>(threadIdx.x & 31) * 16;
  if (at < WeightRowBytes(kFormat, padded_cols)) asm volatile("prefetch.global.L1 [%0];" ::"l"(row + at));
}

template <typename X>
__device__ __forceinline__ float WarpDot(const WeightView& w, int64_t row, const X* x) {
  const int64_t rows[1] = {row};
  float sum;
  WarpRowDots(w, rows, x, &sum);
  return sum;
}

}  // namespace deepinfer::cuda
