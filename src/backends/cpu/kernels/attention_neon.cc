// SPDX-License-Identifier: Apache-2.0
//
// The attention of attention.h for 64-bit ARM: dot products over lanes of four channels, sums over keys in ascending order.
// exp and its eight-lane sum have the order of the other instruction sets.
#if defined(__aarch64__)
#include <arm_neon.h>

#include "backends/cpu/kernels/attention.h"

namespace deepinfer::cpu {
namespace {

#define DI_INLINE __attribute__((always_inline)) inline

typedef float32x4_t V;

// ((0+4) + (2+6)) + ((1+5) + (3+7)) of lanes 0-3 and 4-7.
DI_INLINE float Fold8(V low, V high) {
  const V a = vaddq_f32(low, high);
  const float32x2_t b = vadd_f32(vget_low_f32(a), vget_high_f32(a));
  return vget_lane_f32(b, 0) + vget_lane_f32(b, 1);
}
DI_INLINE float Fold4(V a) {
  const float32x2_t b = vadd_f32(vget_low_f32(a), vget_high_f32(a));
  return vget_lane_f32(b, 0) + vget_lane_f32(b, 1);
}

// Exp8 of attention-inl.h, four lanes of it.
DI_INLINE V Exp4(V x) {
  const uint32x4_t is_tiny = vcltq_f32(x, vdupq_n_f32(-87.33654f));
  const uint32x4_t is_huge = vcgtq_f32(x, vdupq_n_f32(88.72283f));
  const V zero = vdupq_n_f32(0);
  x = vbslq_f32(vorrq_u32(is_tiny, is_huge), zero, x);
  const V shift = vdupq_n_f32(12582912.0f);
  const V n = vsubq_f32(vaddq_f32(vmulq_n_f32(x, 1.44269504f), shift), shift);
  const V r = vsubq_f32(vsubq_f32(x, vmulq_n_f32(n, 0.693359375f)), vmulq_n_f32(n, -2.12194440e-4f));
  V p = vaddq_f32(vmulq_n_f32(r, 1.9875691500e-4f), vdupq_n_f32(1.3981999507e-3f));
  p = vaddq_f32(vmulq_f32(p, r), vdupq_n_f32(8.3334519073e-3f));
  p = vaddq_f32(vmulq_f32(p, r), vdupq_n_f32(4.1665795894e-2f));
  p = vaddq_f32(vmulq_f32(p, r), vdupq_n_f32(1.6666665459e-1f));
  p = vaddq_f32(vmulq_f32(p, r), vdupq_n_f32(5.0000001201e-1f));
  p = vaddq_f32(vaddq_f32(vmulq_f32(p, vmulq_f32(r, r)), r), vdupq_n_f32(1.0f));
  const int32x4_t ni = vcvtq_s32_f32(n);
  const int32x4_t half = vshrq_n_s32(ni, 1);
  const int32x4_t bias = vdupq_n_s32(127);
  const V first = vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(half, bias), 23));
  const V second = vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(vsubq_s32(ni, half), bias), 23));
  p = vmulq_f32(vmulq_f32(p, first), second);
  p = vbslq_f32(is_tiny, zero, p);
  return vbslq_f32(is_huge, vdupq_n_f32(__builtin_inff()), p);
}

DI_INLINE V RoundBf16(V x) {
  const uint32x4_t u = vreinterpretq_u32_f32(x);
  const uint32x4_t odd = vandq_u32(vshrq_n_u32(u, 16), vdupq_n_u32(1));
  const uint32x4_t rounded = vandq_u32(vaddq_u32(vaddq_u32(u, vdupq_n_u32(0x7fff)), odd), vdupq_n_u32(0xffff0000u));
  return vbslq_f32(vceqq_f32(x, x), vreinterpretq_f32_u32(rounded), x);
}

// Scores of H heads and keys [key, key + 3).
template <int H>
DI_INLINE void ScoreBlock(const float* query, int64_t dim, const float* const* keys, int64_t key, float scale, float* scores,
                          int64_t score_stride) {
  const float* const key0 = keys[key];
  const float* const key1 = keys[key + 1];
  const float* const key2 = keys[key + 2];
  V acc[H][3];
#pragma GCC unroll 8
  for (int h = 0; h < H; ++h) acc[h][0] = acc[h][1] = acc[h][2] = vdupq_n_f32(0);
  for (int64_t c = 0; c < dim; c += 4) {
    const V k0 = vld1q_f32(key0 + c), k1 = vld1q_f32(key1 + c), k2 = vld1q_f32(key2 + c);
#pragma GCC unroll 8
    for (int h = 0; h < H; ++h) {
      const V q = vld1q_f32(query + h * dim + c);
      acc[h][0] = vfmaq_f32(acc[h][0], q, k0);
      acc[h][1] = vfmaq_f32(acc[h][1], q, k1);
      acc[h][2] = vfmaq_f32(acc[h][2], q, k2);
    }
  }
#pragma GCC unroll 8
  for (int h = 0; h < H; ++h) {
#pragma GCC unroll 3
    for (int i = 0; i < 3; ++i) scores[h * score_stride + key + i] = Fold4(acc[h][i]) * scale;
  }
}

