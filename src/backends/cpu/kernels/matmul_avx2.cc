// SPDX-License-Identifier: Apache-2.0
//
// Tile kernels for AVX2 and FMA: inputs as float32, weights decoded to float32 in registers, one fused multiply-add per
// product. Up to eight inputs: the weight stream is decoded once per block of rows straight into the products. More
// inputs: each group of 32 x 32 weights is decoded once into a panel of 4 KiB and a 6 x 16 register block runs over it.
// Both take the products of one output in the same order (matmul.h).
#include <immintrin.h>

#include "backends/cpu/kernels/matmul_kernels.h"

namespace deepinfer::cpu {
namespace {

#define DI_INLINE __attribute__((always_inline)) inline

// bf16 pairs of one row per dword -> the two float32 values.
DI_INLINE __m256 LowHalf(__m256i pairs) { return _mm256_castsi256_ps(_mm256_slli_epi32(pairs, 16)); }
DI_INLINE __m256 HighHalf(__m256i pairs) {
  return _mm256_castsi256_ps(_mm256_and_si256(pairs, _mm256_set1_epi32(static_cast<int>(0xffff0000u))));
}

// A format gives: kGroupBytes, kStepK (inputs per step of 128 bytes), kPerRowScale / kPerTileScale, and the decoding of the
// 32 bytes of eight rows of one step in three stages, so that callers can keep several blocks of rows in flight between
// them: Open<half>(p), then Pair<q>(opened) for inputs (half * kHalfK + 2q, + 1), then Low and High of the pair.
struct Fp4 {
  static constexpr int kGroupBytes = 512;
  static constexpr int kStepK = 8;
  static constexpr int kHalfK = 4;
  static constexpr bool kPerRowScale = true;
  static constexpr bool kPerTileScale = false;
  static constexpr bool kIsSmall = false;
  struct Opened {
    __m256i low_bytes, high_bytes;
  };
  template <int kHalf>
  DI_INLINE static Opened Open(const uint8_t* p) {
    // e2m1 as bf16: 0, 0x3f00, 0x3f80, 0x3fc0, 0x4000, 0x4040, 0x4080, 0x40c0 and the sign.
    const __m256i low_table = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(0, 0, -128, -64, 0, 64, -128, -64, 0, 0, -128, -64, 0, 64, -128, -64));
    const __m256i high_table = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(0, 0x3f, 0x3f, 0x3f, 0x40, 0x40, 0x40, 0x40, -128, -65, -65, -65, -64, -64, -64, -64));
    __m256i codes = _mm256_load_si256(reinterpret_cast<const __m256i*>(p));
    if constexpr (kHalf == 1) codes = _mm256_srli_epi16(codes, 4);
    codes = _mm256_and_si256(codes, _mm256_set1_epi8(15));
    return {_mm256_shuffle_epi8(low_table, codes), _mm256_shuffle_epi8(high_table, codes)};
  }
  template <int kQ>
  DI_INLINE static __m256i Pair(const Opened& o) {
    const __m256i byte = _mm256_set1_epi16(255);
    if constexpr (kQ == 0) return _mm256_or_si256(_mm256_and_si256(o.low_bytes, byte), _mm256_slli_epi16(o.high_bytes, 8));
    return _mm256_or_si256(_mm256_srli_epi16(o.low_bytes, 8), _mm256_andnot_si256(byte, o.high_bytes));
  }
  DI_INLINE static __m256 Low(__m256i pair) { return LowHalf(pair); }
  DI_INLINE static __m256 High(__m256i pair) { return HighHalf(pair); }
};

struct Fp8 {
  static constexpr int kGroupBytes = 1024;
  static constexpr int kStepK = 4;
  static constexpr int kHalfK = 4;
  static constexpr bool kPerRowScale = false;
  static constexpr bool kPerTileScale = true;
  static constexpr bool kIsSmall = false;
  using Opened = __m256i;
  template <int kHalf>
  DI_INLINE static Opened Open(const uint8_t* p) {
    return _mm256_load_si256(reinterpret_cast<const __m256i*>(p));
  }
  // Sign, then 7 bits that become exponent and mantissa of a bf16 value too small by 2^120; e4m3 subnormals come out as
  // float32 subnormals.
  template <int kQ>
  DI_INLINE static __m256i Pair(Opened o) {
    const __m256i words = kQ == 0 ? _mm256_slli_epi16(o, 8) : o;
    return _mm256_and_si256(_mm256_srai_epi16(words, 4), _mm256_set1_epi16(static_cast<short>(0x87f0)));
  }
  DI_INLINE static __m256 Low(__m256i pair) { return _mm256_mul_ps(LowHalf(pair), _mm256_set1_ps(0x1p120f)); }
  DI_INLINE static __m256 High(__m256i pair) { return _mm256_mul_ps(HighHalf(pair), _mm256_set1_ps(0x1p120f)); }
};

