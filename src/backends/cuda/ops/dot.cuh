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
inline constexpr int kPiece = kFormat == device::WeightFormat::kFp4Row32 ? 16 : kFormat == device::WeightFormat::kF32 ? 4 : 8;

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
    const uint2 v = *reinterpret_cast<const uint2*>(row + k / 2);
#pragma unroll
    for (int i = 0; i < 16; ++i) w[i] = DecodeE2M1(((i < 8 ? v.x : v.y) >> (4 * (i & 7))) & 15u);
  } else {
    const uint2 v = *reinterpret_cast<const uint2*>(row + k);
#pragma unroll
    for (int i = 0; i < 8; ++i) w[i] = DecodeE4M3(((i < 4 ? v.x : v.y) >> (8 * (i & 3))) & 255u);
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

// sums[m] = w . x[m] for m < kRows, in every lane. `scale`: of the row's groups of 32, null for formats without.
template <device::WeightFormat kFormat, typename X, int kRows>
__device__ __forceinline__ void WarpDots(const uint8_t* w_row, const uint8_t* scale, int64_t padded_cols, const X* x, int64_t stride,
                                         float* sums) {
  constexpr int kCount = kPiece<kFormat>;
  const int lane = threadIdx.x & 31;
#pragma unroll
  for (int m = 0; m < kRows; ++m) sums[m] = 0;
  for (int64_t k = lane * kCount; k < padded_cols; k += 32 * kCount) {
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

// The same with the format known at run time, one input of float32.
__device__ __forceinline__ float WarpDot(const WeightView& w, int64_t row, const float* x) {
  const uint8_t* data = w.data;
  const uint8_t* scale = w.scale != nullptr ? w.scale + (row >> w.scale_shift) * (w.padded_cols / 32) : nullptr;
  float sum = 0;
  switch (w.format) {
    case device::WeightFormat::kFp4Row32:
      WarpDots<device::WeightFormat::kFp4Row32, float, 1>(data + row * (w.padded_cols / 2), scale, w.padded_cols, x, 0, &sum);
      break;
    case device::WeightFormat::kFp8Block32:
    case device::WeightFormat::kFp8Row32:
      WarpDots<device::WeightFormat::kFp8Block32, float, 1>(data + row * w.padded_cols, scale, w.padded_cols, x, 0, &sum);
      break;
    case device::WeightFormat::kBf16:
      WarpDots<device::WeightFormat::kBf16, float, 1>(data + row * w.padded_cols * 2, scale, w.padded_cols, x, 0, &sum);
      break;
    case device::WeightFormat::kF32:
      WarpDots<device::WeightFormat::kF32, float, 1>(data + row * w.padded_cols * 4, scale, w.padded_cols, x, 0, &sum);
      break;
  }
  return sum;
}
__device__ __forceinline__ float WarpDot(const WeightView& w, int64_t row, const uint16_t* x) {
  const uint8_t* data = w.data;
  const uint8_t* scale = w.scale != nullptr ? w.scale + (row >> w.scale_shift) * (w.padded_cols / 32) : nullptr;
  float sum = 0;
  if (w.format == device::WeightFormat::kFp4Row32) {
    WarpDots<device::WeightFormat::kFp4Row32, uint16_t, 1>(data + row * (w.padded_cols / 2), scale, w.padded_cols, x, 0, &sum);
  } else if (w.format == device::WeightFormat::kBf16) {
    WarpDots<device::WeightFormat::kBf16, uint16_t, 1>(data + row * w.padded_cols * 2, scale, w.padded_cols, x, 0, &sum);
  } else {
    WarpDots<device::WeightFormat::kFp8Block32, uint16_t, 1>(data + row * w.padded_cols, scale, w.padded_cols, x, 0, &sum);
  }
  return sum;
}

}  // namespace deepinfer::cuda
