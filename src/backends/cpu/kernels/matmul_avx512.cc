// SPDX-License-Identifier: Apache-2.0
//
// Tile kernels for AVX-512 with VBMI and BF16. Inputs are bf16 pairs, weights are decoded to bf16 pairs (exact for FP4, FP8
// and BF16), products and sums by the bf16 dot product: per group a partial sum over ascending pairs from 0, then one
// multiply-add with the scale. The dot product flushes subnormals; no decoded weight is one (e4m3 subnormals are normal
// bf16 values). float32 weights take float32 inputs. Up to eight inputs: decoded once per group straight into the
// products; more: through a decoded panel of 2 KiB and a 12 x 32 register block. The order of sums is the same.
#include <immintrin.h>

#include "backends/cpu/kernels/matmul_kernels.h"

namespace deepinfer::cpu {
namespace {

#define DI_INLINE __attribute__((always_inline)) inline

DI_INLINE __m512bh AsBf16(__m512i v) { return (__m512bh)v; }

// A format gives kGroupBytes, kStepPairs (pairs per step of 128 bytes), its scale kind, and Decode, which turns the 64
// bytes of sixteen rows of one step into kStepPairs vectors of pairs.
struct Fp4 {
  static constexpr int kGroupBytes = 512;
  static constexpr int kStepPairs = 4;
  static constexpr bool kPerRowScale = true;
  static constexpr bool kPerTileScale = false;
  struct Tables {
    __m512i values;
  };
  DI_INLINE static Tables MakeTables() {
    // The lookup reads five bits of each word, the fifth being a neighbour's: both halves are the same.
    return {_mm512_broadcast_i64x4(_mm256_setr_epi16(0, 0x3f00, 0x3f80, 0x3fc0, 0x4000, 0x4040, 0x4080, 0x40c0, -0x8000, -0x4100,
                                                     -0x4080, -0x4040, -0x4000, -0x3fc0, -0x3f80, -0x3f40))};
  }
  DI_INLINE static void Decode(const Tables& t, const uint8_t* p, __m512i* w) {
    const __m512i v = _mm512_load_si512(p);
    w[0] = _mm512_permutexvar_epi16(v, t.values);
    w[1] = _mm512_permutexvar_epi16(_mm512_srli_epi16(v, 8), t.values);
    w[2] = _mm512_permutexvar_epi16(_mm512_srli_epi16(v, 4), t.values);
    w[3] = _mm512_permutexvar_epi16(_mm512_srli_epi16(v, 12), t.values);
  }
};

// bf16 bytes of the 128 e4m3 magnitudes. Codes below 8 are the subnormals m * 2^-9; 127 is NaN.
struct Fp8Bytes {
  alignas(64) uint8_t low[128];
  alignas(64) uint8_t high[128];
};
constexpr Fp8Bytes MakeFp8Bytes() {
  // m * 2^-9 for m = 1..7 as bf16.
  const uint16_t subnormals[8] = {0, 0x3b00, 0x3b80, 0x3bc0, 0x3c00, 0x3c20, 0x3c40, 0x3c60};
  Fp8Bytes t{};
  for (unsigned code = 0; code < 128; ++code) {
    unsigned bits = code < 8 ? subnormals[code] : (code << 4) + (120u << 7);
    if (code == 127) bits = 0x7fc0;
    t.low[code] = static_cast<uint8_t>(bits & 255u);
    t.high[code] = static_cast<uint8_t>(bits >> 8);
  }
  return t;
}
constexpr Fp8Bytes kFp8Bytes = MakeFp8Bytes();

struct Fp8 {
  static constexpr int kGroupBytes = 1024;
  static constexpr int kStepPairs = 2;
  static constexpr bool kPerRowScale = false;
  static constexpr bool kPerTileScale = true;
  struct Tables {
    __m512i low0, low1, high0, high1;
  };
  DI_INLINE static Tables MakeTables() {
    return {_mm512_load_si512(kFp8Bytes.low), _mm512_load_si512(kFp8Bytes.low + 64), _mm512_load_si512(kFp8Bytes.high),
            _mm512_load_si512(kFp8Bytes.high + 64)};
  }
  DI_INLINE static void Decode(const Tables& t, const uint8_t* p, __m512i* w) {
    const __m512i v = _mm512_load_si512(p);
    const __m512i low = _mm512_permutex2var_epi8(t.low0, v, t.low1);  // uses the low seven bits of each index
    __m512i high = _mm512_permutex2var_epi8(t.high0, v, t.high1);
    // high | (v & 0x80)
    high = _mm512_ternarylogic_epi32(high, v, _mm512_set1_epi8(-128), 0xf8);
    // Bytes 0 and 2 of a dword are the first pair, 1 and 3 the second.
    const __m512i byte = _mm512_set1_epi16(255);
    w[0] = _mm512_ternarylogic_epi32(byte, low, _mm512_slli_epi16(high, 8), 0xca);  // byte ? low : high << 8
    w[1] = _mm512_ternarylogic_epi32(byte, _mm512_srli_epi16(low, 8), high, 0xca);
  }
};

struct Bf16 {
  static constexpr int kGroupBytes = 2048;
  static constexpr int kStepPairs = 1;
  static constexpr bool kPerRowScale = false;
  static constexpr bool kPerTileScale = false;
  struct Tables {};
  DI_INLINE static Tables MakeTables() { return {}; }
  DI_INLINE static void Decode(const Tables&, const uint8_t* p, __m512i* w) { w[0] = _mm512_load_si512(p); }
};

// Scale of rows [16v, 16v + 16) in a group.
template <typename Format>
DI_INLINE __m512 GroupScale(const uint8_t* scales, int64_t group, int v) {
  if constexpr (Format::kPerRowScale) {
    const __m128i bytes = _mm_load_si128(reinterpret_cast<const __m128i*>(scales + group * 32 + v * 16));
    const __m512i bits = _mm512_slli_epi32(_mm512_cvtepu8_epi32(bytes), 23);
    return _mm512_castsi512_ps(_mm512_max_epu32(bits, _mm512_set1_epi32(0x00400000)));  // byte 0 is 2^-127
  } else if constexpr (Format::kPerTileScale) {
    return _mm512_set1_ps(reinterpret_cast<const float*>(scales)[group]);
  } else {
    return _mm512_setzero_ps();
  }
}

template <typename Format>
DI_INLINE __m512 AddGroup(__m512 partial, __m512 scale, __m512 sum) {
  if constexpr (Format::kPerRowScale || Format::kPerTileScale) return _mm512_fmadd_ps(partial, scale, sum);
  return _mm512_add_ps(sum, partial);
}

template <typename Format, int M>
void FewInputs(const TileTask& task) {
  constexpr int kSteps = 16 / Format::kStepPairs;
  const typename Format::Tables tables = Format::MakeTables();
  const uint32_t* x[M];
  for (int m = 0; m < M; ++m) x[m] = task.pairs + int64_t{task.row_idx[m]} * 16;
  const int64_t x_stride = task.group_rows * 16;
  __m512 sum[M][2];
#pragma GCC unroll 8
  for (int m = 0; m < M; ++m) sum[m][0] = sum[m][1] = _mm512_setzero_ps();
  const uint8_t* group_weights = task.weights;
  for (int64_t group = 0; group < task.num_groups; ++group) {
    __m512 partial[M][2];
#pragma GCC unroll 8
    for (int m = 0; m < M; ++m) partial[m][0] = partial[m][1] = _mm512_setzero_ps();
#pragma GCC unroll 4
    for (int step = 0; step < kSteps; ++step) {
      const uint8_t* p = group_weights + step * 128;
      _mm_prefetch(reinterpret_cast<const char*>(p + task.prefetch_bytes), _MM_HINT_T0);
      _mm_prefetch(reinterpret_cast<const char*>(p + task.prefetch_bytes + 64), _MM_HINT_T0);
#pragma GCC unroll 2
      for (int v = 0; v < 2; ++v) {
        __m512i w[Format::kStepPairs];
        Format::Decode(tables, p + v * 64, w);
#pragma GCC unroll 4
        for (int i = 0; i < Format::kStepPairs; ++i) {
#pragma GCC unroll 8
          for (int m = 0; m < M; ++m) {
            const __m512i xv = _mm512_set1_epi32(static_cast<int>(x[m][step * Format::kStepPairs + i]));
            partial[m][v] = _mm512_dpbf16_ps(partial[m][v], AsBf16(w[i]), AsBf16(xv));
          }
        }
      }
    }
#pragma GCC unroll 2
    for (int v = 0; v < 2; ++v) {
      const __m512 scale = GroupScale<Format>(task.scales, group, v);
#pragma GCC unroll 8
      for (int m = 0; m < M; ++m) sum[m][v] = AddGroup<Format>(partial[m][v], scale, sum[m][v]);
    }
    group_weights += Format::kGroupBytes;
    for (int m = 0; m < M; ++m) x[m] += x_stride;
  }
#pragma GCC unroll 8
  for (int m = 0; m < M; ++m) {
    _mm512_store_ps(task.out + m * 32, sum[m][0]);
    _mm512_store_ps(task.out + m * 32 + 16, sum[m][1]);
  }
}

// kM inputs x 32 rows over one decoded group (panel [16 pairs][32 rows]).
template <typename Format, int kM>
DI_INLINE void PanelBlock(const uint32_t* panel, const uint32_t* const* x, __m512 scale0, __m512 scale1, float* out) {
  __m512 a[kM][2];
#pragma GCC unroll 12
  for (int m = 0; m < kM; ++m) a[m][0] = a[m][1] = _mm512_setzero_ps();
#pragma GCC unroll 2
  for (int i = 0; i < 16; ++i) {
    const __m512i w0 = _mm512_load_si512(panel + i * 32);
    const __m512i w1 = _mm512_load_si512(panel + i * 32 + 16);
#pragma GCC unroll 12
    for (int m = 0; m < kM; ++m) {
      const __m512i xv = _mm512_set1_epi32(static_cast<int>(x[m][i]));
      a[m][0] = _mm512_dpbf16_ps(a[m][0], AsBf16(w0), AsBf16(xv));
      a[m][1] = _mm512_dpbf16_ps(a[m][1], AsBf16(w1), AsBf16(xv));
    }
  }
#pragma GCC unroll 12
  for (int m = 0; m < kM; ++m) {
    float* sum = out + m * 32;
    _mm512_store_ps(sum, AddGroup<Format>(a[m][0], scale0, _mm512_load_ps(sum)));
    _mm512_store_ps(sum + 16, AddGroup<Format>(a[m][1], scale1, _mm512_load_ps(sum + 16)));
  }
}

template <typename Format>
void ManyInputs(const TileTask& task) {
  constexpr int kSteps = 16 / Format::kStepPairs;
  const typename Format::Tables tables = Format::MakeTables();
  alignas(64) uint32_t panel[16 * 32];
  float* out = task.out;
  for (int i = 0; i < task.num_m * 2; ++i) _mm512_store_ps(out + i * 16, _mm512_setzero_ps());
  for (int64_t group = 0; group < task.num_groups; ++group) {
    const uint8_t* group_weights = task.weights + group * Format::kGroupBytes;
    for (int step = 0; step < kSteps; ++step) {
      const uint8_t* p = group_weights + step * 128;
      _mm_prefetch(reinterpret_cast<const char*>(p + task.prefetch_bytes), _MM_HINT_T0);
      _mm_prefetch(reinterpret_cast<const char*>(p + task.prefetch_bytes + 64), _MM_HINT_T0);
#pragma GCC unroll 2
      for (int v = 0; v < 2; ++v) {
        __m512i w[Format::kStepPairs];
        Format::Decode(tables, p + v * 64, w);
#pragma GCC unroll 4
        for (int i = 0; i < Format::kStepPairs; ++i) {
          _mm512_store_si512(panel + (step * Format::kStepPairs + i) * 32 + v * 16, w[i]);
        }
      }
    }
    const uint32_t* x = task.pairs + group * task.group_rows * 16;
    const __m512 s0 = GroupScale<Format>(task.scales, group, 0);
    const __m512 s1 = GroupScale<Format>(task.scales, group, 1);
    for (int m = 0; m < task.num_m;) {
      const int left = task.num_m - m;
      const int count = left >= 12 ? 12 : left >= 8 ? 8 : left >= 4 ? 4 : left >= 2 ? 2 : 1;
      const uint32_t* rows[12];
      for (int i = 0; i < count; ++i) rows[i] = x + int64_t{task.row_idx[m + i]} * 16;
      float* o = out + m * 32;
      switch (count) {
        case 12:
          PanelBlock<Format, 12>(panel, rows, s0, s1, o);
          break;
        case 8:
          PanelBlock<Format, 8>(panel, rows, s0, s1, o);
          break;
        case 4:
          PanelBlock<Format, 4>(panel, rows, s0, s1, o);
          break;
        case 2:
          PanelBlock<Format, 2>(panel, rows, s0, s1, o);
          break;
        default:
          PanelBlock<Format, 1>(panel, rows, s0, s1, o);
          break;
      }
      m += count;
    }
  }
}

template <typename Format>
void Tile(const TileTask& task) {
  switch (task.num_m) {
    case 1:
      return FewInputs<Format, 1>(task);
    case 2:
      return FewInputs<Format, 2>(task);
    case 3:
      return FewInputs<Format, 3>(task);
    case 4:
      return FewInputs<Format, 4>(task);
    case 5:
      return FewInputs<Format, 5>(task);
    case 6:
      return FewInputs<Format, 6>(task);
    default:
      return ManyInputs<Format>(task);
  }
}

// float32 weights and inputs: four inputs at a time over the stream.
void TileF32(const TileTask& task) {
  for (int m0 = 0; m0 < task.num_m; m0 += 4) {
    const int count = task.num_m - m0 < 4 ? task.num_m - m0 : 4;
    const float* x[4];
    // Absent inputs repeat the last one; their sums are not stored.
    for (int i = 0; i < 4; ++i) x[i] = task.values + int64_t{task.row_idx[m0 + (i < count ? i : count - 1)]} * 32;
    __m512 sum[4][2];
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) sum[i][0] = sum[i][1] = _mm512_setzero_ps();
    const float* w = reinterpret_cast<const float*>(task.weights);
    for (int64_t group = 0; group < task.num_groups; ++group) {
      __m512 partial[4][2];
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) partial[i][0] = partial[i][1] = _mm512_setzero_ps();
#pragma GCC unroll 4
      for (int k = 0; k < 32; ++k) {
        _mm_prefetch(reinterpret_cast<const char*>(w + k * 32) + task.prefetch_bytes, _MM_HINT_T0);
        _mm_prefetch(reinterpret_cast<const char*>(w + k * 32) + task.prefetch_bytes + 64, _MM_HINT_T0);
        const __m512 w0 = _mm512_load_ps(w + k * 32);
        const __m512 w1 = _mm512_load_ps(w + k * 32 + 16);
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i) {
          const __m512 xv = _mm512_set1_ps(x[i][k]);
          partial[i][0] = _mm512_fmadd_ps(w0, xv, partial[i][0]);
          partial[i][1] = _mm512_fmadd_ps(w1, xv, partial[i][1]);
        }
      }
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) {
        sum[i][0] = _mm512_add_ps(sum[i][0], partial[i][0]);
        sum[i][1] = _mm512_add_ps(sum[i][1], partial[i][1]);
        x[i] += task.group_rows * 32;
      }
      w += 32 * 32;
    }
    for (int i = 0; i < count; ++i) {
      _mm512_store_ps(task.out + (m0 + i) * 32, sum[i][0]);
      _mm512_store_ps(task.out + (m0 + i) * 32 + 16, sum[i][1]);
    }
  }
}

}  // namespace

const MatMulKernels kMatMulAvx512 = {Tile<Fp8>, Tile<Fp4>, Tile<Bf16>, TileF32};

}  // namespace deepinfer::cpu
