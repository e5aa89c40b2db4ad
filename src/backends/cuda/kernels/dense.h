// SPDX-License-Identifier: Apache-2.0
//
// Products with dense weights on sm_90a: y[t][r] = sum_k x[t][k] W[r][k], W packed (weights.h; FP8, bf16), x in bf16. Inputs of
// FP8 weights are the fake-quantised activations (LaunchQuantize): exact in bf16, so products are exact and sums float32.
// Results do not depend on the number of tokens of a call unless `fast` says so.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "backends/cuda/kernels/weights.h"

namespace deepinfer::cuda {

enum class OutputType {
  kBf16,         // bf16
  kFloat,        // float32
  kFloatRounded  // float32 holding bf16 values
};

struct DenseArgs {
  PackedLayout layout;
  const uint8_t* weights = nullptr;  // layout.bytes()
  const __nv_bfloat16* x = nullptr;  // [tokens, >= cols (times groups)], rows ldx values apart; 16-byte aligned rows
  int64_t ldx = 0;
  int tokens = 0;
  // Block-diagonal product: row r uses columns from (r / (rows / num_groups)) * cols on. 1 = plain.
  int num_groups = 1;
  void* y = nullptr;  // [tokens, rows], rows ldy values apart
  int64_t ldy = 0;
  OutputType out = OutputType::kBf16;
  // SwiGLU of a gate/up matrix packed with kInterleaved: y [tokens, rows / 2] bf16, quantised for the next product.
  bool swiglu = false;
  float swiglu_limit = 0;
  bool round_bf16 = true;  // of gate, up and their product, before the quantisation
  // DenseWorkspaceBytes(layout), zeroed once; calls on one stream share it.
  void* workspace = nullptr;
  bool fast = false;       // many tokens: float32 sums over all of K in one go, not slice by slice
  bool dependent = false;  // programmatic dependent launch: weights are fetched while the kernel before ends
};

int64_t DenseWorkspaceBytes(const PackedLayout& layout);

// Few tokens: 16 at a time, weights streamed once per 16.
cudaError_t LaunchDenseStream(const DenseArgs& args, cudaStream_t stream);

// Many tokens: wgmma. The same bits unless `fast`.
cudaError_t LaunchDenseWide(const DenseArgs& args, cudaStream_t stream);

// The one for the number of tokens.
inline constexpr int kStreamTokens = 16;
cudaError_t LaunchDense(const DenseArgs& args, cudaStream_t stream);

// out[t][k] = FP8 fake quantisation of x per 32 columns, exact in bf16 (cols a multiple of 32).
cudaError_t LaunchQuantize(const void* x, bool is_float, int64_t ldx, int64_t rows, int cols, __nv_bfloat16* out, int64_t ldo,
                           cudaStream_t stream);

}  // namespace deepinfer::cuda
