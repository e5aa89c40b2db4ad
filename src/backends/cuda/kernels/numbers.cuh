// SPDX-License-Identifier: Apache-2.0
//
// Number formats in kernels: the FP8 activation quantiser, SwiGLU, stores with the rounding a caller wants.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp8.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "backends/cuda/kernels/ptx.cuh"

namespace deepinfer::cuda {

// Exponent of the power of two that a block of activations with this largest magnitude is divided by (model.md 3).
__device__ __forceinline__ int QuantExponent(float amax) {
  const float t = fmaxf(amax, 1e-4f) * (1.0f / 448.0f);
  return static_cast<int>((__float_as_uint(t) - 1u) >> 23) + 1 - 127;
}
__device__ __forceinline__ float PowerOfTwo(int e) { return __uint_as_float(static_cast<uint32_t>(e + 127) << 23); }
// x rounded to e4m3 times 2^e.
__device__ __forceinline__ float FakeFp8(float x, int e) {
  const __nv_fp8_storage_t q = __nv_cvt_float_to_fp8(x * PowerOfTwo(-e), __NV_SATFINITE, __NV_E4M3);
  return __half2float(__half(__nv_cvt_fp8_to_halfraw(q, __NV_E4M3))) * PowerOfTwo(e);
}

__device__ __forceinline__ float Swiglu(float gate, float up, float limit, float weight) {
  if (limit > 0) {
    gate = fminf(gate, limit);
    up = fminf(fmaxf(up, -limit), limit);
  }
  return weight * (gate / (1.0f + expf(-gate)) * up);
}

// SwiGLU of 32 channels of one token, one a lane, quantised together.
__device__ __forceinline__ void StoreSwiglu(float gate, float up, float limit, float weight, bool round_bf16,
                                            __nv_bfloat16* to, int lane) {
  if (round_bf16) gate = RoundBf16(gate), up = RoundBf16(up);
  float a = Swiglu(gate, up, limit, weight);
  if (round_bf16) a = RoundBf16(a);
  float amax = fabsf(a);
#pragma unroll
  for (int d = 16; d > 0; d /= 2) amax = fmaxf(amax, __shfl_xor_sync(0xffffffffu, amax, d));
  to[lane] = __float2bfloat16_rn(FakeFp8(a, QuantExponent(amax)));
}

}  // namespace deepinfer::cuda
