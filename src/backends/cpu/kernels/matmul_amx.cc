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

}  // namespace

void TileFp8Amx(const TileTask& task) {
  TileUnit unit;
  MultiplyTiles<Fp8Weights>(unit, task);
}

void TileBf16Amx(const TileTask& task) {
  TileUnit unit;
  MultiplyTiles<Bf16Weights>(unit, task);
}

}  // namespace deepinfer::cpu
