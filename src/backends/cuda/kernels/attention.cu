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
#include "backends/cuda/kernels/attention_keys.cuh"
#include "backends/cuda/kernels/attention_merge.cuh"
#include "backends/cuda/kernels/launch.h"
#include "backends/cuda/kernels/wgmma.cuh"

namespace deepinfer::cuda {
namespace {

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

// Four words of four neighbouring lanes: word j of lane t becomes word t of lane j.
__device__ __forceinline__ void Transpose4x4(uint32_t (&w)[4], int t) {
#pragma unroll
  for (int d = 1; d <= 2; d *= 2) {
    const bool high = t & d;
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      const int i = d == 1 ? 2 * k : k;  // the pair (i, i + d)
      const uint32_t received = __shfl_xor_sync(0xffffffffu, high ? w[i] : w[i + d], d);
      if (high) {
        w[i] = received;
      } else {
        w[i + d] = received;
      }
    }
  }
}

template <int kParts, bool kIsPlain>
__device__ __forceinline__ void Multiply(const SparseAttentionArgs& a,
                                         const Work<kParts>& work,
                                         RowKeys keys,
                                         const AttentionWorkspace& ws,
                                         int max_splits,
                                         uint8_t* smem) {
  constexpr int kChunks = kParts > 0 ? 8 / kParts : 8;  // of 32 channels, for each warpgroup
  auto* const bars = reinterpret_cast<Barriers*>(smem + kBarriersOffset);
  auto* const exchange = reinterpret_cast<Exchange*>(smem + kExchangeOffset);
  uint8_t* const tiles = smem + kTilesOffset;
  const int group = static_cast<int>(Uniform(threadIdx.x / 128)), warp = threadIdx.x / 32,
            lane = threadIdx.x % 32;
  const int g = lane / 4, t = lane % 4;
  const uint64_t query_descriptor = SmemDescriptor(Uniform(SmemAddr(smem)), 1024, Swizzle::k128);
  const uint64_t tiles_descriptor = SmemDescriptor(Uniform(SmemAddr(tiles)), 1024, Swizzle::k128);
  const int head = (warp % 4) * 16 + g;
  const float factor = rsqrtf(static_cast<float>(kDim)) * kLog2e * kKeyFactor;
  uint32_t count = 0, other_count = 0;  // splits of this and of the other block
  uint32_t exchanges = 0;
  // Number of chunk c among all. The first four are kept at the end, so blocks start with different
  // ones.
  const auto chunk_of = [&](int c) {
    return kParts > 0 ? (work.part * 2 + group) * kChunks + c : group * 8 + (c ^ (work.rank * 4));
  };
  uint32_t rows_loaded = 0;
  const auto load_query = [&](int row) {
    const __nv_bfloat16* from = a.query + row * a.ldq;
    if (kParts == 0 && kIsPlain && threadIdx.x < 16)
      AsyncCopy16(SmemAddr(&exchange->rope[rows_loaded & 1][threadIdx.x * 4]),
                  a.rope + int64_t{row} * 64 + threadIdx.x * 4,
                  true);
    ++rows_loaded;
#pragma unroll 8
    for (int i = threadIdx.x; i < kHeads * kDim / 8; i += 256)
      AsyncCopy16(SmemAddr(smem) + TileOffset<kHeads>(i / 64, i % 64), from + i * 8, true);
    AsyncCommit();
  };
  if (kParts == 0 && threadIdx.x < kHeads) exchange->sinks[threadIdx.x] = a.sink[threadIdx.x];
  if (work.first_row < a.rows) load_query(work.first_row);
  KeyCount ahead;
  for (int row = work.first_row; row < a.rows; row += work.row_step) {
    if (row != work.first_row) keys.num_keys = ahead.Get(a);
    if (row + work.row_step < a.rows) ahead.Begin(a, row + work.row_step);
    const int num_splits = work.Count(keys, work.rank);
    const int next_row = row + work.row_step;
    if (num_splits == 0) {  // the other block does all of this row
      AsyncWait<0>();
      NamedSync(1, 256);
      if (next_row < a.rows) {
        load_query(next_row);
        ahead.Continue(a);
      }
      other_count += work.Count(keys, 1 - work.rank);
      continue;
    }
    AsyncWait<0>();
    AsyncProxyFence();
    NamedSync(1, 256);
    const uint32_t row_parity = (rows_loaded - 1) & 1;
    float values[kChunks][16];
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
#pragma unroll
      for (int i = 0; i < 16; ++i) values[c][i] = 0.0f;
    }
    Merged merged[2];

    for (int i_split = 0; i_split < num_splits; ++i_split, ++count) {
      const int s = work.Split(i_split);
      const bool is_last = i_split + 1 == num_splits;
      const int buffer = count & 1;
      const uint64_t tile = Advance(tiles_descriptor, Uniform(buffer * kTileBytes));
      BarrierWait(&bars->full[buffer * 2 + group], count / 2 & 1);

      // Scores of this warpgroup's 32 keys.
      float z[16];
      const uint64_t half = Advance(tile, group * kHalfBytes);
      WarpgroupArrive();
#pragma unroll
      for (int i = 0; i < 32; ++i)
        Wgmma<32>::SS(z,
                      Advance(query_descriptor, (i / 4) * kQueryPanelBytes + (i % 4) * 32),
                      Advance(half, (i / 4) * kPanelBytes + (i % 4) * 32),
                      i > 0);
      WarpgroupCommit();
      WarpgroupWait<0>();
      FenceRegisters(z);

      // Weights relative to the split's maximum; rows g and g + 8.
      float top[2] = {kLowest, kLowest}, sum[2] = {0.0f, 0.0f};
      const int present = keys.num_keys - s * kKeys - group * kHalfKeys;
#pragma unroll
      for (int i = 0; i < 16; ++i) {
        const int key = (i / 4) * 8 + 2 * t + (i & 1);
        z[i] = key < present ? z[i] * factor : -INFINITY;
        top[(i / 2) & 1] = fmaxf(top[(i / 2) & 1], z[i]);
      }
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        top[r] = fmaxf(top[r], __shfl_xor_sync(0xffffffffu, top[r], 1));
        top[r] = fmaxf(top[r], __shfl_xor_sync(0xffffffffu, top[r], 2));
        if (t == 0) exchange->maxima[group][head + 8 * r] = top[r];
      }
      NamedSync(1, 256);
      // Both warpgroups are done with this query.
      if (is_last && next_row < a.rows) {
        load_query(next_row);
        ahead.Continue(a);
      }
#pragma unroll
      for (int r = 0; r < 2; ++r) top[r] = fmaxf(top[r], exchange->maxima[1 - group][head + 8 * r]);
#pragma unroll
      for (int i = 0; i < 16; ++i) {
        z[i] = Exp2(z[i] - top[(i / 2) & 1]);
        sum[(i / 2) & 1] += z[i];
      }
      // Accumulator layout to operand layout: columns 8j + 2t of 16 keys.
      uint32_t mine[2][4], p[4][4];
#pragma unroll
      for (int k = 0; k < 2; ++k) {
#pragma unroll
        for (int i = 0; i < 4; ++i) mine[k][i] = PackBf16(z[8 * k + 2 * i], z[8 * k + 2 * i + 1]);
        exchange->weights[group][k][threadIdx.x % 128] =
            make_uint4(mine[k][0], mine[k][1], mine[k][2], mine[k][3]);
      }
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        sum[r] += __shfl_xor_sync(0xffffffffu, sum[r], 1);
        sum[r] += __shfl_xor_sync(0xffffffffu, sum[r], 2);
        if (t == 0) exchange->sums[group][head + 8 * r] = sum[r];
      }
      NamedSync(1, 256);
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        const uint4 o = exchange->weights[1 - group][k][threadIdx.x % 128];
        const uint32_t theirs[4] = {o.x, o.y, o.z, o.w};
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          p[k][i] = group == 0 ? mine[k][i] : theirs[i];
          p[2 + k][i] = group == 0 ? theirs[i] : mine[k][i];
        }
      }
