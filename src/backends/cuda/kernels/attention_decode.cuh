// SPDX-License-Identifier: Apache-2.0
//
// Blocks of sparse attention: their shared memory and work, and the warps that decode keys into
// tiles.
#pragma once

#include "backends/cuda/kernels/attention_keys.cuh"

namespace deepinfer::cuda {

constexpr int kConsumerThreads = 256;
constexpr int kDecoders = 8;  // warps
constexpr int kRawSlots = 2;  // of a decoding warp
constexpr int kQueryBytes = kHeads * kDim * 2;
constexpr int kQueryPanelBytes = kHeads * 128;

// What the multiplying warpgroups tell each other, and the other block.
struct Exchange {
  uint4 weights[2][2][128];  // [warpgroup][step of 16 keys][thread]
  float maxima[2][kHeads];
  float sums[2][kHeads];
  float sinks[kHeads];
  float rope[2][64];     // of this and of the next row
  float2 other[kHeads];  // maximum and sum of the other block
};
struct Barriers {
  uint64_t full[4];   // halves of the two tiles
  uint64_t empty[2];  // tiles
  uint64_t raw[kDecoders][kRawSlots];
  uint64_t other_ready;  // the other block's tile may be written
  uint64_t other_sent;
};
constexpr int kTilesOffset = kQueryBytes;
constexpr int kRawOffset = kTilesOffset + 2 * kTileBytes;
constexpr int kExchangeOffset = kRawOffset + kDecoders * kRawSlots * kRawBytes;
constexpr int kBarriersOffset = kExchangeOffset + static_cast<int>(sizeof(Exchange));
constexpr int kSmemBytes = kBarriersOffset + static_cast<int>(sizeof(Barriers));
static_assert(kSmemBytes + 1024 <= 227 * 1024);

// Threads of a block and registers of a thread.
template <int kParts>
struct Threads {
  static constexpr int kDecode = kParts == 0 ? kDecoders * 32 : 512;
  static constexpr int kCount = kConsumerThreads + kDecode;
  static constexpr int kStartRegisters = kParts == 0 ? 128 : 80;
  static constexpr int kMultiplyRegisters = kParts == 0 ? 184 : 128;
  static constexpr int kDecodeRegisters = kParts == 0 ? 72 : 56;
  static_assert(kConsumerThreads * kMultiplyRegisters + kDecode * kDecodeRegisters <=
                kCount * kStartRegisters);
};

// The work of a block. kParts: 0 = the even or the odd splits of every row; else one split and one
// of kParts parts of the channels.
template <int kParts>
struct Work {
  int first_row, row_step, rank, only_split, part;

  __device__ __forceinline__ explicit Work(int rows) {
    if constexpr (kParts == 0) {
      first_row = blockIdx.x / 2, row_step = gridDim.x / 2, rank = blockIdx.x % 2, only_split = 0,
      part = 0;
    } else {
      first_row = blockIdx.y, row_step = rows, rank = 0, only_split = blockIdx.x / kParts,
      part = blockIdx.x % kParts;
    }
  }
  // Splits of a row that the block of this rank makes, and the number of the i-th.
  __device__ __forceinline__ int Count(const RowKeys& k, int of_rank) const {
    if constexpr (kParts > 0) return only_split < k.splits();
    return (k.splits() + 1 - of_rank) / 2;
  }
  __device__ __forceinline__ int Split(int i) const {
    return kParts > 0 ? only_split : 2 * i + rank;
  }
};

// Keys of a decoding warp in up to eight halves: lane 4m + j has key j of half m.
struct Batch {
  int num_halves = 0;
  KeyPlace place;
  // Masks by lane: a bit at the first lane of every half of FP4 records; of every piece, which is
  // such a half or two FP8 keys.
  uint32_t fp4_halves = 0, pieces = 0;
  int head = -1;  // first lane of this lane's piece

  __device__ __forceinline__ bool IsFp4(int m) const { return fp4_halves >> (4 * m) & 1; }
  __device__ __forceinline__ bool IsPiece(int pair) const { return pieces >> (2 * pair) & 1; }

  __device__ __forceinline__ void FormPieces(int lane) {
    const uint32_t fp4 = __ballot_sync(0xffffffffu, place.source == Source::kFp4);
    const uint32_t fp8 = __ballot_sync(0xffffffffu, place.source == Source::kFp8);
    const bool is_half = (fp4 >> (lane & 28) & 15) == 15;
    const bool is_pair = (fp8 >> (lane & 30) & 3) == 3;
    fp4_halves = __ballot_sync(0xffffffffu, is_half);
    if (is_half || is_pair) head = is_half ? lane & 28 : lane & 30;
    pieces = __ballot_sync(0xffffffffu, head == lane);
  }
};
constexpr int kBatchHalves = 32 / kWarpKeys;

// The halves that a block works on, in order.
template <int kParts>
struct Halves {
  const SparseAttentionArgs& a;
  const Work<kParts>& work;
  RowKeys keys;
  int row, half;

