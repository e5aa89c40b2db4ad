// SPDX-License-Identifier: Apache-2.0
//
// Index scores and selection on sm_90a (model.md 6.4, 6.5): score[g] = sum_h w_h relu(q_h . k_g) for 32 heads of 128 channels
// over FP4 keys, then the top-k groups, exactly: ties to the lower group, ascending. Scores are float32 sums in an order that
// does not depend on the call. Three kernels a call: scores with the maxima of pieces of keys; a lower bound of the k-th
// largest score from the maxima and the short list of scores that reach it; the exact choice among them.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "device/types.h"

namespace deepinfer::cuda {

inline constexpr int kIndexHeads = 32;
inline constexpr int kIndexDim = 128;

struct IndexerArgs {
  int rows = 0;
  const device::SequenceRows* sequences = nullptr;  // device
  const int32_t* positions = nullptr;
  const int32_t* row_sequence = nullptr;
  device::KeyCache cache;                 // index_format kFp4Pow2, index_dim 128, entries_per_block a multiple of 16
  int max_groups = 0;                     // bound of the visible groups of a row; sizes grids and the workspace
  const __nv_bfloat16* query = nullptr;   // [rows, 32*128] rotated, FP4 values
  int64_t ldq = 0;
  const void* weight = nullptr;           // [rows, 32] bf16 or float32, with the constant factor
  bool weight_is_float = false;
  int64_t ldw = 0;
  int topk = 0;                           // at most 2048
  enum class Role { kNone, kProduce, kConsume };
  Role role = Role::kNone;                // candidate blocks of eight groups (device.h SelectArgs)
  int keep_blocks = 0;                    // at most 2048
  int32_t* candidates = nullptr;          // [rows, keep_blocks]
  int32_t* num_candidates = nullptr;      // [rows], -1 = every block
  int32_t* selected = nullptr;            // [rows, topk]
  int32_t* num_selected = nullptr;        // [rows]
  void* workspace = nullptr;              // IndexerWorkspaceBytes(rows, max_groups)
  bool dependent = false;
};

int64_t IndexerWorkspaceBytes(int64_t rows, int max_groups);

cudaError_t LaunchIndexer(const IndexerArgs& args, cudaStream_t stream);

}  // namespace deepinfer::cuda