#pragma unroll
      for (int r = 0; r < 2; ++r) sum[r] += exchange->sums[1 - group][head + 8 * r];
      float old_factor[2], new_factor[2];
      if constexpr (kParts == 0) {
#pragma unroll
        for (int r = 0; r < 2; ++r)
          MergeFactors(merged[r], top[r], sum[r], old_factor[r], new_factor[r]);
      }

      FenceRegisters(p);
#pragma unroll
      for (int c = 0; c < kChunks; ++c) {
        float acc[16];
        const uint64_t panel = Advance(tile, chunk_of(c) / 2 * kPanelBytes + chunk_of(c) % 2 * 64);
        WarpgroupArrive();
#pragma unroll
        for (int k = 0; k < 4; ++k)
          Wgmma<32>::RS<true>(acc, p[k], Advance(panel, k / 2 * kHalfBytes + k % 2 * 2048), k > 0);
        WarpgroupCommit();
        WarpgroupWait<0>();
        FenceRegisters(acc);
#pragma unroll
        for (int i = 0; i < 16; ++i) {
          const int r = (i / 2) & 1;
          values[c][i] =
              kParts > 0 ? acc[i] : MergeValue(values[c][i], old_factor[r], acc[i], new_factor[r]);
        }
      }
      __syncwarp();
      // The tile of the last split is needed for the exchange with the other block.
      if (lane == 0 && (kParts > 0 || !is_last)) BarrierArrive(&bars->empty[buffer]);

      if constexpr (kParts > 0) {
        const int64_t at = (int64_t{row} * max_splits + s) * kHeads;
#pragma unroll
        for (int c = 0; c < kChunks; ++c) {
#pragma unroll
          for (int i = 0; i < 16; i += 2) {
            const int column = chunk_of(c) * 32 + (i / 4) * 8 + 2 * t;
            *reinterpret_cast<float2*>(ws.values + (at + head + 8 * ((i / 2) & 1)) * kDim +
                                       column) = make_float2(values[c][i], values[c][i + 1]);
          }
        }
        if (work.part == 0 && group == 0 && t == 0) {
          for (int r = 0; r < 2; ++r)
            *reinterpret_cast<float2*>(ws.stats + (at + head + 8 * r) * 2) =
                make_float2(top[r], sum[r]);
        }
      }
    }
    if constexpr (kParts == 0) {
      const int other = 1 - work.rank;
      other_count += work.Count(keys, other);
      const bool is_shared = keys.splits() > 1;
      const int own_tile = (count - 1) & 1;
      if (is_shared) {
        const uint32_t to = RemoteAddress(
            SmemAddr(tiles) + ((other_count - 1) & 1) * kTileBytes + threadIdx.x * 16, other);
        const uint32_t sent = RemoteAddress(SmemAddr(&bars->other_sent), other);
        if (lane == 0) RemoteArrive(RemoteAddress(SmemAddr(&bars->other_ready), other));
        if (threadIdx.x == 0) BarrierExpect(&bars->other_sent, kTileBytes + kHeads * 8);
        BarrierWait(&bars->other_ready, exchanges & 1);
        if (group == 0 && t < 2) {
          RemoteStore(RemoteAddress(SmemAddr(&exchange->other[head + 8 * t]), other),
                      t == 0 ? merged[0].top : merged[1].top,
                      t == 0 ? merged[0].sum : merged[1].sum,
                      sent);
        }
#pragma unroll
        for (int c = 4; c < 8; ++c) {
#pragma unroll
          for (int i = 0; i < 4; ++i)
            RemoteStore(to + ((c - 4) * 4 + i) * 4096,
                        make_float4(values[c][4 * i],
                                    values[c][4 * i + 1],
                                    values[c][4 * i + 2],
                                    values[c][4 * i + 3]),
                        sent);
        }
        BarrierWait(&bars->other_sent, exchanges & 1);
        ++exchanges;
        float mine_factor[2], theirs_factor[2];
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          const float2 o = exchange->other[head + 8 * r];
          Merged first = merged[r], second{o.x, o.y};
          if (work.rank == 1) first = second, second = merged[r];
          float old_factor, new_factor;
          MergeFactors(first, second.top, second.sum, old_factor, new_factor);
          merged[r] = first;
          mine_factor[r] = work.rank == 0 ? old_factor : new_factor;
          theirs_factor[r] = work.rank == 0 ? new_factor : old_factor;
        }
        const float4* from =
            reinterpret_cast<const float4*>(tiles + own_tile * kTileBytes) + threadIdx.x;
#pragma unroll
        for (int c = 0; c < 4; ++c) {
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const float4 o = from[(c * 4 + i) * 256];
            const float theirs[4] = {o.x, o.y, o.z, o.w};
#pragma unroll
            for (int j = 0; j < 4; ++j) {
              float& mine = values[c][4 * i + j];
              const int r = j / 2;
              mine = work.rank == 0 ? MergeValue(mine, mine_factor[r], theirs[j], theirs_factor[r])
                                    : MergeValue(theirs[j], theirs_factor[r], mine, mine_factor[r]);
            }
          }
        }
      }
      __syncwarp();
      if (lane == 0) BarrierArrive(&bars->empty[own_tile]);

      float inverse[2];
