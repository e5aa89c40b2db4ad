// SPDX-License-Identifier: Apache-2.0
//
// Core of the products with few rows (at most 16 at a time): one block of sixteen warps per multiprocessor walks through
// units of packed weights. Every warp has a ring of its own in shared memory that bulk copies fill several chunks ahead, holds
// its slice of the activations in registers as tensor-core operands, and multiplies 16 weight rows by 8 or 16 tokens. The
// partial sums of four units (a batch) go to a buffer; some warps add the slices, in ascending order, while the others are at
// the next batch. The order of sums depends on the shape alone.
#pragma once

#include "backends/cuda/kernels/numbers.cuh"
#include "backends/cuda/kernels/ptx.cuh"
#include "backends/cuda/kernels/weights.cuh"

namespace deepinfer::cuda {

constexpr int kStreamThreads = kPackWarps * 32;
constexpr int kBatchUnits = 4;

template <typename G>
struct StreamRing {
  static constexpr int kBudget = 140 << 10;
  static constexpr int kDepth = kBudget / (kPackWarps * G::kChunkBytes);
  static_assert(kDepth >= 2);
  static constexpr int kWarpBytes = kDepth * G::kChunkBytes;
  static constexpr int kBytes = kPackWarps * kWarpBytes;
};

// Partial sums of a unit: [warp][token][20] of 16 rows.
constexpr int kPartialStride = 20;
template <int kTokenTiles>
struct Partials {
  static constexpr int kTokens = 8 * kTokenTiles;
  static constexpr int kWarpFloats = kTokens * kPartialStride;
  static constexpr int kUnitFloats = kPackWarps * kWarpFloats;
  static constexpr int kBatchFloats = kBatchUnits * kUnitFloats;
  static constexpr int kBuffers = 2 / kTokenTiles;
  static constexpr int kOwners = kPackWarps / kBuffers;  // warps that add the slices of a batch
};
constexpr int kPartialBytes = Partials<1>::kBatchFloats * Partials<1>::kBuffers * 4;
static_assert(kPartialBytes == Partials<2>::kBatchFloats * Partials<2>::kBuffers * 4);

// Barriers of the buffers: written and read, two for one token tile, one for two.
constexpr int kBatchBarriers = 6;

template <typename G>
struct StreamSmem {
  static constexpr int kPartialOffset = StreamRing<G>::kBytes;
  static constexpr int kBatchOffset = kPartialOffset + kPartialBytes;
  static constexpr int kRingOffset = kBatchOffset + kBatchBarriers * 8;
  static constexpr int kBytes = kRingOffset + kPackWarps * StreamRing<G>::kDepth * 8;
  static_assert(kBytes <= 227 * 1024 - 2048);
};

// The ring of one warp. All lanes call Wait and Next together.
template <typename G>
struct WarpRing {
  using Ring = StreamRing<G>;
  uint8_t* data;
  uint64_t* full;
  int slot = 0;
  uint32_t phase = 0;

  __device__ void Init(uint8_t* smem, int warp, int lane) {
    data = smem + warp * Ring::kWarpBytes;
    full = reinterpret_cast<uint64_t*>(smem + StreamSmem<G>::kRingOffset) + warp * Ring::kDepth;
    if (lane == 0) {
      for (int i = 0; i < Ring::kDepth; ++i) BarrierInit(full + i, 1);
      BarrierInitFence();
    }
    __syncwarp();
  }
  // Lane 0: the next chunk into `at`.
  __device__ void Fill(int at, const uint8_t* from) {
    BarrierExpect(full + at, G::kChunkBytes);
    BulkLoad(data + at * G::kChunkBytes, from, G::kChunkBytes, full + at);
  }
  __device__ const uint8_t* Wait() {
    BarrierWait(full + slot, phase);
    return data + slot * G::kChunkBytes;
  }
  __device__ void Next() {
    if (++slot == Ring::kDepth) slot = 0, phase ^= 1;
  }
};

// Barriers in front of the first use: once per block, before a __syncthreads.
__device__ __forceinline__ void InitBatchBarriers(uint64_t* bars) {
  for (int i = 0; i < 2; ++i) {
    BarrierInit(bars + i, kPackWarps);
    BarrierInit(bars + 2 + i, Partials<1>::kOwners);
  }
  BarrierInit(bars + 4, kPackWarps);
  BarrierInit(bars + 5, Partials<2>::kOwners);
}

// The buffers of partial sums as one warp sees them. `count` numbers the batches of this kind in the block.
template <int kTokenTiles>
struct BatchBuffers {
  using P = Partials<kTokenTiles>;
  float* partial;
  uint64_t* bars;
  uint32_t count = 0;

