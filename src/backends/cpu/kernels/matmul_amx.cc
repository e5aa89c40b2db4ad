// SPDX-License-Identifier: Apache-2.0
//
// Tile kernels on AMX. FP8 weights are decoded to bf16 pairs by byte lookups into tables that include the group's scale (a
// power of two within 2^-60 to 2^60, so the products are exact); BF16 weights are read by the tile unit where they lie.
#include <immintrin.h>

#include "backends/cpu/kernels/matmul_kernels.h"
#include "backends/cpu/kernels/matmul_tiles.h"

namespace deepinfer::cpu {
namespace {

#define DI_INLINE __attribute__((always_inline)) inline

struct TileUnit {
  struct alignas(64) Config {
    uint8_t palette = 1;
    uint8_t start_row = 0;
    uint8_t reserved[14] = {};
    uint16_t row_bytes[16] = {};
    uint8_t rows[16] = {};
  };
  DI_INLINE void Configure(int rows) {
    Config config;
    for (int t = 0; t < 8; ++t) {
      config.row_bytes[t] = 64;
      config.rows[t] = static_cast<uint8_t>(t < 6 ? rows : 16);
    }
    asm volatile("ldtilecfg %0" : : "m"(config) : "memory");
  }
  // Assembly, since the compiler's intrinsics take no register number from a template. They name memory as clobbered: what
  // other instructions wrote has to be there.
  DI_INLINE void Release() { asm volatile("tilerelease" : : : "memory"); }
  template <int kTile>
  DI_INLINE void Zero() {
    asm volatile("tilezero %%tmm%c0" : : "i"(kTile));
  }
  template <int kTile>
  DI_INLINE void Load(const void* p, int64_t stride) {
    asm volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(p), "r"(stride), "i"(kTile) : "memory");
  }
  template <int kTile>
  DI_INLINE void Store(void* p, int64_t stride) {
    asm volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(p), "r"(stride), "i"(kTile) : "memory");
  }
  template <int kOut, int kA, int kB>
  DI_INLINE void DotBf16() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kOut), "i"(kA), "i"(kB));
  }
};

// bf16 bytes of the 128 e4m3 magnitudes times 2^e, for all e. Codes below 8 are the subnormals m * 2^-9; 127 is NaN.
struct ScaledFp8 {
  struct Bytes {
    alignas(64) uint8_t low[128];
    alignas(64) uint8_t high[128];
  };
  Bytes scaled[2 * kMaxScaleExponent + 1];
};
constexpr ScaledFp8 MakeScaledFp8() {
  // m * 2^-9 for m = 1..7 as bf16.
  const unsigned subnormals[8] = {0, 0x3b00, 0x3b80, 0x3bc0, 0x3c00, 0x3c20, 0x3c40, 0x3c60};
  ScaledFp8 t{};
  for (int e = -kMaxScaleExponent; e <= kMaxScaleExponent; ++e) {
    for (unsigned code = 0; code < 128; ++code) {
      unsigned bits = code < 8 ? subnormals[code] : (code << 4) + (120u << 7);
      if (code > 0) bits = static_cast<unsigned>(static_cast<int>(bits) + e * 128);
      if (code == 127) bits = 0x7fc0;
      ScaledFp8::Bytes& bytes = t.scaled[e + kMaxScaleExponent];
      bytes.low[code] = static_cast<uint8_t>(bits & 255u);
      bytes.high[code] = static_cast<uint8_t>(bits >> 8);
    }
  }
  return t;
}
constexpr ScaledFp8 kScaledFp8 = MakeScaledFp8();

struct Fp8Weights {
  static constexpr bool kIsDecoded = true;
  const TileTask& task;

