// SPDX-License-Identifier: Apache-2.0
//
// Number formats and block-wide sums of the device code. The formulas are those of the CPU backend's row ops (core/quantize.h is
// the definition); sums have one order that depends on the width of a row and nothing else. Compiled without contraction of a*b+c:
// a fused product is written as fmaf.
#pragma once

#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "device/types.h"

namespace deepinfer::cuda {

// device::KeyDataBytes and device::KeyRecordBytes for device code.
__device__ __forceinline__ int KeyBytes(device::KeyFormat format, int n) {
  return format == device::KeyFormat::kFloat ? 4 * n : format == device::KeyFormat::kMxFp8 ? n : n / 2;
}
__device__ __forceinline__ int RecordBytes(device::KeyFormat format, int n) {
  switch (format) {
    case device::KeyFormat::kFloat: return 4 * n;
    case device::KeyFormat::kMxFp8: return n + n / 32;
    case device::KeyFormat::kFp4E4m3: return n / 2 + n / 16;
    default: return n / 2 + n / 32;
  }
}

__device__ __forceinline__ float BitsToFloat(uint32_t b) { return __uint_as_float(b); }

// Infinities and quiet NaNs survive.
__device__ __forceinline__ float RoundBf16(float v) {
  uint32_t bits = __float_as_uint(v);
  bits += 0x7fffu + ((bits >> 16) & 1u);
  return __uint_as_float(bits & 0xffff0000u);
}
__device__ __forceinline__ float RoundIf(float v, bool round) { return round ? RoundBf16(v) : v; }

template <int kMantissa, int kMinExponent>
__device__ __forceinline__ float RoundMini(float v, float max) {
  constexpr uint32_t kDrop = 23 - kMantissa;
  constexpr uint32_t kMinNormal = static_cast<uint32_t>(127 + kMinExponent) << 23;
  const float magic = BitsToFloat((static_cast<uint32_t>(127 + kMinExponent - kMantissa + 23) << 23) | 0x400000u);
  const uint32_t bits = __float_as_uint(v);
  const uint32_t sign = bits & 0x80000000u, magnitude = bits & 0x7fffffffu;
  const uint32_t normal = (magnitude + ((1u << (kDrop - 1)) - 1u) + ((magnitude >> kDrop) & 1u)) & ~((1u << kDrop) - 1u);
  const float small = (BitsToFloat(magnitude) + magic) - magic;
  const uint32_t rounded = magnitude < kMinNormal ? __float_as_uint(small) : normal;
  const uint32_t limit = __float_as_uint(max);
  return BitsToFloat((rounded < limit ? rounded : limit) | sign);
}
__device__ __forceinline__ float RoundE4M3(float v) { return RoundMini<3, -6>(v, 448.0f); }
__device__ __forceinline__ float RoundE2M1(float v) { return RoundMini<1, 0>(v, 6.0f); }

__device__ __forceinline__ int CeilLog2(float x) { return static_cast<int>((__float_as_uint(x) - 1u) >> 23) + 1 - 127; }
__device__ __forceinline__ float Pow2(int e) { return BitsToFloat(static_cast<uint32_t>(e + 127) << 23); }
__device__ __forceinline__ float ScaleOf(uint32_t b) { return BitsToFloat(b == 0 ? 0x00400000u : (b == 255 ? 0x7fc00000u : b << 23)); }

__device__ __forceinline__ int Fp8Exponent(float amax) { return CeilLog2(fmaxf(amax, 1e-4f) * (1.0f / 448.0f)); }
__device__ __forceinline__ int Fp4Exponent(float amax) { return CeilLog2(fmaxf(amax, 0x1.8p-124f) * (1.0f / 6.0f)); }
__device__ __forceinline__ float Fp4ScaleE4M3(float amax) { return RoundE4M3(fmaxf(amax, 0x1.8p-7f) / 6.0f); }

__device__ __forceinline__ float DecodeE4M3(uint32_t b) {
  const uint32_t magnitude = b & 0x7fu;
  const float normal = BitsToFloat((magnitude << 20) + (120u << 23));
  const float small = static_cast<float>(magnitude) * 0x1p-9f;
  return BitsToFloat(__float_as_uint(magnitude < 8 ? small : normal) | ((b & 0x80u) << 24));
}
__device__ __forceinline__ float DecodeE2M1(uint32_t c) {
  const uint32_t magnitude = c & 7u;
  const float normal = BitsToFloat((magnitude << 22) + (126u << 23));
  const float small = static_cast<float>(magnitude) * 0.5f;
  return BitsToFloat(__float_as_uint(magnitude < 2 ? small : normal) | ((c & 8u) << 28));
}
// Four e4m3 and eight e2m1 values of a word, the lowest first, by the conversions of the hardware: exact.
__device__ __forceinline__ void DecodeE4M3x4(uint32_t word, float* out) {
  const float2 low = __half22float2(__half2(__nv_cvt_fp8x2_to_halfraw2(static_cast<__nv_fp8x2_storage_t>(word & 0xffffu), __NV_E4M3)));
  const float2 high = __half22float2(__half2(__nv_cvt_fp8x2_to_halfraw2(static_cast<__nv_fp8x2_storage_t>(word >> 16), __NV_E4M3)));
  out[0] = low.x, out[1] = low.y, out[2] = high.x, out[3] = high.y;
}
__device__ __forceinline__ void DecodeE2M1x8(uint32_t word, float* out) {
  // Codes j and j + 4 become a pair of halves: exponent and mantissa in place are the value times 2^-14, subnormals too.
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const uint32_t sign = (word << (12 - 4 * j)) & 0x80008000u;
    const int shift = 9 - 4 * j;
    const uint32_t rest = (shift >= 0 ? word << shift : word >> -shift) & 0x0e000e00u;
    const uint32_t bits = sign | rest;
    const float2 pair = __half22float2(__hmul2(reinterpret_cast<const __half2&>(bits), __half2(__half_raw{0x7400}, __half_raw{0x7400})));
    out[j] = pair.x, out[j + 4] = pair.y;
  }
}
// Codes of values that lie on the grid.
__device__ __forceinline__ uint32_t CodeE4M3(float v) {
  const uint32_t bits = __float_as_uint(v), magnitude = bits & 0x7fffffffu;
  const uint32_t normal = (magnitude - (120u << 23)) >> 20;
  const uint32_t small = static_cast<uint32_t>(static_cast<int32_t>(BitsToFloat(magnitude) * 512.0f));
  return (magnitude < 0x3c800000u ? small : normal) | ((bits >> 24) & 0x80u);
}
__device__ __forceinline__ uint32_t CodeE2M1(float v) {
  const uint32_t bits = __float_as_uint(v), magnitude = bits & 0x7fffffffu;
  const uint32_t normal = (magnitude - (126u << 23)) >> 22;
  const uint32_t small = static_cast<uint32_t>(static_cast<int32_t>(BitsToFloat(magnitude) * 2.0f));
  return (magnitude < 0x3f800000u ? small : normal) | ((bits >> 28) & 8u);
}

