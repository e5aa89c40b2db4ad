// SPDX-License-Identifier: Apache-2.0
//
// Core of the products with many rows: persistent blocks of 64 weight rows a warpgroup by up to kMaxTokens tokens. One warpgroup fetches:
// packed weights by bulk copies, activations (gathered rows) by asynchronous copies into tiles of 32 columns, 64 bytes a row,
// swizzled. The others decode their weight rows into registers, as the kernel for few rows does, and multiply with
// wgmma. With kByslice the sums are made slice by slice and then added, which gives the bits of the kernel for few rows.
#pragma once

#include "backends/cuda/kernels/ptx.cuh"
#include "backends/cuda/kernels/weights.cuh"
#include "backends/cuda/kernels/wgmma.cuh"

namespace deepinfer::cuda {

// Registers of a thread: what a block is started with (see __launch_bounds__), and how warpgroups share it out. Decoding has
// long chains of instructions, so four warpgroups of 64 rows hide more latency than two of 128.
template <int kWarpgroups>
struct WideThreads {
  static constexpr int kCount = 128 * (kWarpgroups + 1);
  static constexpr int kStart = 65536 / kCount / 8 * 8;
  static constexpr int kProducer = kWarpgroups == 4 ? 32 : 40;
  static constexpr int kConsumer = ((kWarpgroups + 1) * kStart - kProducer) / kWarpgroups / 8 * 8;
};

template <typename G, int kMaxTokens_, int kWarpgroups_>
struct WideSmem {
  using Geometry = G;
  static constexpr int kMaxTokens = kMaxTokens_;
  static constexpr int kWarpgroups = kWarpgroups_;  // that multiply, 64 rows each
  using Threads = WideThreads<kWarpgroups>;
  static constexpr int kRows = 64 * kWarpgroups;
  // A stage is a part of a chunk: its groups and, whole, its scales. Measured: smaller stages cost more than deeper rings win.
  static constexpr int kParts = 1;
  static constexpr int kGroups = G::kChunk / kParts;
  static constexpr int kCodeBytes = kGroups * G::kGroupBytes;
  static constexpr int kTileBytes = kCodeBytes + G::kScaleBytes;  // of 16 rows
  static constexpr int kWeightBytes = kRows / 16 * kTileBytes;
  static constexpr int kTokenBytes = kGroups * kMaxTokens * 64;
  // Tiles are aligned to 1024 bytes.
  static constexpr int kStageBytes = (kTokenBytes + kWeightBytes + 1023) / 1024 * 1024;
  static constexpr int kBudget = 214 << 10;
  static constexpr int kStages = kBudget / kStageBytes < 6 ? kBudget / kStageBytes : 6;
  static_assert(kStages >= 2);
  static constexpr int kBarrierOffset = kStages * kStageBytes;
  static constexpr int kMaximaOffset = kBarrierOffset + 2 * kStages * 8 + (kStages & 1) * 16;
  static constexpr int kBytes = kMaximaOffset + kWarpgroups * 4 * kMaxTokens * 4 + 1024;
  static_assert(kBytes <= 227 * 1024);
};

// What a block multiplies: `rows` of weights from unit `first_tile` (16 rows each) by `count` tokens.
struct WideTile {
  const uint8_t* weights;  // of the matrix
  int first_tile;
  int num_tiles;  // of the matrix
  int count;
  int64_t column;  // of x
};

// Chunk `chunk` of slice `slice` (of all segments) of row tile `tile`.
template <typename G>
__device__ __forceinline__ const uint8_t* WideChunk(const uint8_t* weights, int tile, int slice, int chunk, int units_per_segment) {
  const int unit = tile / G::kRowTiles + slice / G::kSlices * units_per_segment;
  const int slot = tile % G::kRowTiles * G::kSlices + slice % G::kSlices;
  return weights + (int64_t{unit} * kPackWarps + slot) * (G::kChunks * G::kChunkBytes) + chunk * G::kChunkBytes;
}

// The fetching warpgroup. row_of(token): first value of a token's row of x, null = zeros.
template <typename S>
struct WideProducer {
  using G = typename S::Geometry;
  static constexpr int kMaxTokens = S::kMaxTokens;
  uint8_t* smem;
  uint64_t* full;
  uint64_t* empty;
  uint32_t count = 0;  // stages so far
  // With three stages or more the copies of two are on their way at a time.
  static constexpr int kLag = S::kStages >= 3 ? 1 : 0;

