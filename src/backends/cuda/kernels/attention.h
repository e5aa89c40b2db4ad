// SPDX-License-Identifier: Apache-2.0
//
// Sparse attention on sm_90a (model.md 6.6): 64 heads of 512 channels over the window keys and the selected compressed keys of
// each row, keys and values loaded once. The keys of a row, window first, are cut into splits of 64; of each split the scores,
// their maximum and the weighted sum of values relative to it are formed. The even splits are merged in ascending order, then
// the odd ones, then both. Few rows: one block per split and part of the channels, then a merge; many rows: two blocks walk
// through the splits of a row. Both give the same bits, so a row's result depends on its own keys alone.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "backends/cuda/kernels/dense.h"
#include "device/types.h"

namespace deepinfer::cuda {

inline constexpr int kAttentionHeads = 64;
inline constexpr int kAttentionDim = 512;
inline constexpr int kAttentionSplit = 64;

// Everything that is a pointer is one of the device. Query, new keys and results in bf16 (or float32 results holding bf16).
struct SparseAttentionArgs {
  int rows = 0;
  const device::SequenceRows* sequences = nullptr;
  const int32_t* positions = nullptr;
  const int32_t* row_sequence = nullptr;
  device::WindowRing ring;          // kMxFp8
  bool has_compressed = false;
  device::KeyCache compressed;      // main_format kFp4E4m3 or kMxFp8
  const int32_t* selected = nullptr;  // [rows, selected_stride]
  const int32_t* num_selected = nullptr;
  int selected_stride = 0;
  int max_keys = 0;                 // bound of the keys of a row: window (+ block) + top-k
  bool is_draft_block = false;
  const __nv_bfloat16* query = nullptr;  // [rows, 64*512], rotated
  int64_t ldq = 0;
  const __nv_bfloat16* new_keys = nullptr;  // [rows, 512] window keys of the step; rows and records 16-byte aligned
  int64_t ldk = 0;
  const float* sink = nullptr;      // [64]
  const float* rope = nullptr;      // [rows, rope_dim] cosines, then sines; undone on the result
  int rope_dim = 64;
  void* out = nullptr;              // [rows, 64*512]
  int64_t ldo = 0;
  OutputType out_type = OutputType::kBf16;
  void* unrotated = nullptr;        // tracing: the result before the rotation is undone, like out; null = not wanted
  void* workspace = nullptr;        // AttentionWorkspaceBytes
  // Sequences, positions and row_sequence are read before earlier kernels are done: uploads, not results.
  bool dependent = false;
};

// For calls of any number of rows.
int64_t AttentionWorkspaceBytes(int max_keys);

cudaError_t LaunchSparseAttention(const SparseAttentionArgs& args, cudaStream_t stream);

}  // namespace deepinfer::cuda