  __device__ uint64_t* written() const { return bars + (kTokenTiles == 1 ? count % 2 : 4); }
  __device__ uint64_t* read() const { return bars + (kTokenTiles == 1 ? 2 + count % 2 : 5); }
  __device__ float* buffer() const { return partial + (count % P::kBuffers) * P::kBatchFloats; }
  __device__ uint32_t parity() const { return count / P::kBuffers & 1; }
  // Before the first write of a batch.
  __device__ void WaitFree() const {
    if (count >= P::kBuffers) BarrierWait(read(), parity() ^ 1);
  }
  // Index of the warp among those that add this batch, negative: not one of them.
  __device__ int Owner(int warp) const {
    if constexpr (P::kBuffers == 1) return warp;
    const int index = warp - static_cast<int>(count % 2) * P::kOwners;
    return index < P::kOwners ? index : -1;
  }
};

// FP8 fake quantisation of 32 columns held by four neighbouring lanes, eight bf16 values each. Done twice it changes nothing.
__device__ __forceinline__ uint4 QuantizeColumns(uint4 v) {
  uint32_t w[4] = {v.x, v.y, v.z, v.w};
  float amax = 0.0f;
#pragma unroll
  for (uint32_t x : w) amax = fmaxf(amax, fmaxf(fabsf(__uint_as_float(x << 16)), fabsf(__uint_as_float(x & 0xffff0000u))));
  amax = fmaxf(amax, __shfl_xor_sync(0xffffffffu, amax, 1));
  amax = fmaxf(amax, __shfl_xor_sync(0xffffffffu, amax, 2));
  const int e = QuantExponent(amax);
  const float down = PowerOfTwo(-e), up = PowerOfTwo(e);
#pragma unroll
  for (uint32_t& x : w) {
    const float2 scaled = make_float2(__uint_as_float(x << 16) * down, __uint_as_float(x & 0xffff0000u) * down);
    const __half2_raw q = __nv_cvt_fp8x2_to_halfraw2(__nv_cvt_float2_to_fp8x2(scaled, __NV_SATFINITE, __NV_E4M3), __NV_E4M3);
    const float2 f = __half22float2(__half2(q));
    x = PackBf16(f.x * up, f.y * up);
  }
  return make_uint4(w[0], w[1], w[2], w[3]);
}

// Operand registers of a warp's slice: token 8 * n + lane / 4, columns 2t, 2t + 1, 2t + 8, 2t + 9 of each 16. Rows that are
// null are zeros. `from` points at the first column of the slice. Lanes load 16 bytes each and exchange them in fours.
template <typename G, int kTokenTiles, bool kQuantize = false>
__device__ __forceinline__ void LoadTokens(const __nv_bfloat16* const (&from)[kTokenTiles], int lane,
                                           uint32_t (&x)[G::kGroups][kTokenTiles][4]) {
  const int t = lane % 4;
#pragma unroll
  for (int n = 0; n < kTokenTiles; ++n) {
#pragma unroll
    for (int group = 0; group < G::kGroups; ++group) {
      uint4 v = make_uint4(0, 0, 0, 0);
      if (from[n] != nullptr) v = LoadU128(from[n] + group * 32 + t * 8);
      if constexpr (kQuantize) v = QuantizeColumns(v);
      x[group][n][0] = v.x, x[group][n][1] = v.y, x[group][n][2] = v.z, x[group][n][3] = v.w;
    }
  }
  // 4 x 4 transpositions: word j of lane t becomes word t of lane j.
#pragma unroll
  for (int n = 0; n < kTokenTiles; ++n) {
#pragma unroll
    for (int group = 0; group < G::kGroups; ++group) {
      uint32_t(&w)[4] = x[group][n];
#pragma unroll
      for (int d = 1; d <= 2; d *= 2) {
        const bool high = t & d;
#pragma unroll
        for (int k = 0; k < 2; ++k) {
          const int i = d == 1 ? 2 * k : k;  // the pair (i, i + d)
          const uint32_t sent = high ? w[i] : w[i + d];
          const uint32_t received = __shfl_xor_sync(0xffffffffu, sent, d);
          if (high) {
            w[i] = received;
          } else {
            w[i + d] = received;
          }
        }
      }
    }
  }
}

// One unit of a warp: waits for its chunks, multiplies, asks for the chunk `next(i)` for each one used (null = none).
template <typename G, int kTokenTiles, typename NextChunk>
__device__ __forceinline__ void MultiplyUnit(WarpRing<G>& ring, const uint32_t (&x)[G::kGroups][kTokenTiles][4], int lane,
                                             float (&acc)[kTokenTiles][4], NextChunk&& next) {
#pragma unroll
  for (int n = 0; n < kTokenTiles; ++n) acc[n][0] = acc[n][1] = acc[n][2] = acc[n][3] = 0.0f;
#pragma unroll
  for (int c = 0; c < G::kChunks; ++c) {
    const uint8_t* chunk = ring.Wait();
#pragma unroll
    for (int i = 0; i < G::kChunk; ++i) {
      uint32_t a[2][4];
      DecodeGroup<G>(chunk, i, chunk + G::kChunk * G::kGroupBytes, i, lane, a);
#pragma unroll
      for (int n = 0; n < kTokenTiles; ++n) {
        MmaBf16(acc[n], a[0], x[c * G::kChunk + i][n][0], x[c * G::kChunk + i][n][1]);
        MmaBf16(acc[n], a[1], x[c * G::kChunk + i][n][2], x[c * G::kChunk + i][n][3]);
      }
    }
    __syncwarp();
    if (lane == 0) {
      const uint8_t* from = next(c);
      if (from != nullptr) ring.Fill(ring.slot, from);
    }
    ring.Next();
  }
}

template <int kTokenTiles>
__device__ __forceinline__ void StorePartial(float* unit, const float (&acc)[kTokenTiles][4], int warp, int lane) {
  float* to = unit + warp * Partials<kTokenTiles>::kWarpFloats + 2 * (lane % 4) * kPartialStride + lane / 4;
#pragma unroll
  for (int n = 0; n < kTokenTiles; ++n) {
    to[(8 * n) * kPartialStride] = acc[n][0];
    to[(8 * n + 1) * kPartialStride] = acc[n][1];
    to[(8 * n) * kPartialStride + 8] = acc[n][2];
    to[(8 * n + 1) * kPartialStride + 8] = acc[n][3];
  }
}

// Sum over the slices of row `row` (0..15) of row tile `tile` and token `token`.
template <typename G, int kTokenTiles>
__device__ __forceinline__ float SumSlices(const float* unit, int tile, int token, int row) {
  const float* from = unit + tile * G::kSlices * Partials<kTokenTiles>::kWarpFloats + token * kPartialStride + row;
  float sum = from[0];
#pragma unroll
  for (int s = 1; s < G::kSlices; ++s) sum += from[s * Partials<kTokenTiles>::kWarpFloats];
  return sum;
}

// Units [unit, last) of a warp with one set of operands. next(): the chunk to ask for; reduce(buffer, first_unit, num_units,
// owner): adds the slices of a batch, called by all lanes of the owner warps.
template <typename G, int kTokenTiles, typename NextChunk, typename Reduce>
__device__ __forceinline__ void RunUnits(WarpRing<G>& ring, BatchBuffers<kTokenTiles>& batches,
                                         const uint32_t (&x)[G::kGroups][kTokenTiles][4], int warp, int lane, int unit, int last,
                                         NextChunk&& next, Reduce&& reduce) {
  using P = Partials<kTokenTiles>;
  while (unit < last) {
    const int n = min(kBatchUnits, last - unit);
    float* const buffer = batches.buffer();
    for (int j = 0; j < n; ++j) {
      float acc[kTokenTiles][4];
      MultiplyUnit<G, kTokenTiles>(ring, x, lane, acc, next);
      if (j == 0) batches.WaitFree();
      StorePartial<kTokenTiles>(buffer + j * P::kUnitFloats, acc, warp, lane);
    }
    __syncwarp();
    if (lane == 0) BarrierArrive(batches.written());
    const int owner = batches.Owner(warp);
    if (owner >= 0) {
      BarrierWait(batches.written(), batches.parity());
      reduce(buffer, unit, n, owner);
      __syncwarp();
      if (lane == 0) BarrierArrive(batches.read());
    }
    ++batches.count;
    unit += n;
  }
}

}  // namespace deepinfer::cuda
