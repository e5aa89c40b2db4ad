// SPDX-License-Identifier: Apache-2.0
//
// The AMX tile unit as plain C++, for tests of the tile kernels on any machine: eight registers of 16 rows of 64 bytes, and
// the arithmetic of TDPBF16PS as the manufacturer's manual defines it. Per output: even and odd elements have sums of their
// own, starting at 0, one fused multiply-add per product, rows of the second operand ascending; the two sums are added, then
// added to the output. Subnormal inputs count as zero, subnormal results become zero, rounding is to nearest even.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

namespace deepinfer::cpu {

class TileModel {
 public:
  // Rows of tiles 0 to 5 (outputs and inputs); 6 and 7 (weights) have 16. All have 64 bytes per row. Clears all tiles.
  void Configure(int rows) {
    for (int t = 0; t < 8; ++t) rows_[t] = t < 6 ? rows : 16;
    std::memset(tiles_, 0, sizeof(tiles_));
  }
  void Release() {}

  template <int kTile>
  void Zero() {
    std::memset(tiles_[kTile], 0, sizeof(tiles_[kTile]));
  }
  template <int kTile>
  void Load(const void* p, int64_t stride) {
    for (int r = 0; r < rows_[kTile]; ++r) std::memcpy(tiles_[kTile][r], static_cast<const char*>(p) + r * stride, 64);
  }
  template <int kTile>
  void Store(void* p, int64_t stride) const {
    for (int r = 0; r < rows_[kTile]; ++r) std::memcpy(static_cast<char*>(p) + r * stride, tiles_[kTile][r], 64);
  }
  // out += a * b: a holds bf16 pairs [m][16], b bf16 pairs [16][n].
  template <int kOut, int kA, int kB>
  void DotBf16() {
    for (int m = 0; m < rows_[kOut]; ++m) {
      for (int n = 0; n < 16; ++n) {
        float even = 0, odd = 0;
        for (int k = 0; k < 16; ++k) {
          const uint32_t a = tiles_[kA][m][k], b = tiles_[kB][k][n];
          even = Flush(std::fma(Flush(LowHalf(a)), Flush(LowHalf(b)), even));
          odd = Flush(std::fma(Flush(HighHalf(a)), Flush(HighHalf(b)), odd));
        }
        const float out = Flush(std::bit_cast<float>(tiles_[kOut][m][n]));
        tiles_[kOut][m][n] = std::bit_cast<uint32_t>(Flush(out + Flush(even + odd)));
      }
    }
  }

 private:
  static float LowHalf(uint32_t pair) { return std::bit_cast<float>(pair << 16); }
  static float HighHalf(uint32_t pair) { return std::bit_cast<float>(pair & 0xffff0000u); }
  static float Flush(float x) { return std::fpclassify(x) == FP_SUBNORMAL ? std::copysign(0.0f, x) : x; }

  int rows_[8] = {};
  uint32_t tiles_[8][16][16];
};

}  // namespace deepinfer::cpu
