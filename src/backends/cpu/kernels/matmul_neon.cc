// SPDX-License-Identifier: Apache-2.0
#if defined(__aarch64__)
#include <arm_neon.h>

#include "backends/cpu/kernels/matmul_kernels.h"

namespace deepinfer::cpu {
namespace {

#include "backends/cpu/kernels/matmul_neon-inl.h"

struct F32 {
  static constexpr bool kPerRowScale = false;
  static constexpr bool kPerTileScale = false;
};

// float32 weights lie in memory the way a panel does.
void TileF32(const TileTask& task) {
  for (int i = 0; i < task.num_m * 8; ++i) vst1q_f32(task.out + i * 4, vdupq_n_f32(0));
  for (int64_t group = 0; group < task.num_groups; ++group) {
    PanelInputs<F32, FloatMath>(task, group, reinterpret_cast<const uint32_t*>(task.weights + group * 4096));
  }
}

}  // namespace

void QuantizeFp8GroupNeon(const float* x, float* out) {
  float32x4_t v[8];
  float32x4_t top = vdupq_n_f32(1e-4f);
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) {
    v[i] = vld1q_f32(x + i * 4);
    top = vmaxnmq_f32(top, vabsq_f32(v[i]));  // of a NaN and a number, the number
  }
  const float t = vmaxnmvq_f32(top) * (1.0f / 448.0f);
  uint32_t t_bits;
  __builtin_memcpy(&t_bits, &t, sizeof(t));
  const uint32_t exponent = ((t_bits - 1u) >> 23) + 1;  // of the scale, biased
  const float32x4_t scale = vreinterpretq_f32_u32(vdupq_n_u32(exponent << 23));
  const float32x4_t inverse = vreinterpretq_f32_u32(vdupq_n_u32((254 - exponent) << 23));
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) {
    const float32x4_t y = vmulq_f32(v[i], inverse);
    const float32x4_t magnitude = vminq_f32(vabsq_f32(y), vdupq_n_f32(448.0f));  // a NaN stays
    // Adding 2^(exponent + 20) leaves three mantissa bits, or multiples of the subnormal step 2^-9.
    const uint32x4_t bits = vandq_u32(vmaxq_u32(vreinterpretq_u32_f32(magnitude), vdupq_n_u32(0x3c800000)), vdupq_n_u32(0x7f800000));
    const float32x4_t anchor = vreinterpretq_f32_u32(vaddq_u32(bits, vdupq_n_u32(20u << 23)));
    const float32x4_t rounded = vsubq_f32(vaddq_f32(magnitude, anchor), anchor);
    const float32x4_t q = vbslq_f32(vdupq_n_u32(0x80000000u), y, rounded);
    vst1q_f32(out + i * 4, vmulq_f32(q, scale));
  }
}

const MatMulKernels kMatMulNeon = {Tile<Fp8, FloatMath>, Tile<Fp4, FloatMath>, Tile<Bf16, FloatMath>, TileF32};

}  // namespace deepinfer::cpu
#endif
