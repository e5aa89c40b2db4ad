// SPDX-License-Identifier: Apache-2.0
//
// Index scores for 64-bit ARM, included by index_neon.cc and index_neon_bf16.cc inside their own anonymous namespaces: lanes
// are heads, a 32-bit lane holds four channels of a head. With the dot product instruction a key's four channels are one
// lane of it; without, products of bytes are summed in 16 bits over a block of 32 channels (at most 24 * 12 * 8 = 2304).
// Integers are exact, so both give the bits of the scalar code.
// No include guard: one inclusion per translation unit.

#define DI_INLINE __attribute__((always_inline)) inline

// 16 bytes of codes -> 32 bytes 2 v, even channels first, as IndexScorer::View::codes.
DI_INLINE void DecodeBlock(const uint8_t* codes, int8_t* out) {
  const int8x16_t table = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
  const uint8x16_t v = vld1q_u8(codes);
  const int8x16_t low = vqtbl1q_s8(table, vandq_u8(v, vdupq_n_u8(15)));
  const int8x16_t high = vqtbl1q_s8(table, vshrq_n_u8(v, 4));
  vst1q_s8(out, low);
  vst1q_s8(out + 16, high);
}

DI_INLINE float ScaleOf(uint8_t byte) {
  const unsigned bits = byte == 0 ? 0x00400000u : static_cast<unsigned>(byte) << 23;
  float f;
  __builtin_memcpy(&f, &bits, sizeof(f));
  return f;
}

// ((0+4) + (2+6)) + ((1+5) + (3+7)) of lanes 0-3 and 4-7.
DI_INLINE float Fold(float32x4_t low, float32x4_t high) {
  const float32x4_t a = vaddq_f32(low, high);
  const float32x2_t b = vadd_f32(vget_low_f32(a), vget_high_f32(a));
  return vget_lane_f32(b, 0) + vget_lane_f32(b, 1);
}

// The products of a block of 32 channels of one key and four heads. query: [8][padded_heads][4], these heads' part.
DI_INLINE int32x4_t BlockDot(const int8_t* query, int64_t stride, const int8_t* key) {
#if defined(__ARM_FEATURE_DOTPROD)
  int32x4_t sum = vdupq_n_s32(0);
  const int8x16_t k0 = vld1q_s8(key), k1 = vld1q_s8(key + 16);
  sum = vdotq_laneq_s32(sum, vld1q_s8(query), k0, 0);
  sum = vdotq_laneq_s32(sum, vld1q_s8(query + stride), k0, 1);
  sum = vdotq_laneq_s32(sum, vld1q_s8(query + 2 * stride), k0, 2);
  sum = vdotq_laneq_s32(sum, vld1q_s8(query + 3 * stride), k0, 3);
  sum = vdotq_laneq_s32(sum, vld1q_s8(query + 4 * stride), k1, 0);
  sum = vdotq_laneq_s32(sum, vld1q_s8(query + 5 * stride), k1, 1);
  sum = vdotq_laneq_s32(sum, vld1q_s8(query + 6 * stride), k1, 2);
  return vdotq_laneq_s32(sum, vld1q_s8(query + 7 * stride), k1, 3);
#else
  int16x8_t low = vdupq_n_s16(0), high = vdupq_n_s16(0);
#pragma GCC unroll 8
  for (int d = 0; d < 8; ++d) {
    int32_t word;
    __builtin_memcpy(&word, key + d * 4, sizeof(word));
    const int8x16_t k = vreinterpretq_s8_s32(vdupq_n_s32(word));
    const int8x16_t q = vld1q_s8(query + d * stride);
    low = vmlal_s8(low, vget_low_s8(q), vget_low_s8(k));
    high = vmlal_high_s8(high, q, k);
  }
  return vpaddq_s32(vpaddlq_s16(low), vpaddlq_s16(high));
#endif
}

// lanes += weight * max(dot, 0) of eight heads.
template <int kKeys>
DI_INLINE void AddWeightedHeads(const float* weights, const float32x4_t (&dot)[kKeys][2], float32x4_t (&lanes)[kKeys][2]) {
#pragma GCC unroll 4
  for (int i = 0; i < kKeys; ++i) {
#pragma GCC unroll 2
    for (int v = 0; v < 2; ++v) {
      const float32x4_t relu = vmaxnmq_f32(dot[i][v], vdupq_n_f32(0));
      lanes[i][v] = vaddq_f32(lanes[i][v], vmulq_f32(vld1q_f32(weights + v * 4), relu));
    }
  }
}

// kKeys keys against all heads, eight at a time.
template <int kKeys>
DI_INLINE void ScoreKeys(const IndexScorer::View& q, const uint8_t* data, const uint8_t* scales, float* scores) {
  const int blocks = q.dim / 32;
  const int64_t stride = int64_t{q.padded_heads} * 4;
  int8_t key[kKeys][kMaxIndexDim];
  float key_scale[kKeys][kMaxIndexDim / 32];
  for (int i = 0; i < kKeys; ++i) {
    for (int b = 0; b < blocks; ++b) {
      DecodeBlock(data + i * (q.dim / 2) + b * 16, key[i] + b * 32);
      key_scale[i][b] = ScaleOf(scales[i * blocks + b]);
    }
  }
  float32x4_t lanes[kKeys][2];
  for (int i = 0; i < kKeys; ++i) lanes[i][0] = lanes[i][1] = vdupq_n_f32(0);
  for (int h = 0; h < q.padded_heads; h += 8) {
    float32x4_t dot[kKeys][2];
#pragma GCC unroll 4
    for (int i = 0; i < kKeys; ++i) dot[i][0] = dot[i][1] = vdupq_n_f32(0);
    for (int b = 0; b < blocks; ++b) {
#pragma GCC unroll 2
      for (int v = 0; v < 2; ++v) {
        const int8_t* codes = q.codes + int64_t{b} * 8 * stride + (h + v * 4) * 4;
        const float32x4_t scale = vld1q_f32(q.scale + b * q.padded_heads + h + v * 4);
#pragma GCC unroll 4
        for (int i = 0; i < kKeys; ++i) {
          const float32x4_t exact = vcvtq_f32_s32(BlockDot(codes, stride, key[i] + b * 32));
          dot[i][v] = vaddq_f32(dot[i][v], vmulq_f32(exact, vmulq_n_f32(scale, key_scale[i][b])));
        }
      }
    }
    AddWeightedHeads<kKeys>(q.weights + h, dot, lanes);
  }
  for (int i = 0; i < kKeys; ++i) scores[i] = Fold(lanes[i][0], lanes[i][1]);
}

DI_INLINE void ScoreFp4(const IndexScorer::View& q, const uint8_t* data, const uint8_t* scales, int num_keys, float* scores) {
  const int64_t data_bytes = q.dim / 2, scale_bytes = q.dim / 32;
  int i = 0;
  for (; i + 4 <= num_keys; i += 4) ScoreKeys<4>(q, data + i * data_bytes, scales + i * scale_bytes, scores + i);
  for (; i < num_keys; ++i) ScoreKeys<1>(q, data + i * data_bytes, scales + i * scale_bytes, scores + i);
}
