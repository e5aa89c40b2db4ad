// SPDX-License-Identifier: Apache-2.0
//
// Block-scaled products of sm_100a (tcgen05) and sm_120a (mma.sync): FP8 activations times FP8 or FP4 weights with the scales of
// the checkpoint, float32 sums. For many rows; they serve any number. A sum goes over the columns in ascending order by 32, the
// instruction adds those 32: it depends on nothing but its row and its column, but has other bits than the kernels of dense.h and
// experts.h, which are for few rows. Where a row's bits must not depend on the call, one of both has to serve all calls.
// Compiled for both architectures, checked by the model of the instructions in tests/backends/cuda/layouts; not run on hardware.
//
// Weights are packed once (block_scaled_layout.h). Inputs come as those of dense.h: bf16 holding FP8 values times powers of two.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "backends/cuda/kernels/block_scaled_layout.h"
#include "backends/cuda/kernels/dense.h"
#include "backends/cuda/kernels/experts.h"

namespace deepinfer::cuda {

// Packs as LaunchPack does; all scales of the checkpoint can be held. FP8 scales of 32 x 32 tiles are repeated for every row.
cudaError_t LaunchBlockScaledPack(const BlockScaledLayout& layout, RowOrder order, const PackSource* sources, int num_sources,
                                  uint8_t* out, cudaStream_t stream);

// Rows of e4m3 codes and, behind them, of ue8m0 scales.
struct BlockScaledRows {
  uint8_t* codes = nullptr;   // [rows, cols]
  uint8_t* scales = nullptr;  // [rows, cols / 32]
};
int64_t BlockScaledRowsBytes(int64_t rows, int64_t cols);
BlockScaledRows BlockScaledRowsIn(void* memory, int64_t rows, int64_t cols);  // memory: 16-byte aligned
// FP8 quantisation of x per 32 columns (cols a multiple of 32, ldx of 4). Values that are quantised already keep their value.
cudaError_t LaunchBlockScaledQuantize(const void* x, bool is_float, int64_t ldx, int64_t rows, int64_t cols, const BlockScaledRows& to,
                                      bool dependent, cudaStream_t stream);

// As LaunchDense with weights in `layout`; args.layout and `fast` do not count. args.workspace:
// BlockScaledRowsBytes(tokens, cols * num_groups). num_groups > 1 and swiglu: rows of a group a multiple of 256, rows of 64.
cudaError_t LaunchDenseBlockScaled(const BlockScaledLayout& layout, const DenseArgs& args, cudaStream_t stream);

// The expert products between LaunchExpertPlan and LaunchExpertSum. The plan is one of form kWide with `fast` (up to
// kFastJobRows rows a job). args.gate_up and down: matrices of these layouts. args.act holds codes and scales.
constexpr BlockScaledLayout BlockScaledGateUpLayout(BlockScaledForm form) {
  return {form, BlockScaledKind::kFp4, 2 * kExpertWidth, kExpertHidden};
}
constexpr BlockScaledLayout BlockScaledDownLayout(BlockScaledForm form) {
  return {form, BlockScaledKind::kFp4, kExpertHidden, kExpertWidth};
}
// workspace: BlockScaledRowsBytes(rows, kExpertHidden).
cudaError_t LaunchExpertGateUpBlockScaled(BlockScaledForm form, const ExpertsArgs& args, void* workspace, cudaStream_t stream);
cudaError_t LaunchExpertDownBlockScaled(BlockScaledForm form, const ExpertsArgs& args, cudaStream_t stream);

}  // namespace deepinfer::cuda