  DI_INLINE static const uint32_t* Inputs(const TileTask& t) { return t.pairs; }
  DI_INLINE explicit Fp8Weights(const TileTask& t) : task(t) {}
  DI_INLINE void Decode(int64_t group, uint32_t* panel) const {
    uint32_t scale;
    __builtin_memcpy(&scale, task.scales + group * 4, sizeof(scale));
    const ScaledFp8::Bytes& table = kScaledFp8.scaled[static_cast<int>(scale >> 23) - 127 + kMaxScaleExponent];
    const __m512i low0 = _mm512_load_si512(table.low);
    const __m512i low1 = _mm512_load_si512(table.low + 64);
    const __m512i high0 = _mm512_load_si512(table.high);
    const __m512i high1 = _mm512_load_si512(table.high + 64);
    const __m512i byte = _mm512_set1_epi16(255);
    const __m512i sign = _mm512_set1_epi8(-128);
    const uint8_t* p = task.weights + group * 1024;
#pragma GCC unroll 4
    for (int i = 0; i < 16; ++i) {
      _mm_prefetch(reinterpret_cast<const char*>(p + i * 64 + task.prefetch_bytes), _MM_HINT_T0);
      const __m512i v = _mm512_load_si512(p + i * 64);
      const __m512i low = _mm512_permutex2var_epi8(low0, v, low1);  // uses the low seven bits of each index
      __m512i high = _mm512_permutex2var_epi8(high0, v, high1);
      high = _mm512_ternarylogic_epi32(high, v, sign, 0xf8);  // high | (v & 0x80)
      // Bytes 0 and 2 of a dword are the first pair, 1 and 3 the second.
      uint32_t* to = panel + (i / 2) * 64 + (i & 1) * 16;
      _mm512_store_si512(to, _mm512_ternarylogic_epi32(byte, low, _mm512_slli_epi16(high, 8), 0xca));
      _mm512_store_si512(to + 32, _mm512_ternarylogic_epi32(byte, _mm512_srli_epi16(low, 8), high, 0xca));
    }
  }
};

struct Bf16Weights {
  static constexpr bool kIsDecoded = false;
  const TileTask& task;

  DI_INLINE static const uint32_t* Inputs(const TileTask& t) { return t.pairs; }
  DI_INLINE explicit Bf16Weights(const TileTask& t) : task(t) {}
  DI_INLINE const uint32_t* Group(int64_t group) const {
    const uint8_t* p = task.weights + group * 2048;
#pragma GCC unroll 4
    for (int i = 0; i < 32; ++i) {
      _mm_prefetch(reinterpret_cast<const char*>(p + i * 64 + task.prefetch_bytes), _MM_HINT_T0);
    }
    return reinterpret_cast<const uint32_t*>(p);
  }
};

// e2m1 as bf16 by a lookup, then the row's scale added to the exponent of what is not zero.
struct Fp4Weights {
  static constexpr bool kIsDecoded = true;
  const TileTask& task;
  const __m512i values;

  DI_INLINE static const uint32_t* Inputs(const TileTask& t) { return t.high_pairs; }
  DI_INLINE explicit Fp4Weights(const TileTask& t)
      : task(t),
        // The lookup reads five bits of each word, the fifth being a neighbour's: both halves are the same.
        values(_mm512_broadcast_i64x4(_mm256_setr_epi16(0, 0x3f00, 0x3f80, 0x3fc0, 0x4000, 0x4040, 0x4080, 0x40c0, -0x8000, -0x4100,
                                                        -0x4080, -0x4040, -0x4000, -0x3fc0, -0x3f80, -0x3f40))) {}
  DI_INLINE void Decode(int64_t group, uint32_t* panel) const {
    const uint8_t* p = task.weights + group * 512;
    __m512i exponent[2];
#pragma GCC unroll 2
    for (int v = 0; v < 2; ++v) {
      const __m128i bytes = _mm_load_si128(reinterpret_cast<const __m128i*>(task.scales + group * 32 + v * 16));
      const __m512i e = _mm512_slli_epi32(_mm512_sub_epi32(_mm512_cvtepu8_epi32(bytes), _mm512_set1_epi32(127)), 7);
      exponent[v] = _mm512_or_si512(_mm512_and_si512(e, _mm512_set1_epi32(0xffff)), _mm512_slli_epi32(e, 16));
    }
    const __m512i magnitude = _mm512_set1_epi16(0x7fff);
#pragma GCC unroll 4
    for (int step = 0; step < 4; ++step) {
#pragma GCC unroll 2
      for (int v = 0; v < 2; ++v) {
        _mm_prefetch(reinterpret_cast<const char*>(p + step * 128 + v * 64 + task.prefetch_bytes), _MM_HINT_T0);
        const __m512i codes = _mm512_load_si512(p + step * 128 + v * 64);
        const __m512i shifted[4] = {codes, _mm512_srli_epi16(codes, 8), _mm512_srli_epi16(codes, 4), _mm512_srli_epi16(codes, 12)};
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i) {
          const __m512i w = _mm512_permutexvar_epi16(shifted[i], values);
          const __mmask32 is_not_zero = _mm512_test_epi16_mask(w, magnitude);
          _mm512_store_si512(panel + (step * 4 + i) * 32 + v * 16, _mm512_mask_add_epi16(w, is_not_zero, w, exponent[v]));
        }
      }
    }
  }
};

