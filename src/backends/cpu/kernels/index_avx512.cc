// SPDX-License-Identifier: Apache-2.0
//
// Index scores for AVX-512 with VNNI: as index_avx2.cc, sixteen heads per vector and one instruction for four channels.
#include <immintrin.h>

#include "backends/cpu/kernels/index_kernels.h"

namespace deepinfer::cpu {
namespace {

#define DI_INLINE __attribute__((always_inline)) inline

DI_INLINE void DecodeBlock(const uint8_t* codes, uint8_t* out) {
  const __m128i table = _mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0);
  const __m128i v = _mm_loadu_si128(reinterpret_cast<const __m128i*>(codes));
  const __m128i low = _mm_shuffle_epi8(table, _mm_and_si128(v, _mm_set1_epi8(15)));
  const __m128i high = _mm_shuffle_epi8(table, _mm_and_si128(_mm_srli_epi16(v, 4), _mm_set1_epi8(15)));
  _mm_store_si128(reinterpret_cast<__m128i*>(out), _mm_unpacklo_epi8(low, high));
  _mm_store_si128(reinterpret_cast<__m128i*>(out + 16), _mm_unpackhi_epi8(low, high));
}

DI_INLINE float ScaleOf(uint8_t byte) {
  const unsigned bits = byte == 0 ? 0x00400000u : static_cast<unsigned>(byte) << 23;
  float f;
  __builtin_memcpy(&f, &bits, sizeof(f));
  return f;
}

DI_INLINE float Fold(__m256 lanes) {
  const __m128 a = _mm_add_ps(_mm256_castps256_ps128(lanes), _mm256_extractf128_ps(lanes, 1));
  const __m128 b = _mm_add_ps(a, _mm_movehl_ps(a, a));
  return _mm_cvtss_f32(_mm_add_ss(b, _mm_movehdup_ps(b)));
}

template <int kKeys>
DI_INLINE void ScoreKeys(const IndexScorer::View& q, const uint8_t* data, const uint8_t* scales, float* scores) {
  const int blocks = q.dim / 32;
  alignas(64) uint8_t key[kKeys][kMaxIndexDim];
  float key_scale[kKeys][kMaxIndexDim / 32];
  for (int i = 0; i < kKeys; ++i) {
    for (int b = 0; b < blocks; ++b) {
      DecodeBlock(data + i * (q.dim / 2) + b * 16, key[i] + b * 32);
      key_scale[i][b] = ScaleOf(scales[i * blocks + b]);
    }
  }
  __m256 lanes[kKeys];
  for (int i = 0; i < kKeys; ++i) lanes[i] = _mm256_setzero_ps();
  for (int h = 0; h < q.padded_heads; h += 16) {
    __m512 dot[kKeys];
    for (int i = 0; i < kKeys; ++i) dot[i] = _mm512_setzero_ps();
    for (int b = 0; b < blocks; ++b) {
      __m512i sum[kKeys];
      for (int i = 0; i < kKeys; ++i) sum[i] = _mm512_setzero_si512();
      const int8_t* codes = q.codes + (int64_t{b} * 8 * q.padded_heads + h) * 4;
#pragma GCC unroll 8
      for (int d = 0; d < 8; ++d) {
        const __m512i qv = _mm512_load_si512(codes + int64_t{d} * q.padded_heads * 4);
        for (int i = 0; i < kKeys; ++i) {
          int word;
          __builtin_memcpy(&word, key[i] + b * 32 + d * 4, 4);
          sum[i] = _mm512_dpbusd_epi32(sum[i], _mm512_set1_epi32(word), qv);
        }
      }
      const __m512i offset = _mm512_load_si512(q.offset + b * q.padded_heads + h);
      const __m512 scale = _mm512_load_ps(q.scale + b * q.padded_heads + h);
      for (int i = 0; i < kKeys; ++i) {
        const __m512 exact = _mm512_cvtepi32_ps(_mm512_sub_epi32(sum[i], offset));
        dot[i] = _mm512_add_ps(dot[i], _mm512_mul_ps(exact, _mm512_mul_ps(scale, _mm512_set1_ps(key_scale[i][b]))));
      }
    }
    for (int i = 0; i < kKeys; ++i) {
      const __m512 term = _mm512_mul_ps(_mm512_load_ps(q.weights + h), _mm512_max_ps(dot[i], _mm512_setzero_ps()));
      lanes[i] = _mm256_add_ps(lanes[i], _mm512_castps512_ps256(term));
      lanes[i] = _mm256_add_ps(lanes[i], _mm512_extractf32x8_ps(term, 1));
    }
  }
  for (int i = 0; i < kKeys; ++i) scores[i] = Fold(lanes[i]);
}

}  // namespace

void IndexScoreFp4Avx512(const IndexScorer::View& q, const uint8_t* data, const uint8_t* scales, int num_keys,
                         float* scores) {
  const int64_t data_bytes = q.dim / 2, scale_bytes = q.dim / 32;
  int i = 0;
  for (; i + 8 <= num_keys; i += 8) ScoreKeys<8>(q, data + i * data_bytes, scales + i * scale_bytes, scores + i);
  for (; i < num_keys; ++i) ScoreKeys<1>(q, data + i * data_bytes, scales + i * scale_bytes, scores + i);
}

}  // namespace deepinfer::cpu
