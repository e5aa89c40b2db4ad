// SPDX-License-Identifier: Apache-2.0
//
// Block-scaled products on sm_120a: persistent blocks of eight warps, a tile of 128 tokens by 128 weight rows, three stages of
// 128 columns in 99 KiB of shared memory, filled by asynchronous copies. A warp multiplies 32 tokens by 64 rows: tokens through
// ldmatrix, weights as packed in the order of the lanes, scales as one word a lane for four instructions. Finished sums pass
// through shared memory, so that a thread stores 64 rows of a token.
#include <algorithm>

#include "backends/cuda/kernels/block_scaled.cuh"
#include "backends/cuda/kernels/launch.h"

// Other architectures have no such instruction; KernelSetOf keeps these kernels from them.
#ifdef __CUDA_ARCH_FEAT_SM120_ALL
#define DI_SM120A_ASM(...) asm volatile(__VA_ARGS__)
#else
#define DI_SM120A_ASM(...) __trap()
#endif

namespace deepinfer::cuda {
namespace {

constexpr int kThreads = Sm120aTile<BlockScaledKind::kFp8>::kWarps * 32;
constexpr int kTokenTiles = 2;  // of a warp, 16 tokens each
constexpr int kRowTiles = 8;    // of a warp, 8 weight rows each

// c += (a scale_a) (b scale_b): 16 tokens, 8 rows, 32 columns, the scales in byte kStep of the words.
template <BlockScaledKind kKind, int kStep>
__device__ __forceinline__ void MmaBlockScaled(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, uint32_t scale_a,
                                               uint32_t scale_b) {
  if constexpr (kKind == BlockScaledKind::kFp4) {
    DI_SM120A_ASM(
        "mma.sync.aligned.kind::mxf8f6f4.block_scale.scale_vec::1X.m16n8k32.row.col.f32.e4m3.e2m1.f32.ue8m0 "
        "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3}, %10, {%12, 0}, %11, {%12, 0};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "r"(scale_a), "r"(scale_b), "n"(kStep));
  } else {
    DI_SM120A_ASM(
        "mma.sync.aligned.kind::mxf8f6f4.block_scale.scale_vec::1X.m16n8k32.row.col.f32.e4m3.e4m3.f32.ue8m0 "
        "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3}, %10, {%12, 0}, %11, {%12, 0};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "r"(scale_a), "r"(scale_b), "n"(kStep));
  }
}

__device__ __forceinline__ void LoadMatrices(uint32_t address, uint32_t (&r)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];" : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(address));
}

template <BlockScaledKind kKind>
struct Block {
  using Shape = Sm120aTile<kKind>;
  const BlockScaledArgs& a;
  uint8_t* smem;
  int warp_token, warp_row;  // first of the warp

  __device__ void Fetch(const BlockScaledTile& tile, const int (&rows)[4], int scale_row, int stage) {
    if (stage < a.layout.stages()) {
      const uint32_t at = SmemAddr(smem + stage % Shape::kStages * Shape::kStageBytes);
      const uint8_t* from = PanelStage(a, tile, 0, stage);
      for (int i = threadIdx.x; i < PanelStageBytes(kKind) / 16; i += kThreads) AsyncCopy16(at + Shape::kWeights + i * 16, from + i * 16, true);
      const int64_t column = tile.column + stage * kStageCols;
      const int half = threadIdx.x / 128, thread = threadIdx.x % 128;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const TokenPiece piece = TokenPieceOf(thread, half * 4 + i);
        AsyncCopy16(at + Shape::kTokens + Swizzle128(piece.row, piece.col), a.codes + max(rows[i], 0) * a.input_cols + column + piece.col,
                    rows[i] >= 0);
      }
      if (half == 0)
        AsyncCopy4(at + Shape::kTokenScales + ScaleOffset<BlockScaledForm::kSm120a>(thread, 0),
                   a.scales + (max(scale_row, 0) * a.input_cols + column) / 32, scale_row >= 0);
    }
    AsyncCommit();
  }

  template <int kStep>
  __device__ __forceinline__ void MultiplyStep(const uint8_t* at, const uint4 (&codes)[kRowTiles], const uint32_t (&token_scales)[kTokenTiles],
                                               const uint32_t (&row_scales)[kRowTiles], float (&sums)[kTokenTiles][kRowTiles][4]) {
    const int lane = threadIdx.x % 32;
    uint32_t x[kTokenTiles][4];
#pragma unroll
    for (int i = 0; i < kTokenTiles; ++i) LoadMatrices(SmemAddr(at + Shape::kTokens + TokenOperandOffset(lane, warp_token + 16 * i, kStep)), x[i]);
#pragma unroll
    for (int j = 0; j < kRowTiles; ++j) {
      uint32_t b0, b1;
      if constexpr (kKind == BlockScaledKind::kFp4) {
        const uint32_t word = kStep == 0 ? codes[j].x : kStep == 1 ? codes[j].y : kStep == 2 ? codes[j].z : codes[j].w;
        b0 = ExpandFp4(word, 0), b1 = ExpandFp4(word, 1);
      } else {
        b0 = kStep % 2 == 0 ? codes[j].x : codes[j].z, b1 = kStep % 2 == 0 ? codes[j].y : codes[j].w;
      }
#pragma unroll
      for (int i = 0; i < kTokenTiles; ++i) MmaBlockScaled<kKind, kStep>(sums[i][j], x[i], b0, b1, token_scales[i], row_scales[j]);
    }
  }

  __device__ __forceinline__ void Multiply(int stage, float (&sums)[kTokenTiles][kRowTiles][4]) {
    const uint8_t* const at = smem + stage % Shape::kStages * Shape::kStageBytes;
    const int lane = threadIdx.x % 32;
    const auto word = [&](int offset, int row) {
      return *reinterpret_cast<const uint32_t*>(at + offset + ScaleOffset<BlockScaledForm::kSm120a>(row, 0));
    };
    uint32_t token_scales[kTokenTiles], row_scales[kRowTiles];
#pragma unroll
    for (int i = 0; i < kTokenTiles; ++i) token_scales[i] = word(Shape::kTokenScales, warp_token + 16 * i + TokenScaleRow(lane));
#pragma unroll
    for (int j = 0; j < kRowTiles; ++j) row_scales[j] = word(Shape::kWeightScales, warp_row + 8 * j + WeightScaleRow(lane));
    uint4 codes[kRowTiles];
    const auto load = [&](int half) {
#pragma unroll
      for (int j = 0; j < kRowTiles; ++j) {
        const int tile = warp_row / 8 + j;
        codes[j] = *reinterpret_cast<const uint4*>(
            at + Shape::kWeights + (kKind == BlockScaledKind::kFp4 ? Fp4OperandOffset(lane, tile) : Fp8OperandOffset(lane, tile, half)));
      }
    };
    load(0);
    MultiplyStep<0>(at, codes, token_scales, row_scales, sums);
    MultiplyStep<1>(at, codes, token_scales, row_scales, sums);
    if constexpr (kKind == BlockScaledKind::kFp8) load(1);
    MultiplyStep<2>(at, codes, token_scales, row_scales, sums);
    MultiplyStep<3>(at, codes, token_scales, row_scales, sums);
  }

  __device__ void Run(const BlockScaledTile& tile) {
    int rows[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) rows[i] = InputRow(a, tile, TokenPieceOf(threadIdx.x % 128, threadIdx.x / 128 * 4 + i).row);
    const int scale_row = InputRow(a, tile, threadIdx.x % 128);
    for (int s = 0; s < Shape::kStages - 1; ++s) Fetch(tile, rows, scale_row, s);
    float sums[kTokenTiles][kRowTiles][4] = {};
    for (int s = 0; s < a.layout.stages(); ++s) {
      AsyncWait<Shape::kStages - 2>();
      __syncthreads();  // stage s is there, and everyone is done with the one before
      Fetch(tile, rows, scale_row, s + Shape::kStages - 1);
      Multiply(s, sums);
    }
    AsyncWait<0>();
    __syncthreads();
    float* const all = reinterpret_cast<float*>(smem);
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < kTokenTiles; ++i) {
#pragma unroll
      for (int j = 0; j < kRowTiles; ++j) {
        float* to = all + (warp_token + 16 * i + lane / 4) * Shape::kSumStride + warp_row + 8 * j + lane % 4 * 2;
        *reinterpret_cast<float2*>(to) = make_float2(sums[i][j][0], sums[i][j][1]);
        *reinterpret_cast<float2*>(to + 8 * Shape::kSumStride) = make_float2(sums[i][j][2], sums[i][j][3]);
      }
    }
    __syncthreads();
    const int token = threadIdx.x % 128, column = threadIdx.x / 128 * 64;
    float v[64];
#pragma unroll
    for (int i = 0; i < 64; i += 4) {
      const float4 f = *reinterpret_cast<const float4*>(all + token * Shape::kSumStride + column + i);
      v[i] = f.x, v[i + 1] = f.y, v[i + 2] = f.z, v[i + 3] = f.w;
    }
    StoreBlockScaled(a, tile, token, column, v);
    __syncthreads();
  }
};

template <BlockScaledKind kKind>
__global__ void __launch_bounds__(kThreads, 1) BlockScaledKernel(const __grid_constant__ BlockScaledArgs a) {
  extern __shared__ __align__(128) uint8_t smem[];
  DependencyLaunch();
  DependencyWait();
  const int warp = threadIdx.x / 32;
  Block<kKind> block{a, smem, warp % 4 * 32, warp / 4 * 64};
  const int work = BlockScaledWork<kPanelRows>(a);
  for (int w = blockIdx.x; w < work; w += gridDim.x) block.Run(BlockScaledTileOf<kPanelRows>(a, w));
}

template <BlockScaledKind kKind>
cudaError_t LaunchKind(const BlockScaledArgs& args, bool dependent, cudaStream_t stream) {
  const int blocks = args.jobs != nullptr ? NumMultiprocessors() : std::min(NumMultiprocessors(), args.layout.panels() * args.token_tiles);
  return Launch(BlockScaledKernel<kKind>, dim3(blocks), dim3(kThreads), Sm120aTile<kKind>::kBytes, stream, dependent, args);
}

}  // namespace

cudaError_t LaunchBlockScaledSm120a(const BlockScaledArgs& args, bool dependent, cudaStream_t stream) {
  return args.layout.kind == BlockScaledKind::kFp4 ? LaunchKind<BlockScaledKind::kFp4>(args, dependent, stream)
                                                   : LaunchKind<BlockScaledKind::kFp8>(args, dependent, stream);
}

}  // namespace deepinfer::cuda
