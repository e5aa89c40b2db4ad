// SPDX-License-Identifier: Apache-2.0
//
// Index scores for AVX-512 with VNNI: lanes are heads, a dword holds four channels of a head, one instruction adds their
// products. Four keys against two vectors of heads at a time, so that each broadcast serves two products and each load of
// queries four; relu, head weights and the sums over heads follow in registers, and eight keys are folded together.
#include <immintrin.h>

#include "backends/cpu/kernels/index_kernels.h"

namespace deepinfer::cpu {
namespace {

#define DI_INLINE __attribute__((always_inline)) inline

constexpr int kKeys = 8;  // decoded together

struct Decoded {
  alignas(64) uint8_t bytes[kKeys][kMaxIndexDim];        // 2 v + 12; per 128 channels: even ones of all blocks, then the odd ones
  alignas(64) float scale[kKeys * kMaxIndexDim / 32];    // [key][block]
};

// Keys [0, count) of `data`; the others keep what they had.
DI_INLINE void Decode(int dim, const uint8_t* data, const uint8_t* scales, int count, Decoded* out) {
  // The lookup reads six bits of each byte, so all four quarters are the same.
  const __m512i table = _mm512_broadcast_i32x4(_mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0));
  for (int i = 0; i < count; ++i) {
    for (int c = 0; c < dim; c += 128) {
      const uint8_t* p = data + int64_t{i} * (dim / 2) + c / 2;
      const int left = (dim - c) / 2;
      const __m512i v = left >= 64 ? _mm512_loadu_si512(p) : _mm512_maskz_loadu_epi8((__mmask64{1} << left) - 1, p);
      _mm512_store_si512(out->bytes[i] + c, _mm512_permutexvar_epi8(v, table));
      _mm512_store_si512(out->bytes[i] + c + 64, _mm512_permutexvar_epi8(_mm512_srli_epi16(v, 4), table));
    }
  }
  const int num_scales = count * (dim / 32);
  for (int i = 0; i < num_scales; i += 16) {
    const int left = num_scales - i;
    const __mmask16 mask = left >= 16 ? 0xffff : static_cast<__mmask16>((1u << left) - 1);
    const __m512i bits = _mm512_slli_epi32(_mm512_cvtepu8_epi32(_mm_maskz_loadu_epi8(mask, scales + i)), 23);
    _mm512_store_si512(out->scale + i, _mm512_max_epu32(bits, _mm512_set1_epi32(0x00400000)));  // byte 0 is 2^-127
  }
}

// Adds heads [h, h + 16 * kVecs) of four decoded keys to their eight lanes.
template <int kVecs>
DI_INLINE void AddHeads(const IndexScorer::View& q, int h, const Decoded& keys, int key, __m256* lanes) {
  const int blocks = q.dim / 32;
  __m512 dot[4][kVecs];
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
#pragma GCC unroll 2
    for (int v = 0; v < kVecs; ++v) dot[i][v] = _mm512_setzero_ps();
  }
  for (int b = 0; b < blocks; ++b) {
    __m512i sum[4][kVecs];
#pragma GCC unroll 2
    for (int v = 0; v < kVecs; ++v) {
      const __m512i offset = _mm512_load_si512(q.offset + int64_t{b} * q.padded_heads + h + v * 16);
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) sum[i][v] = offset;
    }
    const int8_t* codes = q.codes + (int64_t{b} * 8 * q.padded_heads + h) * 4;
    const int at = b / 4 * 128 + b % 4 * 16;
#pragma GCC unroll 8
    for (int d = 0; d < 8; ++d) {
      __m512i query[kVecs];
#pragma GCC unroll 2
      for (int v = 0; v < kVecs; ++v) query[v] = _mm512_load_si512(codes + int64_t{d} * q.padded_heads * 4 + v * 64);
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) {
        int word;
        __builtin_memcpy(&word, keys.bytes[key + i] + at + d / 4 * 64 + d % 4 * 4, 4);
        const __m512i k = _mm512_set1_epi32(word);
#pragma GCC unroll 2
        for (int v = 0; v < kVecs; ++v) sum[i][v] = _mm512_dpbusd_epi32(sum[i][v], k, query[v]);
      }
    }
