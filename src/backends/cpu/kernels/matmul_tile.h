// SPDX-License-Identifier: Apache-2.0
//
// One packed tile times a few prepared inputs: the building block of MatMul and of the expert kernels.
#pragma once

#include "backends/cpu/kernels/matmul.h"
#include "backends/cpu/kernels/matmul_kernels.h"

namespace deepinfer::cpu {

// The kernel for `w` and inputs like `x` at the active instruction set level; the same for any number of inputs.
TileFn SelectTileFn(const PackedMatrix& w, const PreparedActivations& x);

// out[m][32] = tile `tile_idx` of w times input rows row_idx[m], m < num_m <= kMaxTileM; input groups from first_group on.
void RunPackedTile(TileFn fn, const PackedMatrix& w, int64_t tile_idx, const PreparedActivations& x, int64_t first_group,
                   const int32_t* row_idx, int num_m, float* out);

// For measurements: how far ahead of a weight stream to prefetch, and the least bytes of weights per item.
void SetPrefetchBytes(int64_t bytes);
void SetItemBytes(int64_t bytes);

// Rounds n values to bf16 in place.
void RoundToBf16InPlace(float* x, int64_t n);

}  // namespace deepinfer::cpu