// The same without the factor 2^120: the inputs carry 2^110 of it and their group's scale the rest. Powers of two change no
// bit of a sum, so both forms give the same results.
struct Fp8Small : Fp8 {
  static constexpr bool kIsSmall = true;
  DI_INLINE static __m256 Low(__m256i pair) { return LowHalf(pair); }
  DI_INLINE static __m256 High(__m256i pair) { return HighHalf(pair); }
};

struct Bf16 {
  static constexpr int kGroupBytes = 2048;
  static constexpr int kStepK = 2;
  static constexpr int kHalfK = 2;
  static constexpr bool kPerRowScale = false;
  static constexpr bool kPerTileScale = false;
  static constexpr bool kIsSmall = false;
  using Opened = __m256i;
  template <int kHalf>
  DI_INLINE static Opened Open(const uint8_t* p) {
    return _mm256_load_si256(reinterpret_cast<const __m256i*>(p));
  }
  template <int kQ>
  DI_INLINE static __m256i Pair(Opened o) { return o; }
  DI_INLINE static __m256 Low(__m256i pair) { return LowHalf(pair); }
  DI_INLINE static __m256 High(__m256i pair) { return HighHalf(pair); }
};

struct F32 {
  static constexpr int kGroupBytes = 4096;
  static constexpr int kStepK = 1;
  static constexpr int kHalfK = 1;
  static constexpr bool kPerRowScale = false;
  static constexpr bool kPerTileScale = false;
  static constexpr bool kIsSmall = false;
  using Opened = __m256i;
  template <int kHalf>
  DI_INLINE static Opened Open(const uint8_t* p) {
    return _mm256_load_si256(reinterpret_cast<const __m256i*>(p));
  }
  template <int kQ>
  DI_INLINE static __m256i Pair(Opened o) { return o; }
  DI_INLINE static __m256 Low(__m256i pair) { return _mm256_castsi256_ps(pair); }
  DI_INLINE static __m256 High(__m256i pair) { return _mm256_castsi256_ps(pair); }
};

// All kStepK vectors of eight rows of one step.
template <typename Format>
DI_INLINE void DecodeStep(const uint8_t* p, __m256* w) {
  const auto decode_half = [&]<int kHalf>() __attribute__((always_inline)) {
    const typename Format::Opened o = Format::template Open<kHalf>(p);
    const auto decode_pair = [&]<int kQ>() __attribute__((always_inline)) {
      const __m256i pair = Format::template Pair<kQ>(o);
      constexpr int kAt = kHalf * Format::kHalfK + 2 * kQ;
      w[kAt] = Format::Low(pair);
      if constexpr (Format::kStepK > 1) w[kAt + 1] = Format::High(pair);
    };
    decode_pair.template operator()<0>();
    if constexpr (Format::kHalfK == 4) decode_pair.template operator()<1>();
  };
  decode_half.template operator()<0>();
  if constexpr (Format::kStepK > Format::kHalfK) decode_half.template operator()<1>();
}

// Scale of rows [8v, 8v + 8) in a group.
template <typename Format>
DI_INLINE __m256 GroupScale(const uint8_t* scales, int64_t group, int v) {
  if constexpr (Format::kPerRowScale) {
    const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(scales + group * 32 + v * 8));
    // Byte 0 means 2^-127, the subnormal 0x00400000.
    const __m256i bits = _mm256_slli_epi32(_mm256_cvtepu8_epi32(bytes), 23);
    return _mm256_castsi256_ps(_mm256_max_epu32(bits, _mm256_set1_epi32(0x00400000)));
  } else if constexpr (Format::kPerTileScale) {
    return _mm256_broadcast_ss(reinterpret_cast<const float*>(scales) + group);
  } else {
    return _mm256_setzero_ps();
  }
}

template <typename Format>
DI_INLINE __m256 AddGroup(__m256 partial, __m256 scale, __m256 sum) {
  if constexpr (Format::kPerRowScale || Format::kPerTileScale) return _mm256_fmadd_ps(partial, scale, sum);
  return _mm256_add_ps(sum, partial);
}