  __device__ void Arrive(uint32_t stage) {
    AsyncProxyFence();
    BarrierArrive(full + stage % S::kStages);
  }
  // After the last tile.
  __device__ void Finish() {
    AsyncWait<0>();
    if (kLag > 0 && count > 0) Arrive(count - 1);
  }

  template <typename RowOf>
  __device__ void Fetch(const WideTile& tile, int segments, int units_per_segment, RowOf&& row_of) {
    const int thread = threadIdx.x % 128;
    // Four threads share a row's 64 bytes of each group; a thread has up to kTurns rows.
    constexpr int kTurns = (kMaxTokens + 31) / 32;
    const int quarter = thread % 4, first_token = thread / 4;
    const __nv_bfloat16* rows[kTurns];
#pragma unroll
    for (int i = 0; i < kTurns; ++i) rows[i] = row_of(first_token + 32 * i);
    const int tokens = (tile.count + 15) / 16 * 16;
    const uint32_t offset = first_token * 64 + ((quarter ^ ((first_token >> 1) & 3)) << 4);
    for (int slice = 0; slice < segments * G::kSlices; ++slice) {
      for (int part = 0; part < G::kChunks * S::kParts; ++part, ++count) {
        const int chunk = part / S::kParts, in_chunk = part % S::kParts;
        const int stage = count % S::kStages;
        const uint32_t turn = count / S::kStages;
        if (turn > 0) BarrierWait(empty + stage, (turn & 1) ^ 1);
        uint8_t* const at = smem + stage * S::kStageBytes;
        if (thread == 0) BarrierExpect(full + stage, S::kWeightBytes);
        __syncwarp();
        if (thread < S::kRows / 16) {
          const int row_tile = min(tile.first_tile + thread, tile.num_tiles - 1);
          const uint8_t* from = WideChunk<G>(tile.weights, row_tile, slice, chunk, units_per_segment);
          uint8_t* to = at + S::kTokenBytes + thread * S::kTileBytes;
          if constexpr (S::kParts == 1) {
            BulkLoad(to, from, S::kTileBytes, full + stage);
          } else {
            BulkLoad(to, from + in_chunk * S::kCodeBytes, S::kCodeBytes, full + stage);
            BulkLoad(to + S::kCodeBytes, from + G::kChunk * G::kGroupBytes, G::kScaleBytes, full + stage);
          }
        }
        const int64_t column = tile.column + (slice * G::kGroups + part * S::kGroups) * 32;
#pragma unroll
        for (int i = 0; i < kTurns; ++i) {
          if (first_token + 32 * i < tokens) {
            const bool is_present = rows[i] != nullptr;
            const __nv_bfloat16* from = is_present ? rows[i] + column + quarter * 8 : reinterpret_cast<const __nv_bfloat16*>(tile.weights);
            const uint32_t to = SmemAddr(at) + offset + i * 2048;
#pragma unroll
            for (int g = 0; g < S::kGroups; ++g) AsyncCopy16(to + g * (kMaxTokens * 64), from + (is_present ? g * 32 : 0), is_present);
          }
        }
        AsyncCommit();
        AsyncWait<kLag>();
        if (kLag == 0) {
          Arrive(count);
        } else if (count > 0) {
          Arrive(count - 1);
        }
      }
    }
  }
};

// The multiplying warpgroups. Sums of 64 rows each: register layout of wgmma.cuh.
template <typename S>
struct WideConsumer {
  using G = typename S::Geometry;
  static constexpr int kMaxTokens = S::kMaxTokens;
  uint8_t* smem;
  uint64_t* full;
  uint64_t* empty;
  uint32_t count = 0;

