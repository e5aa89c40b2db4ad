// SPDX-License-Identifier: Apache-2.0
//
// The dispatch table of the matrix product: one function per weight format that multiplies one packed tile of 32 output
// rows with up to kMaxTileM inputs. Included by files compiled for other instruction sets: plain types only, no inline
// functions (a copy compiled for a newer processor must never be linked into the common code).
#pragma once

#include <cstdint>

namespace deepinfer::cpu {

inline constexpr int kMaxTileM = 64;
inline constexpr int kMaxScaleExponent = 60;  // of FP8 scales that tile kernels multiply into the weights

// Integer form of 32 quantised inputs for FP4 weights. An e4m3 value is a multiple of 2^-9 below 2^9, so v = q * 2^9
// is an integer of 18 bits; v = 8 * high + low with high in 16 bits and 0 <= low < 8. Only values below 1/2000 of a block's
// largest have low bits, so most blocks need the high parts alone. Sums over a block are exact whatever their order: at most
// 12 * 32 * 28672 < 2^24 in units of high * (2 w), so float32 arithmetic of the high parts is exact as well.
struct IntegerBlock {
  int16_t high[32];
  int16_t low[32];
};
struct IntegerBlockInfo {
  int32_t high_bias;  // -12 * sum(high): AVX2 takes weights as 2 w + 12 >= 0
  int32_t low_bias;
  int32_t has_low;
  float scale;        // value of one unit of high * (2 w)
};

// The same for AVX-512: high = 256 * upper + middle in signed bytes, four inputs in the order of the packed weights
// (k0, k2, k1, k3).
struct ByteDigits {
  int8_t upper[32];
  int8_t middle[32];
  int8_t low[32];
  int8_t padding[32];
};

struct TileTask {
  const uint8_t* weights;   // the tile, 64-byte aligned
  const uint8_t* scales;    // as PackedMatrix::tile_scales
  int64_t num_groups;
  const float* values;      // inputs [num_groups][group_rows][32]
  const uint32_t* pairs;    // the same as bf16 pairs [num_groups][group_rows][16], null when the inputs are not bf16
  const IntegerBlock* integers;          // [num_groups][group_rows], null when absent (AVX2)
  const ByteDigits* digits;              // the same of AVX-512
  const IntegerBlockInfo* integer_info;  // the same
  const uint32_t* high_pairs;  // high digits alone as bf16 pairs, like pairs (AMX)
  const uint8_t* low_flags;    // [num_groups][group_rows]: 1 where a block has low digits (AMX)
  int64_t group_rows;       // rows per group of the input
  const int32_t* row_idx;   // input row of m = 0..num_m-1
  int num_m;                // 1..kMaxTileM
  float* out;               // [num_m][32], written
  int64_t prefetch_bytes;   // how far ahead of the weight stream to prefetch
};

using TileFn = void (*)(const TileTask& task);

struct MatMulKernels {
  TileFn fp8;
  TileFn fp4;
  TileFn bf16;
  TileFn f32;
};

extern const MatMulKernels kMatMulScalar;
#if defined(__x86_64__)
extern const MatMulKernels kMatMulAvx2;
// Quantises 32 inputs like PreparedActivations::StoreGroup; block and info may be null.
void QuantizeFp8GroupAvx2(const float* x, float* out, IntegerBlock* block, IntegerBlockInfo* info);
void SplitDigitsAvx512(const IntegerBlock& block, ByteDigits* digits);
// FP4 weights with integer inputs: need task.integers or task.digits. Both give the same bits.
void TileFp4IntegerAvx2(const TileTask& task);
void TileFp4IntegerAvx512(const TileTask& task);
// The products of one input's low digits with the 32 rows of a group, added to low_sums[32].
void AddLowDigitsAvx512(const TileTask& task, int64_t group, int32_t row, float* low_sums);
// Needs task.pairs (f32 excepted, which takes values).
extern const MatMulKernels kMatMulAvx512;
// Level amx, for matrices that suit tiles; need task.pairs and room for whole blocks of sixteen inputs in task.out.
void TileFp8Amx(const TileTask& task);
// High digits on tiles: sums below 2^24 units are exact in float32 too, so the bits are those of TileFp4IntegerAvx512.
void TileFp4Amx(const TileTask& task);
void TileBf16Amx(const TileTask& task);
#elif defined(__aarch64__)
extern const MatMulKernels kMatMulNeon;
void QuantizeFp8GroupNeon(const float* x, float* out);
// Needs task.pairs; f32 is null.
extern const MatMulKernels kMatMulNeonBf16;
#endif

}  // namespace deepinfer::cpu