// The products of kVecs blocks of eight rows with one step's inputs, block after block for each input: neighbouring
// instructions belong to different sums, so that the scheduler never fills up with one chain of dependent multiply-adds.
template <typename Format, int M, int kVecs>
DI_INLINE void AddStep(const uint8_t* p, const float* const* x, __m256 (*partial)[kVecs]) {
  const auto add_half = [&]<int kHalf>() __attribute__((always_inline)) {
    typename Format::Opened o[kVecs];
#pragma GCC unroll 4
    for (int v = 0; v < kVecs; ++v) o[v] = Format::template Open<kHalf>(p + v * 32);
    const auto add_pair = [&]<int kQ>() __attribute__((always_inline)) {
      constexpr int kAt = kHalf * Format::kHalfK + 2 * kQ;
      __m256i pair[kVecs];
#pragma GCC unroll 4
      for (int v = 0; v < kVecs; ++v) {
        pair[v] = Format::template Pair<kQ>(o[v]);
        const __m256 w = Format::Low(pair[v]);
#pragma GCC unroll 4
        for (int m = 0; m < M; ++m) partial[m][v] = _mm256_fmadd_ps(w, _mm256_broadcast_ss(x[m] + kAt), partial[m][v]);
      }
      if constexpr (Format::kStepK > 1) {
#pragma GCC unroll 4
        for (int v = 0; v < kVecs; ++v) {
          const __m256 w = Format::High(pair[v]);
#pragma GCC unroll 4
          for (int m = 0; m < M; ++m) {
            partial[m][v] = _mm256_fmadd_ps(w, _mm256_broadcast_ss(x[m] + kAt + 1), partial[m][v]);
          }
        }
      }
    };
    add_pair.template operator()<0>();
    if constexpr (Format::kHalfK == 4) add_pair.template operator()<1>();
  };
  add_half.template operator()<0>();
  if constexpr (Format::kStepK > Format::kHalfK) add_half.template operator()<1>();
}

// A power of two near the largest of 32 inputs: with it they are at most 2^9, and 2^110 times that is finite.
DI_INLINE float InputScale(const TileTask& task, int64_t group, int m, const float* x) {
  constexpr float kSmallest = 0x1p-16f;
  float scale;
  if (task.integer_info != nullptr) {
    scale = task.integer_info[group * task.group_rows + task.row_idx[m]].scale * 0x1p7f;  // quantised: the scale itself
  } else {
    const __m256 mask = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff));
    __m256 top = _mm256_and_ps(_mm256_loadu_ps(x), mask);
    for (int i = 8; i < 32; i += 8) top = _mm256_max_ps(_mm256_and_ps(_mm256_loadu_ps(x + i), mask), top);
    __m128 t = _mm_max_ps(_mm256_castps256_ps128(top), _mm256_extractf128_ps(top, 1));
    t = _mm_max_ps(t, _mm_movehl_ps(t, t));
    t = _mm_max_ss(t, _mm_movehdup_ps(t));
    t = _mm_min_ss(_mm_and_ps(t, _mm_castsi128_ps(_mm_set1_epi32(0x7f800000))), _mm_set_ss(0x1p126f));  // infinities stay
    scale = _mm_cvtss_f32(t);
  }
  return scale < kSmallest ? kSmallest : scale;
}

// M inputs, kVecs vectors of eight rows at a time: M * kVecs sums in flight hide the latency of the multiply-adds.
template <typename Format, int M, int kVecs>
void FewInputs(const TileTask& task) {
  constexpr int kSteps = 32 / Format::kStepK;
  alignas(32) float scaled_x[M][32];  // of kIsSmall
  float unit[M];
  const float* group_x[M];
  for (int m = 0; m < M; ++m) group_x[m] = task.values + int64_t{task.row_idx[m]} * 32;
  const int64_t x_stride = task.group_rows * 32;
  const int64_t num_groups = task.num_groups;
  const int64_t prefetch = task.prefetch_bytes;
  float* out = task.out;
  const __m256 zero = _mm256_setzero_ps();
  for (int i = 0; i < M * 4; ++i) _mm256_store_ps(out + i * 8, zero);
  const uint8_t* group_weights = task.weights;
  for (int64_t group = 0; group < num_groups; ++group) {
    if constexpr (Format::kIsSmall) {
#pragma GCC unroll 4
      for (int m = 0; m < M; ++m) {
        const float scale = InputScale(task, group, m, group_x[m]);
        const __m256 factor = _mm256_set1_ps(0x1p110f / scale);
        unit[m] = scale * 0x1p10f;
#pragma GCC unroll 4
        for (int i = 0; i < 32; i += 8) _mm256_store_ps(scaled_x[m] + i, _mm256_mul_ps(_mm256_loadu_ps(group_x[m] + i), factor));
      }
    }
    for (int v0 = 0; v0 < 4; v0 += kVecs) {
      __m256 partial[M][kVecs];
#pragma GCC unroll 4
      for (int m = 0; m < M; ++m) {
#pragma GCC unroll 4
        for (int v = 0; v < kVecs; ++v) partial[m][v] = zero;
      }
      const float* x[M];
#pragma GCC unroll 4
      for (int m = 0; m < M; ++m) x[m] = Format::kIsSmall ? scaled_x[m] : group_x[m];
      const uint8_t* p = group_weights + v0 * 32;
#pragma GCC unroll 1
      for (int step = 0; step < kSteps; ++step) {
        _mm_prefetch(reinterpret_cast<const char*>(p + prefetch), _MM_HINT_T0);
        if constexpr (kVecs == 4) _mm_prefetch(reinterpret_cast<const char*>(p + prefetch + 64), _MM_HINT_T0);
        AddStep<Format, M, kVecs>(p, x, partial);
        p += 128;
#pragma GCC unroll 4
        for (int m = 0; m < M; ++m) x[m] += Format::kStepK;
      }
#pragma GCC unroll 4
      for (int v = 0; v < kVecs; ++v) {
        const __m256 scale = GroupScale<Format>(task.scales, group, v0 + v);
#pragma GCC unroll 4
        for (int m = 0; m < M; ++m) {
          float* sum = out + m * 32 + (v0 + v) * 8;
          const __m256 factor = Format::kIsSmall ? _mm256_mul_ps(scale, _mm256_set1_ps(unit[m])) : scale;
          _mm256_store_ps(sum, AddGroup<Format>(partial[m][v], factor, _mm256_load_ps(sum)));
        }
      }
    }
    group_weights += Format::kGroupBytes;
    for (int m = 0; m < M; ++m) group_x[m] += x_stride;
  }
}

