// SPDX-License-Identifier: Apache-2.0
//
// Index scores for AVX2: lanes are heads, a dword holds four channels of a head. Key codes become unsigned bytes 2 v + 12,
// multiplied by the signed query bytes and summed in 16 bits over a block of 32 channels (at most 24 * 12 * 32 = 9216);
// 12 times the sum of the query codes is taken off again.
#include <immintrin.h>

#include "backends/cpu/kernels/index_kernels.h"

namespace deepinfer::cpu {
namespace {

#define DI_INLINE __attribute__((always_inline)) inline

// 16 bytes of codes -> 32 bytes 2 v + 12, even channels first, as IndexScorer::View::codes.
DI_INLINE void DecodeBlock(const uint8_t* codes, uint8_t* out) {
  const __m128i table = _mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0);
  const __m128i v = _mm_loadu_si128(reinterpret_cast<const __m128i*>(codes));
  const __m128i low = _mm_shuffle_epi8(table, _mm_and_si128(v, _mm_set1_epi8(15)));
  const __m128i high = _mm_shuffle_epi8(table, _mm_and_si128(_mm_srli_epi16(v, 4), _mm_set1_epi8(15)));
  _mm_store_si128(reinterpret_cast<__m128i*>(out), low);
  _mm_store_si128(reinterpret_cast<__m128i*>(out + 16), high);
}

DI_INLINE float ScaleOf(uint8_t byte) {
  const unsigned bits = byte == 0 ? 0x00400000u : static_cast<unsigned>(byte) << 23;
  float f;
  __builtin_memcpy(&f, &bits, sizeof(f));
  return f;
}

DI_INLINE float Fold(__m256 lanes) {
  // ((0+4) + (2+6)) + ((1+5) + (3+7))
  const __m128 a = _mm_add_ps(_mm256_castps256_ps128(lanes), _mm256_extractf128_ps(lanes, 1));
  const __m128 b = _mm_add_ps(a, _mm_movehl_ps(a, a));
  return _mm_cvtss_f32(_mm_add_ss(b, _mm_movehdup_ps(b)));
}

// sum0, sum1 += products of four channels of a key with sixteen heads, in one piece: left alone, the compiler takes the products
// of all keys before it adds the first and keeps the sums on the stack.
DI_INLINE void AddChannelProducts(const uint8_t* channels, __m256i query0, __m256i query1, __m256i* sum0, __m256i* sum1) {
  __m256i key, product;
  asm("vpbroadcastd %[channels], %[key]\n\t"
      "vpmaddubsw %[query0], %[key], %[product]\n\t"
      "vpmaddubsw %[query1], %[key], %[key]\n\t"
      "vpaddw %[product], %[sum0], %[sum0]\n\t"
      "vpaddw %[key], %[sum1], %[sum1]"
      : [sum0] "+x"(*sum0), [sum1] "+x"(*sum1), [key] "=&x"(key), [product] "=&x"(product)
      : [channels] "m"(*reinterpret_cast<const uint8_t(*)[4]>(channels)), [query0] "x"(query0), [query1] "x"(query1));
}

// Adds heads [h, h + 8 * kVecs) of kKeys keys to their lanes.
template <int kKeys, int kVecs>
DI_INLINE void AddHeads(const IndexScorer::View& q, int h, const uint8_t (*key)[kMaxIndexDim],
                        const float (*key_scale)[kMaxIndexDim / 32], __m256* lanes) {
  const __m256i ones = _mm256_set1_epi16(1);
  __m256 dot[kKeys][kVecs];
  for (int i = 0; i < kKeys; ++i)
    for (int v = 0; v < kVecs; ++v) dot[i][v] = _mm256_setzero_ps();
  for (int b = 0; b < q.dim / 32; ++b) {
    __m256i sum[kKeys][kVecs];
    for (int i = 0; i < kKeys; ++i)
      for (int v = 0; v < kVecs; ++v) sum[i][v] = _mm256_setzero_si256();
    const int8_t* codes = q.codes + (int64_t{b} * 8 * q.padded_heads + h) * 4;
#pragma GCC unroll 8
    for (int d = 0; d < 8; ++d) {
      __m256i query[kVecs];
      for (int v = 0; v < kVecs; ++v) {
        query[v] = _mm256_load_si256(reinterpret_cast<const __m256i*>(codes + int64_t{d} * q.padded_heads * 4 + v * 32));
      }
#pragma GCC unroll 4
      for (int i = 0; i < kKeys; ++i) {
        if constexpr (kVecs == 2) {
          AddChannelProducts(key[i] + b * 32 + d * 4, query[0], query[1], &sum[i][0], &sum[i][1]);
        } else {
          static_assert(kVecs == 1);
          int word;
          __builtin_memcpy(&word, key[i] + b * 32 + d * 4, 4);
          sum[i][0] = _mm256_add_epi16(sum[i][0], _mm256_maddubs_epi16(_mm256_set1_epi32(word), query[0]));
        }
      }
    }
    for (int v = 0; v < kVecs; ++v) {
      const __m256i offset = _mm256_load_si256(reinterpret_cast<const __m256i*>(q.offset + b * q.padded_heads + h + v * 8));
      const __m256 scale = _mm256_load_ps(q.scale + b * q.padded_heads + h + v * 8);
      for (int i = 0; i < kKeys; ++i) {
        const __m256i exact = _mm256_add_epi32(_mm256_madd_epi16(sum[i][v], ones), offset);
        // An integer times a power of two is exact, so the multiply-add rounds as a product and a sum do.
        dot[i][v] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(exact), _mm256_mul_ps(scale, _mm256_set1_ps(key_scale[i][b])), dot[i][v]);
      }
    }
  }
  for (int i = 0; i < kKeys; ++i) {
    for (int v = 0; v < kVecs; ++v) {
      const __m256 relu = _mm256_max_ps(dot[i][v], _mm256_setzero_ps());
      lanes[i] = _mm256_add_ps(lanes[i], _mm256_mul_ps(_mm256_load_ps(q.weights + h + v * 8), relu));
    }
  }
}