#pragma unroll
      for (int r = 0; r < 2; ++r)
        inverse[r] = kKeyFactor * __frcp_rn(Denominator(merged[r], exchange->sinks[head + 8 * r]));
#pragma unroll
      for (int c = 0; c < kChunks; ++c) {
        if (c >= 4 && is_shared) break;
        const int chunk = chunk_of(c);
        if constexpr (kIsPlain) {
          // A lane gets eight neighbouring channels.
          __nv_bfloat16* out =
              static_cast<__nv_bfloat16*>(a.out) + row * a.ldo + head * kDim + chunk * 32 + 8 * t;
          asm volatile("" : "+l"(out));  // addresses are made here, not kept from before
          const float* const rope = exchange->rope[row_parity] + chunk % 2 * 16 + t;
#pragma unroll
          for (int r = 0; r < 2; ++r) {
            uint32_t words[4];
#pragma unroll
            for (int j = 0; j < 4; ++j) {
              float x = values[c][4 * j + 2 * r] * inverse[r],
                    y = values[c][4 * j + 2 * r + 1] * inverse[r];
              if (chunk / 2 == kPanels - 1) {
                const float cosine = rope[4 * j], sine = rope[32 + 4 * j];
                x = RoundBf16(x), y = RoundBf16(y);
                const float rx = x * cosine + y * sine, ry = y * cosine - x * sine;
                x = rx, y = ry;
              }
              words[j] = PackBf16(x, y);
            }
            Transpose4x4(words, t);
            *reinterpret_cast<uint4*>(out + r * 8 * kDim) =
                make_uint4(words[0], words[1], words[2], words[3]);
          }
        } else {
#pragma unroll
          for (int i = 0; i < 16; i += 2) {
            const int r = (i / 2) & 1;
            const int column = chunk * 32 + (i / 4) * 8 + 2 * t;
            StorePair<false>(a,
                             row,
                             row * a.ldo + int64_t{head + 8 * r} * kDim,
                             column,
                             values[c][i] * inverse[r],
                             values[c][i + 1] * inverse[r]);
          }
        }
      }
    }
  }
}