// kM inputs x 16 rows over one decoded group (panel [32 k][32 rows], rows from `panel` on).
template <typename Format, int kM>
DI_INLINE void PanelBlock(const float* panel, const float* const* x, __m256 scale0, __m256 scale1, float* out) {
  __m256 a[kM][2];
#pragma GCC unroll 8
  for (int m = 0; m < kM; ++m) {
    a[m][0] = _mm256_setzero_ps();
    a[m][1] = _mm256_setzero_ps();
  }
#pragma GCC unroll 4
  for (int k = 0; k < 32; ++k) {
    const __m256 w0 = _mm256_load_ps(panel + k * 32);
    const __m256 w1 = _mm256_load_ps(panel + k * 32 + 8);
#pragma GCC unroll 8
    for (int m = 0; m < kM; ++m) {
      const __m256 xv = _mm256_broadcast_ss(x[m] + k);
      a[m][0] = _mm256_fmadd_ps(w0, xv, a[m][0]);
      a[m][1] = _mm256_fmadd_ps(w1, xv, a[m][1]);
    }
  }
#pragma GCC unroll 8
  for (int m = 0; m < kM; ++m) {
    float* sum = out + m * 32;
    _mm256_store_ps(sum, AddGroup<Format>(a[m][0], scale0, _mm256_load_ps(sum)));
    _mm256_store_ps(sum + 8, AddGroup<Format>(a[m][1], scale1, _mm256_load_ps(sum + 8)));
  }
}

template <typename Format>
void ManyInputs(const TileTask& task) {
  constexpr int kSteps = 32 / Format::kStepK;
  alignas(64) float panel[32 * 32];
  float* out = task.out;
  for (int i = 0; i < task.num_m * 4; ++i) _mm256_store_ps(out + i * 8, _mm256_setzero_ps());
  for (int64_t group = 0; group < task.num_groups; ++group) {
    const uint8_t* group_weights = task.weights + group * Format::kGroupBytes;
    for (int step = 0; step < kSteps; ++step) {
      _mm_prefetch(reinterpret_cast<const char*>(group_weights + step * 128 + task.prefetch_bytes), _MM_HINT_T0);
      _mm_prefetch(reinterpret_cast<const char*>(group_weights + step * 128 + task.prefetch_bytes + 64), _MM_HINT_T0);
#pragma GCC unroll 4
      for (int v = 0; v < 4; ++v) {
        __m256 w[Format::kStepK];
        DecodeStep<Format>(group_weights + step * 128 + v * 32, w);
#pragma GCC unroll 8
        for (int k = 0; k < Format::kStepK; ++k) _mm256_store_ps(panel + (step * Format::kStepK + k) * 32 + v * 8, w[k]);
      }
    }
    const float* x = task.values + group * task.group_rows * 32;
    const __m256 scale[4] = {GroupScale<Format>(task.scales, group, 0), GroupScale<Format>(task.scales, group, 1),
                             GroupScale<Format>(task.scales, group, 2), GroupScale<Format>(task.scales, group, 3)};
    for (int m = 0; m < task.num_m;) {
      const int count = task.num_m - m >= 6 ? 6 : task.num_m - m;
      const float* rows[6];
      for (int i = 0; i < count; ++i) rows[i] = x + int64_t{task.row_idx[m + i]} * 32;
      for (int half = 0; half < 2; ++half) {
        const float* p = panel + half * 16;
        float* o = out + m * 32 + half * 16;
        const __m256 s0 = scale[half * 2];
        const __m256 s1 = scale[half * 2 + 1];
        switch (count) {
          case 6:
            PanelBlock<Format, 6>(p, rows, s0, s1, o);
            break;
          case 5:
            PanelBlock<Format, 5>(p, rows, s0, s1, o);
            break;
          case 4:
            PanelBlock<Format, 4>(p, rows, s0, s1, o);
            break;
          case 3:
            PanelBlock<Format, 3>(p, rows, s0, s1, o);
            break;
          case 2:
            PanelBlock<Format, 2>(p, rows, s0, s1, o);
            break;
          default:
            PanelBlock<Format, 1>(p, rows, s0, s1, o);
            break;
        }
      }
      m += count;
    }
  }
}

