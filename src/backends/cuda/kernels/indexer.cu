// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "backends/cuda/kernels/indexer.h"
#include "backends/cuda/kernels/indexer_select.cuh"
#include "backends/cuda/kernels/launch.h"

namespace deepinfer::cuda {
namespace {

using namespace indexer;

constexpr int64_t Align(int64_t x) {
  return (x + 255) / 256 * 256;
}

int PartsOf(int64_t rows, int max_groups) {
  const int64_t room = std::max<int64_t>(1, NumMultiprocessors() / rows);
  return static_cast<int>(
      std::clamp<int64_t>(max_groups / 8192, 1, std::min<int64_t>(room, kMaxParts)));
}

// `row_parts`: rows times parts that the lists have room for.
Workspace ViewsOf(void* memory, int64_t rows, int max_groups, int64_t row_parts, int64_t* bytes) {
  int64_t used = 0;
  const auto take = [&](int64_t size) {
    uint8_t* p = static_cast<uint8_t*>(memory) + used;
    used += Align(size);
    return p;
  };
  Workspace ws;
  ws.segments = PartsOf(rows, max_groups) * kSelectWarps;
  const int64_t pieces = (int64_t{max_groups} + 63) / 64;
  for (Lists* l : {&ws.groups, &ws.blocks}) {
    l->stride = l == &ws.groups ? pieces * 64 : pieces * 8;
    l->maxima_stride = pieces * 4;
    l->scores = reinterpret_cast<float*>(take(rows * l->stride * 4));
    l->maxima = reinterpret_cast<float*>(take(rows * l->maxima_stride * 4));
    l->list = reinterpret_cast<uint2*>(take(row_parts * kSelectWarps * kSegmentCapacity * 8));
    l->count = reinterpret_cast<int32_t*>(take(row_parts * kSelectWarps * 4));
  }
  if (bytes != nullptr) *bytes = used;
  return ws;
}

}  // namespace

int64_t IndexerWorkspaceBytes(int64_t rows, int max_groups) {
  rows = std::max<int64_t>(rows, 1);
  max_groups = std::max(max_groups, 1);
  // Calls of fewer rows may share a row out over more blocks.
  const int64_t row_parts =
      std::max(rows, std::min<int64_t>(NumMultiprocessors(), rows * PartsOf(1, max_groups)));
  int64_t bytes = 0;
  ViewsOf(nullptr, rows, max_groups, row_parts, &bytes);
  return bytes;
}

cudaError_t LaunchIndexer(const IndexerArgs& args, cudaStream_t stream) {
  const bool has_blocks = args.role != IndexerArgs::Role::kNone;
  if (args.cache.index_format != device::KeyFormat::kFp4Pow2 || args.cache.index_dim != kIndexDim ||
      args.topk < 1 || args.topk > kMaxChosen || args.cache.entries_per_block % kTileKeys != 0 ||
      args.rows < 0 || (has_blocks && (args.keep_blocks < 1 || args.keep_blocks > kMaxChosen)))
    return cudaErrorInvalidValue;
  if (args.rows == 0) return cudaSuccess;
  const int max_groups = std::max(args.max_groups, 1);
  const Workspace ws = ViewsOf(args.workspace,
                               args.rows,
                               max_groups,
                               int64_t{args.rows} * PartsOf(args.rows, max_groups),
                               nullptr);
  const bool produces = args.role == IndexerArgs::Role::kProduce;
  if (max_groups > args.topk) {
    const int pieces = (max_groups + kTileKeys * kPieceTiles - 1) / (kTileKeys * kPieceTiles);
    const int room = std::max(1, 2 * NumMultiprocessors() / args.rows);
    const int blocks = std::min(
        room,
        max_groups <= kMaxPieces * kTileKeys ? (pieces * kPieceTiles + 7) / 8 : (pieces + 7) / 8);
    cudaError_t error = Launch(ScoreKernel,
                               dim3(blocks, args.rows),
                               dim3(kScoreThreads),
                               0,
                               stream,
                               args.dependent,
                               args,
                               ws);
    if (error != cudaSuccess) return error;
    const int parts = ws.segments / kSelectWarps;
    error = Launch(FilterKernel,
                   dim3(parts, args.rows, produces ? 2 : 1),
                   dim3(kSelectThreads),
                   0,
                   stream,
                   args.dependent,
                   args,
                   ws);
    if (error != cudaSuccess) return error;
  }
  return Launch(ChooseKernel,
                dim3(args.rows, produces ? 2 : 1),
                dim3(kSelectThreads),
                kListCapacity * 8,
                stream,
                args.dependent,
                args,
                ws);
}

}  // namespace deepinfer::cuda