// kKeys keys against all heads, 16 at a time.
template <int kKeys>
DI_INLINE void ScoreKeys(const IndexScorer::View& q, const uint8_t* data, const uint8_t* scales, float* scores) {
  const int blocks = q.dim / 32;
  alignas(32) uint8_t key[kKeys][kMaxIndexDim];
  float key_scale[kKeys][kMaxIndexDim / 32];
  for (int i = 0; i < kKeys; ++i) {
    for (int b = 0; b < blocks; ++b) {
      DecodeBlock(data + i * (q.dim / 2) + b * 16, key[i] + b * 32);
      key_scale[i][b] = ScaleOf(scales[i * blocks + b]);
    }
  }
  __m256 lanes[kKeys];
  for (int i = 0; i < kKeys; ++i) lanes[i] = _mm256_setzero_ps();
  int h = 0;
  for (; h + 16 <= q.padded_heads; h += 16) AddHeads<kKeys, 2>(q, h, key, key_scale, lanes);
  if (h < q.padded_heads) AddHeads<kKeys, 1>(q, h, key, key_scale, lanes);
  for (int i = 0; i < kKeys; ++i) scores[i] = Fold(lanes[i]);
}

template <int kKeys>
DI_INLINE void ScoreFloatKeys(const IndexScorer::View& q, const float* keys, float* scores) {
  __m256 lanes[kKeys];
  for (int i = 0; i < kKeys; ++i) lanes[i] = _mm256_setzero_ps();
  for (int h = 0; h < q.padded_heads; h += 8) {
    __m256 dot[kKeys];
    for (int i = 0; i < kKeys; ++i) dot[i] = _mm256_setzero_ps();
    for (int d = 0; d < q.dim; ++d) {
      const __m256 query = _mm256_load_ps(q.values + int64_t{d} * q.padded_heads + h);
      for (int i = 0; i < kKeys; ++i) dot[i] = _mm256_add_ps(dot[i], _mm256_mul_ps(query, _mm256_set1_ps(keys[i * q.dim + d])));
    }
    for (int i = 0; i < kKeys; ++i) {
      const __m256 relu = _mm256_max_ps(dot[i], _mm256_setzero_ps());
      lanes[i] = _mm256_add_ps(lanes[i], _mm256_mul_ps(_mm256_load_ps(q.weights + h), relu));
    }
  }
  for (int i = 0; i < kKeys; ++i) scores[i] = Fold(lanes[i]);
}

}  // namespace

// Largest of each eight scores, 64 at a time.
void BlockMaxima8Avx2(const float* scores, int num_blocks, float* maxima) {
  int b = 0;
  for (; b + 8 <= num_blocks; b += 8) {
    const float* p = scores + int64_t{b} * 8;
    __m256 half[4];  // four lanes of block i, four of block i + 4
    for (int i = 0; i < 4; ++i) {
      const __m256 low = _mm256_loadu_ps(p + i * 8), high = _mm256_loadu_ps(p + (i + 4) * 8);
      half[i] = _mm256_max_ps(_mm256_permute2f128_ps(low, high, 0x20), _mm256_permute2f128_ps(low, high, 0x31));
    }
    __m256 pair[2];  // two lanes of blocks 0, 1 and 4, 5; of 2, 3 and 6, 7
    for (int i = 0; i < 2; ++i) {
      pair[i] = _mm256_max_ps(_mm256_shuffle_ps(half[2 * i], half[2 * i + 1], 0x44), _mm256_shuffle_ps(half[2 * i], half[2 * i + 1], 0xee));
    }
    _mm256_storeu_ps(maxima + b, _mm256_max_ps(_mm256_shuffle_ps(pair[0], pair[1], 0x88), _mm256_shuffle_ps(pair[0], pair[1], 0xdd)));
  }
  for (; b < num_blocks; ++b) {
    float best = scores[int64_t{b} * 8];
    for (int i = 1; i < 8; ++i) best = scores[int64_t{b} * 8 + i] > best ? scores[int64_t{b} * 8 + i] : best;
    maxima[b] = best;
  }
}

void IndexScoreFp4Avx2(const IndexScorer::View& q, const uint8_t* data, const uint8_t* scales, int num_keys, float* scores) {
  const int64_t data_bytes = q.dim / 2, scale_bytes = q.dim / 32;
  int i = 0;
  for (; i + 4 <= num_keys; i += 4) ScoreKeys<4>(q, data + i * data_bytes, scales + i * scale_bytes, scores + i);
  for (; i < num_keys; ++i) ScoreKeys<1>(q, data + i * data_bytes, scales + i * scale_bytes, scores + i);
}

void IndexScoreFloatAvx2(const IndexScorer::View& q, const float* keys, int num_keys, float* scores) {
  int i = 0;
  for (; i + 4 <= num_keys; i += 4) ScoreFloatKeys<4>(q, keys + int64_t{i} * q.dim, scores + i);
  for (; i < num_keys; ++i) ScoreFloatKeys<1>(q, keys + int64_t{i} * q.dim, scores + i);
}

}  // namespace deepinfer::cpu