// ---- FP4 weights, quantised inputs ------------------------------------------------------------------------------------
// Two thirds of the instructions of the float32 path: codes become bytes 2 w + 12 by one lookup, 16-bit words by a mask
// or a shift, and pairs of products by a multiply-add of words. 32 * 24 * 28672 fits 32 bits.

DI_INLINE __m256i WeightBytes(__m256i codes) {
  const __m256i table =
      _mm256_broadcastsi128_si256(_mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0));
  return _mm256_shuffle_epi8(table, _mm256_and_si256(codes, _mm256_set1_epi8(15)));
}
template <int kQ>
DI_INLINE __m256i WeightWords(__m256i bytes) {
  if constexpr (kQ == 0) return _mm256_and_si256(bytes, _mm256_set1_epi16(255));
  return _mm256_srli_epi16(bytes, 8);
}
DI_INLINE __m256i BroadcastPair(const int16_t* pair) {
  int word;
  __builtin_memcpy(&word, pair, sizeof(word));
  return _mm256_set1_epi32(word);
}

// sum0, sum1 += products of one pair of inputs with two blocks of eight rows. In one piece, because the compiler otherwise
// takes all products of a step before it adds the first, and keeps the sums on the stack.
DI_INLINE void AddPairProducts(const int16_t* pair, __m256i w0, __m256i w1, __m256i* sum0, __m256i* sum1) {
  __m256i x, product;
  asm("vpbroadcastd %[pair], %[x]\n\t"
      "vpmaddwd %[x], %[w0], %[product]\n\t"
      "vpmaddwd %[x], %[w1], %[x]\n\t"
      "vpaddd %[product], %[sum0], %[sum0]\n\t"
      "vpaddd %[x], %[sum1], %[sum1]"
      : [sum0] "+x"(*sum0), [sum1] "+x"(*sum1), [x] "=&x"(x), [product] "=&x"(product)
      : [pair] "m"(*reinterpret_cast<const int16_t(*)[2]>(pair)), [w0] "x"(w0), [w1] "x"(w1));
}

// Sums of one group for M inputs and kVecs blocks of eight rows, from `digits` (32 words of each input).
template <int M, int kVecs>
DI_INLINE void AddIntegerGroup(const uint8_t* p, const int16_t* const* digits, __m256i (*sum)[kVecs], int64_t prefetch) {
#pragma GCC unroll 1
  for (int step = 0; step < 4; ++step) {
    _mm_prefetch(reinterpret_cast<const char*>(p + prefetch), _MM_HINT_T0);
    if constexpr (kVecs == 4) _mm_prefetch(reinterpret_cast<const char*>(p + prefetch + 64), _MM_HINT_T0);
    const auto add = [&]<int kHalf>() __attribute__((always_inline)) {
      __m256i bytes[kVecs];
#pragma GCC unroll 4
      for (int v = 0; v < kVecs; ++v) {
        __m256i codes = _mm256_load_si256(reinterpret_cast<const __m256i*>(p + v * 32));
        if constexpr (kHalf == 1) codes = _mm256_srli_epi16(codes, 4);
        bytes[v] = WeightBytes(codes);
      }
      const auto add_pair = [&]<int kQ>() __attribute__((always_inline)) {
        constexpr int kAt = kHalf * 4 + kQ * 2;
        if constexpr (M == 1) {
          const __m256i x = BroadcastPair(digits[0] + step * 8 + kAt);
#pragma GCC unroll 4
          for (int v = 0; v < kVecs; ++v) sum[0][v] = _mm256_add_epi32(sum[0][v], _mm256_madd_epi16(WeightWords<kQ>(bytes[v]), x));
        } else {
          static_assert(kVecs == 2);
          const __m256i w0 = WeightWords<kQ>(bytes[0]), w1 = WeightWords<kQ>(bytes[1]);
#pragma GCC unroll 4
          for (int m = 0; m < M; ++m) AddPairProducts(digits[m] + step * 8 + kAt, w0, w1, &sum[m][0], &sum[m][1]);
        }
      };
      add_pair.template operator()<0>();
      add_pair.template operator()<1>();
    };
    add.template operator()<0>();
    add.template operator()<1>();
    p += 128;
  }
}

// Adds the products of one input's low digits with 32 rows to their own sums.
__attribute__((noinline)) void AddLowDigits(const uint8_t* group_weights, const uint8_t* scales, int64_t group,
                                            const IntegerBlock& block, const IntegerBlockInfo& info, float* low_sums) {
  const __m256 x_scale = _mm256_set1_ps(info.scale * 0.125f);
  for (int v = 0; v < 4; ++v) {
    __m256i low[1][1] = {{_mm256_set1_epi32(info.low_bias)}};
    const int16_t* digits[1] = {block.low};
    AddIntegerGroup<1, 1>(group_weights + v * 32, digits, low, 0);
    const __m256 scale = _mm256_mul_ps(GroupScale<Fp4>(scales, group, v), x_scale);
    float* sum = low_sums + v * 8;
    _mm256_store_ps(sum, _mm256_fmadd_ps(_mm256_cvtepi32_ps(low[0][0]), scale, _mm256_load_ps(sum)));
  }
}