#pragma GCC unroll 2
    for (int v = 0; v < kVecs; ++v) {
      const __m512 scale = _mm512_load_ps(q.scale + int64_t{b} * q.padded_heads + h + v * 16);
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) {
        // An integer times a power of two is exact, so the multiply-add rounds as a product and a sum do.
        const __m512 unit = _mm512_mul_ps(scale, _mm512_set1_ps(keys.scale[(key + i) * blocks + b]));
        dot[i][v] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum[i][v]), unit, dot[i][v]);
      }
    }
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
#pragma GCC unroll 2
    for (int v = 0; v < kVecs; ++v) {
      const __m512 relu = _mm512_max_ps(dot[i][v], _mm512_setzero_ps());
      const __m512 term = _mm512_mul_ps(_mm512_load_ps(q.weights + h + v * 16), relu);
      lanes[i] = _mm256_add_ps(lanes[i], _mm512_castps512_ps256(term));
      lanes[i] = _mm256_add_ps(lanes[i], _mm512_extractf32x8_ps(term, 1));
    }
  }
}

// ((0+4) + (2+6)) + ((1+5) + (3+7)) of the lanes of eight keys.
DI_INLINE __m256 Fold(const __m256* lanes) {
  __m256 half[4];  // four sums of key i, four of key i + 4
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    half[i] = _mm256_add_ps(_mm256_permute2f128_ps(lanes[i], lanes[i + 4], 0x20), _mm256_permute2f128_ps(lanes[i], lanes[i + 4], 0x31));
  }
  __m256 pair[2];  // two sums of keys 0, 1 and 4, 5; of 2, 3 and 6, 7
#pragma GCC unroll 2
  for (int i = 0; i < 2; ++i) {
    pair[i] = _mm256_add_ps(_mm256_shuffle_ps(half[2 * i], half[2 * i + 1], 0x44), _mm256_shuffle_ps(half[2 * i], half[2 * i + 1], 0xee));
  }
  return _mm256_add_ps(_mm256_shuffle_ps(pair[0], pair[1], 0x88), _mm256_shuffle_ps(pair[0], pair[1], 0xdd));
}

}  // namespace

void IndexScoreFp4Avx512(const IndexScorer::View& q, const uint8_t* data, const uint8_t* scales, int num_keys,
                         float* scores) {
  const int64_t data_bytes = q.dim / 2, scale_bytes = q.dim / 32;
  Decoded keys;
  if (num_keys < kKeys) __builtin_memset(&keys, 0, sizeof(keys));
  for (int first = 0; first < num_keys; first += kKeys) {
    const int count = num_keys - first < kKeys ? num_keys - first : kKeys;
    const uint8_t* p = data + first * data_bytes;
    for (int i = 0; i < 8; ++i) _mm_prefetch(reinterpret_cast<const char*>(p + 2048 + i * 64), _MM_HINT_T0);
    Decode(q.dim, p, scales + first * scale_bytes, count, &keys);
    __m256 lanes[kKeys];
    for (int i = 0; i < kKeys; ++i) lanes[i] = _mm256_setzero_ps();
    for (int key = 0; key < count; key += 4) {
      int h = 0;
      for (; h + 32 <= q.padded_heads; h += 32) AddHeads<2>(q, h, keys, key, lanes + key);
      if (h < q.padded_heads) AddHeads<1>(q, h, keys, key, lanes + key);
    }
    const __m256 sums = Fold(lanes);
    if (count == kKeys) {
      _mm256_storeu_ps(scores + first, sums);
    } else {
      _mm256_mask_storeu_ps(scores + first, static_cast<__mmask8>((1u << count) - 1), sums);
    }
  }
}

}  // namespace deepinfer::cpu
