// SPDX-License-Identifier: Apache-2.0
//
// The dispatch table of the matrix product: one function per weight format that multiplies one packed tile of 32 output
// rows with up to kMaxTileM inputs. Included by files compiled for other instruction sets: plain types only, no inline
// functions (a copy compiled for a newer processor must never be linked into the common code).
#pragma once

#include <cstdint>

namespace deepinfer::cpu {

inline constexpr int kMaxTileM = 64;

struct TileTask {
  const uint8_t* weights;   // the tile, 64-byte aligned
  const uint8_t* scales;    // as PackedMatrix::tile_scales
  int64_t num_groups;
  const float* values;      // inputs [num_groups][group_rows][32]
  const uint32_t* pairs;    // the same as bf16 pairs [num_groups][group_rows][16], null when the inputs are not bf16
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
// Needs task.pairs (f32 excepted, which takes values).
extern const MatMulKernels kMatMulAvx512;
#endif

}  // namespace deepinfer::cpu