// Adds the low sums to the outputs of inputs that had low digits in any group.
template <int M>
DI_INLINE void AddLowSums(const bool* has_low, const float* low_sums, float* out) {
  for (int m = 0; m < M; ++m) {
    if (!has_low[m]) continue;
    for (int i = 0; i < 32; i += 8) {
      _mm256_store_ps(out + m * 32 + i, _mm256_add_ps(_mm256_load_ps(out + m * 32 + i), _mm256_load_ps(low_sums + m * 32 + i)));
    }
  }
}

template <int M, int kVecs>
void FewIntegerInputs(const TileTask& task) {
  const int64_t num_groups = task.num_groups;
  float* out = task.out;
  alignas(32) float low_sums[M * 32];
  bool has_low[M] = {};
  for (int i = 0; i < M * 4; ++i) _mm256_store_ps(low_sums + i * 8, _mm256_setzero_ps());
  for (int i = 0; i < M * 4; ++i) _mm256_store_ps(out + i * 8, _mm256_setzero_ps());
  const uint8_t* group_weights = task.weights;
  for (int64_t group = 0; group < num_groups; ++group) {
    const IntegerBlock* blocks = task.integers + group * task.group_rows;
    const IntegerBlockInfo* infos = task.integer_info + group * task.group_rows;
    const int16_t* digits[M];
#pragma GCC unroll 4
    for (int m = 0; m < M; ++m) digits[m] = blocks[task.row_idx[m]].high;
    for (int v0 = 0; v0 < 4; v0 += kVecs) {
      __m256i sum[M][kVecs];
#pragma GCC unroll 4
      for (int m = 0; m < M; ++m) {
        const __m256i bias = _mm256_set1_epi32(infos[task.row_idx[m]].high_bias);
#pragma GCC unroll 4
        for (int v = 0; v < kVecs; ++v) sum[m][v] = bias;
      }
      AddIntegerGroup<M, kVecs>(group_weights + v0 * 32, digits, sum, task.prefetch_bytes);
#pragma GCC unroll 4
      for (int m = 0; m < M; ++m) {
        const __m256 x_scale = _mm256_set1_ps(infos[task.row_idx[m]].scale);
#pragma GCC unroll 4
        for (int v = 0; v < kVecs; ++v) {
          float* total = out + m * 32 + (v0 + v) * 8;
          const __m256 scale = _mm256_mul_ps(GroupScale<Fp4>(task.scales, group, v0 + v), x_scale);
          _mm256_store_ps(total, _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum[m][v]), scale, _mm256_load_ps(total)));
        }
      }
    }
    for (int m = 0; m < M; ++m) {
      const int32_t row = task.row_idx[m];
      if (__builtin_expect(infos[row].has_low, 0)) {
        has_low[m] = true;
        AddLowDigits(group_weights, task.scales, group, blocks[row], infos[row], low_sums + m * 32);
      }
    }
    group_weights += Fp4::kGroupBytes;
  }
  AddLowSums<M>(has_low, low_sums, out);
}

// kM inputs x 16 rows over one decoded group (panel [16 pairs][32 rows] of words 2 w + 12, rows from `panel` on).
template <int kM>
DI_INLINE void IntegerPanelBlock(const uint8_t* panel, const IntegerBlock* const* blocks,
                                 const IntegerBlockInfo* const* infos, __m256 scale0, __m256 scale1, float* out) {
  __m256i a[kM][2];
#pragma GCC unroll 8
  for (int m = 0; m < kM; ++m) a[m][0] = a[m][1] = _mm256_set1_epi32(infos[m]->high_bias);
#pragma GCC unroll 4
  for (int i = 0; i < 16; ++i) {
    const __m256i w0 = _mm256_load_si256(reinterpret_cast<const __m256i*>(panel + i * 128));
    const __m256i w1 = _mm256_load_si256(reinterpret_cast<const __m256i*>(panel + i * 128 + 32));
#pragma GCC unroll 8
    for (int m = 0; m < kM; ++m) AddPairProducts(blocks[m]->high + 2 * i, w0, w1, &a[m][0], &a[m][1]);
  }
#pragma GCC unroll 8
  for (int m = 0; m < kM; ++m) {
    const __m256 x_scale = _mm256_set1_ps(infos[m]->scale);
    float* sum = out + m * 32;
    _mm256_store_ps(sum, _mm256_fmadd_ps(_mm256_cvtepi32_ps(a[m][0]), _mm256_mul_ps(scale0, x_scale), _mm256_load_ps(sum)));
    _mm256_store_ps(sum + 8,
                    _mm256_fmadd_ps(_mm256_cvtepi32_ps(a[m][1]), _mm256_mul_ps(scale1, x_scale), _mm256_load_ps(sum + 8)));
  }
}

