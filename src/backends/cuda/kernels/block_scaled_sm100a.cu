// SPDX-License-Identifier: Apache-2.0
//
// Block-scaled products on sm_100a: persistent blocks, a tile of 128 tokens by 256 weight rows, four stages of 128 columns in
// shared memory, sums and scales in tensor memory. Warps 0 to 3 take finished sums (a thread has a token), warp 4 issues copies
// of scales and products, warps 5 to 8 fetch: FP8 weights and all weight scales as bulk copies of packed stages, FP4 weights 8
// bytes at a time into padded pieces of 16, gathered rows of tokens 16 bytes at a time.
#include <algorithm>

#include "backends/cuda/kernels/block_scaled.cuh"
#include "backends/cuda/kernels/launch.h"
#include "backends/cuda/kernels/tcgen05.cuh"

namespace deepinfer::cuda {
namespace {

using Shape = Sm100aTile;

constexpr int kStoreThreads = 128;
constexpr int kIssueWarp = kStoreThreads / 32;
constexpr int kFetchThreads = 128;
constexpr int kThreads = kStoreThreads + 32 + kFetchThreads;
constexpr int kBarrierOffset = Shape::kStages * Shape::kStageBytes;
constexpr int kAddressOffset = kBarrierOffset + (2 * Shape::kStages + 2) * 8;
constexpr int kSmemBytes = kAddressOffset + 8 + 1024;  // and the alignment of the first stage
static_assert(kSmemBytes <= 227 * 1024);

struct Barriers {
  uint64_t* full;   // a stage is there
  uint64_t* empty;  // its products are done
  uint64_t* done;   // the sums of a tile are complete
  uint64_t* taken;  // they were read
};

template <BlockScaledKind kKind>
__device__ void Fetch(const BlockScaledArgs& a, uint8_t* smem, const Barriers& bars) {
  // Copies of three stages are on their way at a time.
  constexpr int kLag = 2;
  static_assert(kLag < Shape::kStages);
  const int thread = threadIdx.x - (kStoreThreads + 32);
  const int work = BlockScaledWork<Shape::kRows>(a);
  uint32_t count = 0;
  const auto arrive = [&](uint32_t at) {
    AsyncProxyFence();
    BarrierArrive(bars.full + at % Shape::kStages);
  };
  for (int w = blockIdx.x; w < work; w += gridDim.x) {
    const BlockScaledTile tile = BlockScaledTileOf<Shape::kRows>(a, w);
    int rows[kTokenTurns];
#pragma unroll
    for (int i = 0; i < kTokenTurns; ++i) rows[i] = InputRow(a, tile, TokenPieceOf(thread, i).row);
    const int scale_row = InputRow(a, tile, thread);
    for (int s = 0; s < a.layout.stages(); ++s, ++count) {
      const uint32_t stage = count % Shape::kStages, turn = count / Shape::kStages;
      if (turn > 0) BarrierWait(bars.empty + stage, (turn & 1) ^ 1);
      uint8_t* const at = smem + stage * Shape::kStageBytes;
      const uint8_t* const panels[2] = {PanelStage(a, tile, 0, s), PanelStage(a, tile, 1, s)};
      if (thread == 0) {
        constexpr int kCodes = kKind == BlockScaledKind::kFp8 ? PanelCodeBytes(kKind) : 0;
        BarrierExpect(bars.full + stage, 2 * (kCodes + kScaleStageBytes));
        for (int i = 0; i < 2; ++i) {
          if (kCodes > 0) BulkLoad(at + Shape::kWeights + i * kCodes, panels[i], kCodes, bars.full + stage);
          BulkLoad(at + Shape::kWeightScales + i * kScaleStageBytes, panels[i] + PanelCodeBytes(kKind), kScaleStageBytes, bars.full + stage);
        }
      }
      const uint32_t to = SmemAddr(at);
      if constexpr (kKind == BlockScaledKind::kFp4) {
#pragma unroll
        for (int i = 0; i < kFp4Turns; ++i) {
          const Fp4Piece piece = Fp4PieceOf(thread, i);
          AsyncCopy8(to + Shape::kWeights + piece.to, panels[piece.panel] + piece.from);
        }
      }
      const int64_t column = tile.column + s * kStageCols;
#pragma unroll
      for (int i = 0; i < kTokenTurns; ++i) {
        const TokenPiece piece = TokenPieceOf(thread, i);
        AsyncCopy16(to + Shape::kTokens + Swizzle128(piece.row, piece.col), a.codes + max(rows[i], 0) * a.input_cols + column + piece.col,
                    rows[i] >= 0);
      }
      AsyncCopy4(to + Shape::kTokenScales + ScaleOffset<BlockScaledForm::kSm100a>(thread, 0),
                 a.scales + (max(scale_row, 0) * a.input_cols + column) / 32, scale_row >= 0);
      AsyncCommit();
      AsyncWait<kLag>();
      if (count >= kLag) arrive(count - kLag);
    }
  }
  AsyncWait<0>();
  for (uint32_t i = count > kLag ? count - kLag : 0; i < count; ++i) arrive(i);
}

__device__ void Issue(const BlockScaledArgs& a, uint8_t* smem, const Barriers& bars, uint32_t tmem) {
  const int work = BlockScaledWork<Shape::kRows>(a);
  TensorEngine engine;
  uint32_t count = 0, tiles = 0;
  for (int w = blockIdx.x; w < work; w += gridDim.x, ++tiles) {
    if (tiles > 0) BarrierWait(bars.taken, (tiles & 1) ^ 1);
    TensorFenceAfter();
    for (int s = 0; s < a.layout.stages(); ++s, ++count) {
      const int stage = static_cast<int>(count % Shape::kStages);
      BarrierWait(bars.full + stage, count / Shape::kStages & 1);
      TensorFenceAfter();
      MultiplySm100aStage(engine, a.layout.kind, SmemAddr(smem + stage * Shape::kStageBytes), tmem, stage, s == 0);
      TensorCommit(bars.empty + stage);
    }
    TensorCommit(bars.done);
  }
}

__device__ void Store(const BlockScaledArgs& a, const Barriers& bars, uint32_t tmem) {
  const int work = BlockScaledWork<Shape::kRows>(a);
  const int token = threadIdx.x;
  const uint32_t lanes = static_cast<uint32_t>(threadIdx.x / 32 * 32) << 16;
  uint32_t tiles = 0;
  for (int w = blockIdx.x; w < work; w += gridDim.x, ++tiles) {
    const BlockScaledTile tile = BlockScaledTileOf<Shape::kRows>(a, w);
    BarrierWait(bars.done, tiles & 1);
    TensorFenceAfter();
#pragma unroll 1
    for (int column = 0; column < Shape::kRows; column += 64) {
      float v[64];
      TensorLoad32(tmem + lanes + column, v);
      TensorLoad32(tmem + lanes + column + 32, v + 32);
      if (column + 64 == Shape::kRows) {
        TensorFenceBefore();
        BarrierArrive(bars.taken);
      }
      StoreBlockScaled(a, tile, token, column, v);
    }
  }
}

template <BlockScaledKind kKind>
__global__ void __launch_bounds__(kThreads, 1) BlockScaledKernel(const __grid_constant__ BlockScaledArgs a) {
  extern __shared__ uint8_t raw_smem[];
  uint8_t* const smem = raw_smem + ((1024 - (SmemAddr(raw_smem) & 1023)) & 1023);
  uint64_t* const first = reinterpret_cast<uint64_t*>(smem + kBarrierOffset);
  const Barriers bars = {first, first + Shape::kStages, first + 2 * Shape::kStages, first + 2 * Shape::kStages + 1};
  uint32_t* const address = reinterpret_cast<uint32_t*>(smem + kAddressOffset);
  // The padding of FP4 pieces stays zero.
  for (int i = threadIdx.x; i < kBarrierOffset / 16; i += kThreads) reinterpret_cast<uint4*>(smem)[i] = make_uint4(0, 0, 0, 0);
  AsyncProxyFence();
  if (threadIdx.x == 0) {
    for (int i = 0; i < Shape::kStages; ++i) {
      BarrierInit(bars.full + i, kFetchThreads + 1);
      BarrierInit(bars.empty + i, 1);
    }
    BarrierInit(bars.done, 1);
    BarrierInit(bars.taken, kStoreThreads);
    BarrierInitFence();
  }
  const int warp = threadIdx.x / 32;
  if (warp == kIssueWarp) TensorMemoryAllocate(address, Shape::kColumns);
  TensorFenceBefore();
  __syncthreads();
  TensorFenceAfter();
  const uint32_t tmem = *address;
  DependencyLaunch();
  DependencyWait();
  if (warp < kIssueWarp) {
    Store(a, bars, tmem);
  } else if (warp > kIssueWarp) {
    Fetch<kKind>(a, smem, bars);
  } else {
    if (threadIdx.x % 32 == 0) Issue(a, smem, bars, tmem);
    __syncwarp();
  }
  TensorFenceBefore();
  __syncthreads();
  TensorFenceAfter();
  if (warp == kIssueWarp) TensorMemoryFree(tmem, Shape::kColumns);
}

}  // namespace

cudaError_t LaunchBlockScaledSm100a(const BlockScaledArgs& args, bool dependent, cudaStream_t stream) {
  const int tiles = (args.layout.rows + Shape::kRows - 1) / Shape::kRows;
  const int blocks = args.jobs != nullptr ? NumMultiprocessors() : std::min(NumMultiprocessors(), tiles * args.token_tiles);
  const auto kernel =
      args.layout.kind == BlockScaledKind::kFp4 ? BlockScaledKernel<BlockScaledKind::kFp4> : BlockScaledKernel<BlockScaledKind::kFp8>;
  return Launch(kernel, dim3(blocks), dim3(kThreads), kSmemBytes, stream, dependent, args);
}

}  // namespace deepinfer::cuda