// kIsPlain: results in bf16, no trace.
template <int kParts, bool kIsPlain>
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
    Multiply<kParts, kIsPlain>(a, work, keys, ws, max_splits, smem);
  }
}

constexpr int kMaxSplitBlocks =
    66;  // pairs of row and split: two blocks of channels each fill the GPU

template <int kParts, bool kIsPlain>
cudaError_t LaunchKernel(const SparseAttentionArgs& args,
                         dim3 grid,
                         const AttentionWorkspace& ws,
                         int splits,
                         cudaStream_t stream) {
  const cudaError_t error = AllowSmem(AttentionKernel<kParts, kIsPlain>, kSmemBytes + 1024);
  if (error != cudaSuccess) return error;
  return LaunchClusters(AttentionKernel<kParts, kIsPlain>,
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
  const bool is_plain = args.out_type == OutputType::kBf16 && args.unrotated == nullptr &&
                        args.rope_dim == 64 && args.ldo % 8 == 0 && is_aligned(args.out) &&
                        is_aligned(args.rope);
  AttentionWorkspace ws = {};
  if (args.workspace != nullptr && (args.rows == 1 || args.rows * splits <= kMaxSplitBlocks)) {
    ws.values = static_cast<float*>(args.workspace);
    ws.stats = ws.values + int64_t{args.rows} * splits * kHeads * kDim;
    const bool narrow = args.rows * splits * 4 <= NumMultiprocessors();
    const dim3 grid(splits * (narrow ? 4 : 2), args.rows);
    const cudaError_t error = narrow ? LaunchKernel<4, true>(args, grid, ws, splits, stream)
                                     : LaunchKernel<2, true>(args, grid, ws, splits, stream);
    if (error != cudaSuccess) return error;
    return Launch(is_plain ? AttentionMergeKernel<true> : AttentionMergeKernel<false>,
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
  return is_plain ? LaunchKernel<0, true>(args, grid, ws, splits, stream)
                  : LaunchKernel<0, false>(args, grid, ws, splits, stream);
}

}  // namespace deepinfer::cuda