void ManyIntegerInputs(const TileTask& task) {
  alignas(64) uint8_t panel[16 * 128];
  alignas(32) float low_sums[kMaxTileM * 32];
  bool has_low[kMaxTileM] = {};
  float* out = task.out;
  for (int i = 0; i < task.num_m * 4; ++i) _mm256_store_ps(low_sums + i * 8, _mm256_setzero_ps());
  for (int i = 0; i < task.num_m * 4; ++i) _mm256_store_ps(out + i * 8, _mm256_setzero_ps());
  for (int64_t group = 0; group < task.num_groups; ++group) {
    const uint8_t* group_weights = task.weights + group * Fp4::kGroupBytes;
    for (int step = 0; step < 4; ++step) {
      _mm_prefetch(reinterpret_cast<const char*>(group_weights + step * 128 + task.prefetch_bytes), _MM_HINT_T0);
      _mm_prefetch(reinterpret_cast<const char*>(group_weights + step * 128 + task.prefetch_bytes + 64), _MM_HINT_T0);
#pragma GCC unroll 4
      for (int v = 0; v < 4; ++v) {
        const __m256i codes = _mm256_load_si256(reinterpret_cast<const __m256i*>(group_weights + step * 128 + v * 32));
        const __m256i low = WeightBytes(codes);
        const __m256i high = WeightBytes(_mm256_srli_epi16(codes, 4));
        uint8_t* to = panel + step * 4 * 128 + v * 32;
        _mm256_store_si256(reinterpret_cast<__m256i*>(to), WeightWords<0>(low));
        _mm256_store_si256(reinterpret_cast<__m256i*>(to + 128), WeightWords<1>(low));
        _mm256_store_si256(reinterpret_cast<__m256i*>(to + 256), WeightWords<0>(high));
        _mm256_store_si256(reinterpret_cast<__m256i*>(to + 384), WeightWords<1>(high));
      }
    }
    const IntegerBlock* all_blocks = task.integers + group * task.group_rows;
    const IntegerBlockInfo* all_infos = task.integer_info + group * task.group_rows;
    const __m256 scale[4] = {GroupScale<Fp4>(task.scales, group, 0), GroupScale<Fp4>(task.scales, group, 1),
                             GroupScale<Fp4>(task.scales, group, 2), GroupScale<Fp4>(task.scales, group, 3)};
    for (int m = 0; m < task.num_m;) {
      const int left = task.num_m - m;
      const int count = left >= 6 ? 6 : left;
      const IntegerBlock* blocks[6];
      const IntegerBlockInfo* infos[6];
      for (int i = 0; i < count; ++i) {
        blocks[i] = all_blocks + task.row_idx[m + i];
        infos[i] = all_infos + task.row_idx[m + i];
        // Of the next group: the inputs of a tile are more than the second-level cache holds.
        _mm_prefetch(reinterpret_cast<const char*>((blocks[i] + task.group_rows)->high), _MM_HINT_T0);
      }
      for (int half = 0; half < 2; ++half) {
        const uint8_t* p = panel + half * 64;
        float* o = out + m * 32 + half * 16;
        const __m256 s0 = scale[half * 2];
        const __m256 s1 = scale[half * 2 + 1];
        switch (count) {
          case 6:
            IntegerPanelBlock<6>(p, blocks, infos, s0, s1, o);
            break;
          case 5:
            IntegerPanelBlock<5>(p, blocks, infos, s0, s1, o);
            break;
          case 4:
            IntegerPanelBlock<4>(p, blocks, infos, s0, s1, o);
            break;
          case 3:
            IntegerPanelBlock<3>(p, blocks, infos, s0, s1, o);
            break;
          case 2:
            IntegerPanelBlock<2>(p, blocks, infos, s0, s1, o);
            break;
          default:
            IntegerPanelBlock<1>(p, blocks, infos, s0, s1, o);
            break;
        }
      }
      for (int i = 0; i < count; ++i) {
        if (__builtin_expect(infos[i]->has_low, 0)) {
          has_low[m + i] = true;
          AddLowDigits(group_weights, task.scales, group, *blocks[i], *infos[i], low_sums + (m + i) * 32);
        }
      }
      m += count;
    }
  }
  for (int m = 0; m < task.num_m; ++m) AddLowSums<1>(has_low + m, low_sums + m * 32, out + m * 32);
}

// `Few` is the form of the format that FewInputs takes.
template <typename Format, typename Few = Format>
void Tile(const TileTask& task) {
  switch (task.num_m) {
    case 1:
      return FewInputs<Few, 1, 4>(task);
    case 2:
      return FewInputs<Few, 2, 2>(task);
    case 3:
      return FewInputs<Few, 3, 2>(task);
    case 4:
      return FewInputs<Few, 4, 2>(task);
    default:
      return ManyInputs<Format>(task);
  }
}

}  // namespace