  __device__ __forceinline__ Batch Next(int warp, int lane) {
    Batch b;
    if (row >= a.rows) return b;
    int end = 2 * work.Count(keys, work.rank);
    while (half >= end) {
      row += work.row_step;
      if (row >= a.rows) return b;
      keys = KeysOf(a, row);
      half = 0;
      end = 2 * work.Count(keys, work.rank);
    }
    b.num_halves = min(kBatchHalves, end - half);
    const int m = lane / kWarpKeys;
    if (m < b.num_halves) {
      const int i = work.Split((half + m) / 2) * kKeys + (half + m) % 2 * kHalfKeys +
                    warp * kWarpKeys + lane % kWarpKeys;
      b.place = Resolve(a, keys, SelectedOf(a, keys, row, i), i);
    }
    b.FormPieces(lane);
    half += kBatchHalves;
    return b;
  }
};

// A decoding warp: its four keys of every half.
template <int kParts>
__device__ __forceinline__ void Decode(const SparseAttentionArgs& a,
                                       const Work<kParts>& work,
                                       const RowKeys& keys,
                                       uint8_t* smem) {
  auto* const bars = reinterpret_cast<Barriers*>(smem + kBarriersOffset);
  const int warp = (threadIdx.x - kConsumerThreads) / 32, lane = threadIdx.x % 32;
  uint8_t* const raw = smem + kRawOffset + warp * kRawSlots * kRawBytes;
  uint32_t count = 0;                 // halves so far
  uint32_t fetched = 0, decoded = 0;  // pieces
  Halves<kParts> halves{a, work, keys, work.first_row, 0};
  Batch now = halves.Next(warp, lane);
  uint32_t wanted = now.pieces;  // of this batch, then of the next one; not asked for yet
  const auto fetch = [&](uint64_t address, int piece, uint32_t fp4_halves) {
    const int head = __ffs(static_cast<int>(wanted)) - 1;
    wanted &= wanted - 1;
    const int slot = fetched++ % kRawSlots;
    uint64_t* const bar = &bars->raw[warp][slot];
    const bool is_fp4 = fp4_halves >> head & 1;
    const int bytes = is_fp4 ? kFp4Bytes : kFp8Bytes;
    if (lane == head) BarrierExpect(bar, is_fp4 ? kWarpKeys * kFp4Bytes : 2 * kFp8Bytes);
    __syncwarp();
    if (piece == head)
      BulkLoad(raw + slot * kRawBytes + (lane - head) * bytes,
               reinterpret_cast<const void*>(address),
               bytes,
               bar);
  };
  for (int i = 0; i < kRawSlots && wanted != 0; ++i)
    fetch(now.place.address, now.head, now.fp4_halves);
  while (now.num_halves > 0) {
    // Looked up while the copies of the first halves are on their way.
    const Batch next = halves.Next(warp, lane);
    next.place.Prefetch();
    bool in_next = wanted == 0;  // pieces of the next batch are asked for
    if (in_next) wanted = next.pieces;
    // A slot is free.
    const auto fetch_more = [&] {
      ++decoded;
      if (wanted == 0) return;
      fetch(in_next ? next.place.address : now.place.address,
            in_next ? next.head : now.head,
            in_next ? next.fp4_halves : now.fp4_halves);
      if (wanted == 0 && !in_next) in_next = true, wanted = next.pieces;
    };
    for (int m = 0; m < now.num_halves; ++m, ++count) {
      const uint32_t tile = count / 2 & 1, turn = count / 4;
      const LaneChunks to(smem + kTilesOffset + (count & 3) * kHalfBytes, warp * kWarpKeys, lane);
      if (turn > 0) BarrierWait(&bars->empty[tile], (turn & 1) ^ 1);
      const auto wait = [&] {
        const int slot = decoded % kRawSlots;
        BarrierWait(&bars->raw[warp][slot], decoded / kRawSlots & 1);
        return raw + slot * kRawBytes;
      };
      if (now.IsFp4(m)) {
        DecodeFp4Keys(wait(), lane, to);
        fetch_more();
      } else {
#pragma unroll 1
        for (int pair = 2 * m; pair < 2 * m + 2; ++pair) {
          if (now.IsPiece(pair)) {
            DecodeFp8Keys(wait(), lane, to, pair % 2 * 2);
            fetch_more();
          } else {
            DecodeMixedKeys<2>(now.place, 2 * pair, lane, to, pair % 2 * 2);
          }
        }
      }
      AsyncProxyFence();
      __syncwarp();
      if (lane == 0) BarrierArrive(&bars->full[count & 3]);
    }
    now = next;
    // Slots that no piece was there for.
    while (wanted != 0 && fetched - decoded < kRawSlots)
      fetch(now.place.address, now.head, now.fp4_halves);
  }
}

// One of sixteen warps that decode the only split: four keys each.
template <int kParts>
__device__ __forceinline__ void DecodeSplit(const SparseAttentionArgs& a,
                                            const Work<kParts>& work,
                                            const RowKeys& keys,
                                            uint8_t* smem) {
  if (work.Count(keys, 0) == 0) return;
  auto* const bars = reinterpret_cast<Barriers*>(smem + kBarriersOffset);
  const int warp = (threadIdx.x - kConsumerThreads) / 32, lane = threadIdx.x % 32;
  const int half = warp / 8, first = warp % 8 * 4;
  KeyPlace place;
  if (lane < 4) {
    const int i = work.only_split * kKeys + half * kHalfKeys + first + lane;
    place = Resolve(a, keys, SelectedOf(a, keys, work.first_row, i), i);
  }
  DecodeMixedKeys<4>(
      place, 0, lane, LaneChunks(smem + kTilesOffset + half * kHalfBytes, first, lane), 0);
  AsyncProxyFence();
  __syncwarp();
  if (lane == 0) BarrierArrive(&bars->full[half]);
}

}  // namespace deepinfer::cuda