// Whether any of the inputs has low digits in this group.
DI_INLINE bool HasLow(const TileTask& task, int64_t group, bool is_contiguous) {
  const uint8_t* flags = task.low_flags + group * task.group_rows;
  if (is_contiguous) {
    const __mmask64 mask = task.num_m == 64 ? ~__mmask64{0} : (__mmask64{1} << task.num_m) - 1;
    return _mm512_mask_test_epi8_mask(mask, _mm512_maskz_loadu_epi8(mask, flags + task.row_idx[0]), _mm512_set1_epi8(1)) != 0;
  }
  unsigned any = 0;
  for (int m = 0; m < task.num_m; ++m) any |= flags[task.row_idx[m]];
  return any != 0;
}

// Adds the sums of the low digits to the outputs of inputs that have any.
void AddLowSums(const TileTask& task) {
  alignas(64) float low_sums[kMaxTileM * 32];
  bool has_low[kMaxTileM] = {};
  bool is_contiguous = true;
  for (int m = 1; m < task.num_m; ++m) is_contiguous &= task.row_idx[m] == task.row_idx[0] + m;
  for (int64_t group = 0; group < task.num_groups; ++group) {
    if (!HasLow(task, group, is_contiguous)) continue;
    for (int m = 0; m < task.num_m; ++m) {
      const int32_t row = task.row_idx[m];
      if (task.low_flags[group * task.group_rows + row] == 0) continue;
      float* sums = low_sums + m * 32;
      if (!has_low[m]) {
        _mm512_store_ps(sums, _mm512_setzero_ps());
        _mm512_store_ps(sums + 16, _mm512_setzero_ps());
      }
      has_low[m] = true;
      AddLowDigitsAvx512(task, group, row, sums);
    }
  }
  for (int m = 0; m < task.num_m; ++m) {
    if (!has_low[m]) continue;
    float* out = task.out + m * 32;
    for (int i = 0; i < 32; i += 16) _mm512_store_ps(out + i, _mm512_add_ps(_mm512_load_ps(out + i), _mm512_load_ps(low_sums + m * 32 + i)));
  }
}

}  // namespace

void TileFp4Amx(const TileTask& task) {
  constexpr int kFewInputs = 8;  // below, the integer kernel is the faster one; the bits are the same
  if (task.num_m < kFewInputs) return TileFp4IntegerAvx512(task);
  TileUnit unit;
  MultiplyTiles<Fp4Weights>(unit, task);
  AddLowSums(task);
}

void TileFp8Amx(const TileTask& task) {
  TileUnit unit;
  MultiplyTiles<Fp8Weights>(unit, task);
}

void TileBf16Amx(const TileTask& task) {
  TileUnit unit;
  MultiplyTiles<Bf16Weights>(unit, task);
}

}  // namespace deepinfer::cpu
