// SPDX-License-Identifier: Apache-2.0
//
// A block: two warpgroups multiply, two more decode keys into bf16 tiles, four keys of each half a
// warp. Keys come to them through rings of bulk copies, where their formats are not too mixed for
// that. Nobody may spill registers: with so much shared memory in use there is no L1 cache.
//
// Scores: each multiplying warpgroup takes one half of the split's keys; they exchange maxima, then
// weights as operands of the value product, of which each does its channels.
//
// Many rows: two blocks (a cluster) a row, one for its even and one for its odd splits. Each keeps
// half of its channels at the end, sends the other half into the tile that the other block used
// last, and stores what it kept. Few rows: a block makes one split for a part of the channels,
// decoded by sixteen warps; AttentionMergeKernel does the rest.
#include <algorithm>

#include "backends/cuda/kernels/attention.h"
#include "backends/cuda/kernels/attention_multiply.cuh"
#include "backends/cuda/kernels/launch.h"

namespace deepinfer::cuda {
namespace {

template <int kParts, ResultForm kForm>
__global__ void __launch_bounds__(Threads<kParts>::kCount, 1)
    AttentionKernel(const __grid_constant__ SparseAttentionArgs a,
                    AttentionWorkspace ws,
                    int max_splits) {
  extern __shared__ uint8_t raw_smem[];
  // Blocks of a cluster write into each other's tiles: the same place in both, as the start is.
  uint8_t* const smem = raw_smem + ((1024 - (SmemAddr(raw_smem) & 1023)) & 1023);
  auto* const bars = reinterpret_cast<Barriers*>(smem + kBarriersOffset);
  const Work<kParts> work(a.rows);
  RowKeys keys = {};
  if (work.first_row < a.rows) keys = WindowOf(a, work.first_row);
  if (threadIdx.x == 0) {
    for (uint64_t& b : bars->full) BarrierInit(&b, kParts == 0 ? kDecoders : 8);
    for (uint64_t& b : bars->empty) BarrierInit(&b, 8);
    for (auto& warp : bars->raw) {
      for (uint64_t& b : warp) BarrierInit(&b, 1);
    }
    BarrierInit(&bars->other_ready, 8);
    BarrierInit(&bars->other_sent, 1);
    BarrierInitFence();
  }
  if constexpr (kParts == 0) {
    ClusterSync();
  } else {
    __syncthreads();
  }
  DependencyWait();
  DependencyLaunch();  // not earlier: the merge relies on it
  if (work.first_row < a.rows && a.has_compressed) keys.num_keys += a.num_selected[work.first_row];
  if (threadIdx.x >= kConsumerThreads) {
    LowerRegisters<Threads<kParts>::kDecodeRegisters>();
    if constexpr (kParts == 0) {
      Decode<kParts>(a, work, keys, smem);
    } else {
      DecodeSplit<kParts>(a, work, keys, smem);
    }
  } else {
    RaiseRegisters<Threads<kParts>::kMultiplyRegisters>();
    Multiply<kParts, kForm>(a, work, keys, ws, max_splits, smem);
  }
}

constexpr int kMaxSplitBlocks =
    66;  // pairs of row and split: two blocks of channels each fill the GPU

template <int kParts, ResultForm kForm>
cudaError_t LaunchKernel(const SparseAttentionArgs& args,
                         dim3 grid,
                         const AttentionWorkspace& ws,
                         int splits,
                         cudaStream_t stream) {
  const cudaError_t error = AllowSmem(AttentionKernel<kParts, kForm>, kSmemBytes + 1024);
  if (error != cudaSuccess) return error;
  return LaunchClusters(AttentionKernel<kParts, kForm>,
                        grid,
                        dim3(Threads<kParts>::kCount),
                        kSmemBytes + 1024,
                        stream,
                        args.dependent,
                        kParts == 0 ? 2 : 1,
                        args,
                        ws,
                        splits);
}

}  // namespace

int64_t AttentionWorkspaceBytes(int max_keys) {
  const int64_t splits = std::max(1, (max_keys + kKeys - 1) / kKeys);
  const int64_t rows = std::max<int64_t>(1, kMaxSplitBlocks / splits);
  return rows * splits * kHeads * (kDim + 2) * 4;
}

cudaError_t LaunchSparseAttention(const SparseAttentionArgs& args, cudaStream_t stream) {
  if (args.ring.format != device::KeyFormat::kMxFp8 || args.rows < 0 || args.rope_dim > kDim)
    return cudaErrorInvalidValue;
  if (args.has_compressed && args.compressed.main_format != device::KeyFormat::kFp4E4m3 &&
      args.compressed.main_format != device::KeyFormat::kMxFp8)
    return cudaErrorInvalidValue;
  if (args.rows == 0) return cudaSuccess;
  const int splits = std::max(1, (args.max_keys + kKeys - 1) / kKeys);
  const auto is_aligned = [](const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; };
  const bool is_plain = args.unrotated == nullptr && args.rope_dim == 64 && args.ldo % 8 == 0 &&
                        is_aligned(args.out) && is_aligned(args.rope);
  AttentionWorkspace ws = {};
  if (args.workspace != nullptr && (args.rows == 1 || args.rows * splits <= kMaxSplitBlocks)) {
    ws.values = static_cast<float*>(args.workspace);
    ws.stats = ws.values + int64_t{args.rows} * splits * kHeads * kDim;
    const bool narrow = args.rows * splits * 4 <= NumMultiprocessors();
    const dim3 grid(splits * (narrow ? 4 : 2), args.rows);
    const cudaError_t error =
        narrow ? LaunchKernel<4, ResultForm::kAny>(args, grid, ws, splits, stream)
               : LaunchKernel<2, ResultForm::kAny>(args, grid, ws, splits, stream);
    if (error != cudaSuccess) return error;
    const bool is_bf16 = is_plain && args.out_type == OutputType::kBf16;
    return Launch(is_bf16 ? AttentionMergeKernel<true> : AttentionMergeKernel<false>,
                  dim3(kHeads, args.rows),
                  dim3(kDim / 2),
                  0,
                  stream,
                  args.dependent,
                  args,
                  ws,
                  splits);
  }
  const dim3 grid(2 * std::min(NumMultiprocessors() / 2, args.rows));
  if (is_plain && args.out_type == OutputType::kBf16)
    return LaunchKernel<0, ResultForm::kBf16>(args, grid, ws, splits, stream);
  if (is_plain && args.out_type == OutputType::kFloatRounded)
    return LaunchKernel<0, ResultForm::kFloatRounded>(args, grid, ws, splits, stream);
  return LaunchKernel<0, ResultForm::kAny>(args, grid, ws, splits, stream);
}

}  // namespace deepinfer::cuda