void QuantizeFp8GroupAvx2(const float* x, float* out, IntegerBlock* block, IntegerBlockInfo* info) {
  const __m256 magnitude_mask = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff));
  __m256 v[4];
  __m256 top = _mm256_set1_ps(1e-4f);
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    v[i] = _mm256_loadu_ps(x + i * 8);
    top = _mm256_max_ps(_mm256_and_ps(v[i], magnitude_mask), top);  // a NaN gives the second operand
  }
  __m128 m = _mm_max_ps(_mm256_castps256_ps128(top), _mm256_extractf128_ps(top, 1));
  m = _mm_max_ps(m, _mm_movehl_ps(m, m));
  m = _mm_max_ss(m, _mm_movehdup_ps(m));
  const float t = _mm_cvtss_f32(m) * (1.0f / 448.0f);
  uint32_t t_bits;
  __builtin_memcpy(&t_bits, &t, sizeof(t));
  const int exponent = static_cast<int>((t_bits - 1u) >> 23) + 1;  // of the scale, biased
  const __m256 scale = _mm256_castsi256_ps(_mm256_set1_epi32(exponent << 23));
  const __m256 inverse = _mm256_castsi256_ps(_mm256_set1_epi32((254 - exponent) << 23));
  __m256i high_sum = _mm256_setzero_si256(), low_sum = _mm256_setzero_si256();
  __m256 nan = _mm256_setzero_ps();
  __m256i high[4], low[4];
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    const __m256 y = _mm256_mul_ps(v[i], inverse);
    // NaN is the second operand, so that it stays.
    const __m256 magnitude = _mm256_min_ps(_mm256_set1_ps(448.0f), _mm256_and_ps(y, magnitude_mask));
    const __m256i bits =
        _mm256_and_si256(_mm256_max_epu32(_mm256_castps_si256(magnitude), _mm256_set1_epi32(0x3c800000)), _mm256_set1_epi32(0x7f800000));
    const __m256 anchor = _mm256_castsi256_ps(_mm256_add_epi32(bits, _mm256_set1_epi32(20 << 23)));
    const __m256 rounded = _mm256_sub_ps(_mm256_add_ps(magnitude, anchor), anchor);
    const __m256 q = _mm256_or_ps(rounded, _mm256_andnot_ps(magnitude_mask, y));
    _mm256_storeu_ps(out + i * 8, _mm256_mul_ps(q, scale));
    const __m256 is_nan = _mm256_cmp_ps(q, q, _CMP_UNORD_Q);
    nan = _mm256_or_ps(nan, is_nan);
    const __m256i n = _mm256_cvttps_epi32(_mm256_andnot_ps(is_nan, _mm256_mul_ps(q, _mm256_set1_ps(512.0f))));
    high[i] = _mm256_srai_epi32(n, 3);
    low[i] = _mm256_and_si256(n, _mm256_set1_epi32(7));
    high_sum = _mm256_add_epi32(high_sum, high[i]);
    low_sum = _mm256_add_epi32(low_sum, low[i]);
  }
  if (block == nullptr) return;
#pragma GCC unroll 2
  for (int i = 0; i < 2; ++i) {
    const __m256i h = _mm256_permute4x64_epi64(_mm256_packs_epi32(high[2 * i], high[2 * i + 1]), 0xd8);
    const __m256i l = _mm256_permute4x64_epi64(_mm256_packs_epi32(low[2 * i], low[2 * i + 1]), 0xd8);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(block->high + i * 16), h);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(block->low + i * 16), l);
  }
  const auto sum_of = [](__m256i lanes) {
    __m128i s = _mm_add_epi32(_mm256_castsi256_si128(lanes), _mm256_extracti128_si256(lanes, 1));
    s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4e));
    s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0xb1));
    return _mm_cvtsi128_si32(s);
  };
  const int low_total = sum_of(low_sum);
  info->high_bias = -12 * sum_of(high_sum);
  info->low_bias = -12 * low_total;
  info->has_low = low_total != 0;
  info->scale = _mm256_movemask_ps(nan) != 0 ? __builtin_nanf("") : _mm256_cvtss_f32(scale) * 0x1p-7f;
}

void TileFp4IntegerAvx2(const TileTask& task) {
  switch (task.num_m) {
    case 1:
      return FewIntegerInputs<1, 4>(task);
    case 2:
      return FewIntegerInputs<2, 2>(task);
    case 3:
      return FewIntegerInputs<3, 2>(task);
    case 4:
      return FewIntegerInputs<4, 2>(task);
    default:
      return ManyIntegerInputs(task);
  }
}

const MatMulKernels kMatMulAvx2 = {Tile<Fp8, Fp8Small>, Tile<Fp4>, Tile<Bf16>, Tile<F32>};

}  // namespace deepinfer::cpu