  // One stage: groups of 32 columns, operands of the next are decoded while the tensor cores work.
  template <int kN>
  __device__ __forceinline__ void MultiplyStage(float (&acc)[kN / 2], bool is_first, int in_chunk) {
    const int stage = count % S::kStages;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const uint8_t* const at = smem + stage * S::kStageBytes;
    const uint8_t* const weights = at + S::kTokenBytes + warp * S::kTileBytes;
    BarrierWait(full + stage, count / S::kStages & 1);
    uint32_t a[2][2][4];
#pragma unroll
    for (int i = 0; i < S::kGroups; ++i) {
      // While these operands are decoded, the tensor cores work on the group before.
      uint32_t(&operands)[2][4] = a[i & 1];
      DecodeGroup<G>(weights, i, weights + S::kCodeBytes, in_chunk * S::kGroups + i, lane, operands);
      FenceRegisters(operands);
      FenceRegisters(acc);
      WarpgroupArrive();
#pragma unroll
      for (int step = 0; step < 2; ++step) {
        const uint64_t b = SmemDescriptor(SmemAddr(at) + i * (kMaxTokens * 64) + step * 32, 512, Swizzle::k64);
        Wgmma<kN>::template RS<false>(acc, operands[step], b, !is_first || i > 0 || step > 0);
      }
      WarpgroupCommit();
      WarpgroupWait<1>();
    }
    WarpgroupWait<0>();
    FenceRegisters(acc);
    if (lane == 0) BarrierArrive(empty + stage);
    ++count;
  }

  template <int kN, bool kBySlice, int kSegments>
  __device__ __forceinline__ void Multiply(float (&total)[kN / 2]) {
    if constexpr (!kBySlice) {
      MultiplyStage<kN>(total, true, 0);
      for (int i = 1; i < kSegments * G::kSlices * G::kChunks * S::kParts; ++i) MultiplyStage<kN>(total, false, i % S::kParts);
    } else {
      float before[kSegments == 2 ? kN / 2 : 1];
#pragma unroll
      for (int segment = 0; segment < kSegments; ++segment) {
        for (int slice = 0; slice < G::kSlices; ++slice) {
          float acc[kN / 2];
          for (int chunk = 0; chunk < G::kChunks; ++chunk) {
#pragma unroll
            for (int part = 0; part < S::kParts; ++part) MultiplyStage<kN>(acc, chunk == 0 && part == 0, part);
          }
#pragma unroll
          for (int i = 0; i < kN / 2; ++i) total[i] = slice == 0 ? acc[i] : total[i] + acc[i];
        }
        if constexpr (kSegments == 2) {
#pragma unroll
          for (int i = 0; i < kN / 2; ++i) {
            if (segment == 0) before[i] = total[i];
            if (segment == 1) total[i] = before[i] + total[i];
          }
        }
      }
    }
  }
};

// Transposes an 8 x 8 tile of bf16: lane 4g + t gives row g, columns 2t and 2t + 1, and gets row g of the transposed tile.
__device__ __forceinline__ uint32_t Transpose8x8(uint32_t x) {
  uint32_t y;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
  return y;
}

// The barriers of all stages, by the whole block.
template <typename S>
__device__ __forceinline__ void InitStages(uint64_t* full, uint64_t* empty) {
  if (threadIdx.x == 0) {
    for (int i = 0; i < S::kStages; ++i) {
      BarrierInit(full + i, 129);
      BarrierInit(empty + i, 4 * S::kWarpgroups);
    }
    BarrierInitFence();
  }
  __syncthreads();
}

template <typename S>
__device__ __forceinline__ uint8_t* AlignedSmem(uint8_t* raw) {
  return raw + ((1024 - (SmemAddr(raw) & 1023)) & 1023);
}

}  // namespace deepinfer::cuda