// Scores of all heads and keys [first, last): a block of 12 keys stays in the first-level cache while all heads pass over it.
void ScoreRange(const AttendTask& task, int first, int last) {
  const int64_t dim = task.list.dim;
  const int64_t stride = task.score_stride;
  const int heads = task.num_heads;
  const int padded = PaddedKeys(last);
  for (int begin = first; begin < padded; begin += 12) {
    const int end = begin + 12 < padded ? begin + 12 : padded;
    int h = 0;
    for (; h + 8 <= heads; h += 8) {
      for (int key = begin; key < end; key += 3) {
        ScoreBlock<8>(task.query + h * dim, dim, task.list.keys, key, task.scale, task.scores + h * stride, stride);
      }
    }
    for (; h < heads; ++h) {
      for (int key = begin; key < end; key += 3) {
        ScoreBlock<1>(task.query + h * dim, dim, task.list.keys, key, task.scale, task.scores + h * stride, stride);
      }
    }
  }
}

void WeightRange(const AttendTask& task, int first, int last) {
  const int64_t n = task.list.num_keys;
  const int64_t n8 = (n + 7) / 8 * 8;
  for (int h = first; h < last; ++h) {
    float* z = task.scores + h * task.score_stride;
    float top = -1e30f;
    for (int64_t i = 0; i < n; ++i) top = z[i] > top ? z[i] : top;
    for (int64_t i = n; i < n8; ++i) z[i] = -1e38f;  // padding weighs nothing
    V sum[2] = {vdupq_n_f32(0), vdupq_n_f32(0)};
    for (int64_t i = 0; i < n8; i += 8) {
#pragma GCC unroll 2
      for (int part = 0; part < 2; ++part) {
        float* at = z + i + part * 4;
        const V p = Exp4(vsubq_f32(vld1q_f32(at), vdupq_n_f32(top)));
        sum[part] = vaddq_f32(sum[part], p);
        vst1q_f32(at, task.round_bf16 ? RoundBf16(p) : p);
      }
    }
    task.denominators[h] = Fold8(sum[0], sum[1]) + vgetq_lane_f32(Exp4(vdupq_n_f32(task.sink[h] - top)), 0);
  }
}

// Channels c..c+15 of H heads: sum over keys, ascending, of weight * key.
template <int H>
DI_INLINE void ValueBlock(const AttendTask& task, int h0, int64_t c) {
  const float* weights = task.scores + h0 * task.score_stride;
  const float* const* keys = task.list.keys;
  V acc[H][4];
#pragma GCC unroll 4
  for (int h = 0; h < H; ++h) acc[h][0] = acc[h][1] = acc[h][2] = acc[h][3] = vdupq_n_f32(0);
  for (int i = 0; i < task.list.num_keys; ++i) {
    const float* key = keys[i] + c;
    const V k[4] = {vld1q_f32(key), vld1q_f32(key + 4), vld1q_f32(key + 8), vld1q_f32(key + 12)};
#pragma GCC unroll 4
    for (int h = 0; h < H; ++h) {
      const float w = weights[h * task.score_stride + i];
#pragma GCC unroll 4
      for (int v = 0; v < 4; ++v) acc[h][v] = vfmaq_n_f32(acc[h][v], k[v], w);
    }
  }
#pragma GCC unroll 4
  for (int h = 0; h < H; ++h) {
    float* out = task.out + (h0 + h) * int64_t{task.list.dim} + c;
    const V denominator = vdupq_n_f32(task.denominators[h0 + h]);
#pragma GCC unroll 4
    for (int v = 0; v < 4; ++v) {
      const V y = vdivq_f32(acc[h][v], denominator);
      vst1q_f32(out + v * 4, task.round_bf16 ? RoundBf16(y) : y);
    }
  }
}

void ValueRange(const AttendTask& task, int first, int last) {
  if (task.list.num_keys == 0) {
    for (int h = 0; h < task.num_heads; ++h) {
      for (int64_t c = first; c < last; ++c) task.out[h * int64_t{task.list.dim} + c] = 0.0f;
    }
    return;
  }
  for (int64_t c = first; c < last; c += 16) {
    int h = 0;
    for (; h + 4 <= task.num_heads; h += 4) ValueBlock<4>(task, h, c);
    for (; h < task.num_heads; ++h) ValueBlock<1>(task, h, c);
  }
}

}  // namespace

const AttendKernels kAttendNeon = {ScoreRange, WeightRange, ValueRange};

}  // namespace deepinfer::cpu
#endif