__device__ __forceinline__ float WarpSum(float v) {
#pragma unroll
  for (int d = 16; d > 0; d >>= 1) v += __shfl_xor_sync(0xffffffffu, v, d);
  return v;
}
// Over aligned runs of `kWidth` lanes.
template <int kWidth>
__device__ __forceinline__ float LaneMax(float v) {
#pragma unroll
  for (int d = kWidth / 2; d > 0; d >>= 1) v = fmaxf(v, __shfl_xor_sync(0xffffffffu, v, d));
  return v;
}

// The first `threads` threads of a block (whole warps) wait for each other; others may be elsewhere.
__device__ __forceinline__ void BlockSync(unsigned threads) { asm volatile("barrier.sync.aligned 1, %0;" ::"r"(threads) : "memory"); }

// Sum over the first `threads` threads of the block, the same bits in every one of them. `shared` has 33 floats; whole warps only.
// Warps that hold zeros change nothing.
__device__ __forceinline__ float BlockSum(float v, float* shared, unsigned threads) {
  v = WarpSum(v);
  const int warps = static_cast<int>(threads >> 5);
  if (warps == 1) return v;
  BlockSync(threads);
  if ((threadIdx.x & 31) == 0) shared[threadIdx.x >> 5] = v;
  BlockSync(threads);
  float sum = shared[0];
#pragma unroll 4
  for (int w = 1; w < warps; ++w) sum += shared[w];
  return sum;
}
__device__ __forceinline__ float BlockSum(float v, float* shared) { return BlockSum(v, shared, blockDim.x); }

// The value of one lane after fake quantisation of its group of 32 lanes to FP8.
__device__ __forceinline__ float FakeFp8Lane(float v) {
  const int e = Fp8Exponent(LaneMax<32>(fabsf(v)));
  return RoundE4M3(v * Pow2(-e)) * Pow2(e);
}
__device__ __forceinline__ float FakeFp4Pow2Lane(float v) {
  const int e = Fp4Exponent(LaneMax<32>(fabsf(v)));
  return RoundE2M1(v * Pow2(-e)) * Pow2(e);
}

// One row of an RMS norm by the first `threads` threads of the block; `shared` has 33 floats.
__device__ __forceinline__ void NormRow(const float* x, const float* norm, int64_t width, float eps, bool round, float* out, uint16_t* quantized,
                                        float* shared, unsigned threads) {
  float sum = 0;
  // Behind the sum nothing is waited for: the first values are there.
  const float first = threadIdx.x < width ? x[threadIdx.x] : 0.0f, first_norm = threadIdx.x < width ? norm[threadIdx.x] : 0.0f;
#pragma unroll 1
  for (int64_t c = threadIdx.x; c < width; c += threads) {
    const float v = c == threadIdx.x ? first : x[c];
    sum = fmaf(v, v, sum);
  }
  const float r = 1.0f / sqrtf(BlockSum(sum, shared, threads) / static_cast<float>(width) + eps);
#pragma unroll 1
  for (int64_t c = threadIdx.x; c < width; c += threads) {
    const float v = RoundIf(c == threadIdx.x ? first_norm * (first * r) : norm[c] * (x[c] * r), round);
    out[c] = v;
    if (quantized != nullptr) quantized[c] = static_cast<uint16_t>(__float_as_uint(FakeFp8Lane(v)) >> 16);
  }
}

// Rotates the pair of this lane and its neighbour by an angle with cosine `cs` and sine `sn`.
__device__ __forceinline__ float RotateLane(float v, int c, int begin, float cs, float sn, bool round) {
  const float other = __shfl_xor_sync(0xffffffffu, v, 1);
  if (c < begin) return v;
  return RoundIf(((c - begin) & 1) == 0 ? v * cs - other * sn : other * sn + v * cs, round);
}
// The same from a table: channel c of a vector whose first rotated channel is `begin`.
__device__ __forceinline__ float RotateLane(float v, int c, int begin, const float* cos, int half, float sign, bool round) {
  const int i = max(c - begin, 0) >> 1;
  return RotateLane(v, c, begin, cos[i], sign * cos[half + i], round);
}

// One channel of a cached record.
__device__ __forceinline__ float DecodeKeyChannel(device::KeyFormat format, const uint8_t* data, const uint8_t* scale, int c) {
  switch (format) {
    case device::KeyFormat::kFloat: return reinterpret_cast<const float*>(data)[c];
    case device::KeyFormat::kMxFp8: return DecodeE4M3(data[c]) * ScaleOf(scale[c >> 5]);
    case device::KeyFormat::kFp4E4m3: return DecodeE2M1((data[c >> 1] >> ((c & 1) * 4)) & 15u) * DecodeE4M3(scale[c >> 4]);
    case device::KeyFormat::kFp4Pow2: return DecodeE2M1((data[c >> 1] >> ((c & 1) * 4)) & 15u) * ScaleOf(scale[c >> 5]);
  }
  return 0.0f;
}

// Stores the value of channel c = lane's channel (whole warps hold 32 consecutive channels). Returns what was stored.
__device__ __forceinline__ float EncodeKeyChannel(device::KeyFormat format, float v, int c, uint8_t* data, uint8_t* scale) {
  const bool is_even = (c & 1) == 0;
  switch (format) {
    case device::KeyFormat::kFloat: reinterpret_cast<float*>(data)[c] = v; return v;
    case device::KeyFormat::kMxFp8: {
      const int e = Fp8Exponent(LaneMax<32>(fabsf(v)));
      if ((c & 31) == 0) scale[c >> 5] = static_cast<uint8_t>(e + 127);
      data[c] = static_cast<uint8_t>(CodeE4M3(v * Pow2(-e)));
      return v;
    }
    case device::KeyFormat::kFp4E4m3: {
      const float s = Fp4ScaleE4M3(LaneMax<16>(fabsf(v)));
      if ((c & 15) == 0) scale[c >> 4] = static_cast<uint8_t>(CodeE4M3(s));
      const float q = RoundE2M1(v / s);
      const uint32_t code = CodeE2M1(q), other = __shfl_xor_sync(0xffffffffu, code, 1);
      if (is_even) data[c >> 1] = static_cast<uint8_t>(code | (other << 4));
      return q * s;
    }
    case device::KeyFormat::kFp4Pow2: {
      const int e = Fp4Exponent(LaneMax<32>(fabsf(v)));
      if ((c & 31) == 0) scale[c >> 5] = static_cast<uint8_t>(e + 127);
      const uint32_t code = CodeE2M1(v * Pow2(-e)), other = __shfl_xor_sync(0xffffffffu, code, 1);
      if (is_even) data[c >> 1] = static_cast<uint8_t>(code | (other << 4));
      return v;
    }
  }
  return v;
}

}  // namespace deepinfer::cuda
