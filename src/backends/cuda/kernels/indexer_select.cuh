// SPDX-License-Identifier: Apache-2.0
//
// The selection of the indexer: the filter and the exact choice.
#pragma once

#include "backends/cuda/kernels/indexer_score.cuh"

namespace deepinfer::cuda::indexer {

// Sum over the block; `turn` counts the calls.
__device__ __forceinline__ int BlockSum(int x, int (*scratch)[kSelectWarps], int& turn) {
  x = __reduce_add_sync(0xffffffffu, x);
  int* const mine = scratch[turn++ & 1];
  if (threadIdx.x % 32 == 0) mine[threadIdx.x / 32] = x;
  __syncthreads();
  const int4 a = *reinterpret_cast<const int4*>(mine), b = *reinterpret_cast<const int4*>(mine + 4);
  return a.x + a.y + a.z + a.w + b.x + b.y + b.z + b.w;
}

// Largest prefix of `bits` bits (the rest zero) that at least k of the block's keys reach: held in
// registers (n of them, strided by the block), or made again for each bit.
template <int kHeld>
__device__ __forceinline__ uint32_t LargestHeld(const uint32_t (&keys)[kHeld],
                                                int n,
                                                int k,
                                                int bits,
                                                int (*scratch)[kSelectWarps],
                                                int& turn) {
  uint32_t bound = 0;
  for (int b = 31; b >= 32 - bits; --b) {
    const uint32_t candidate = bound | 1u << b;
    int count = 0;
#pragma unroll
    for (int i = 0; i < kHeld; i += 4) {
      if (i * kSelectThreads >= n) break;
#pragma unroll
      for (int j = 0; j < 4; ++j) count += keys[i + j] >= candidate;
    }
    if (BlockSum(count, scratch, turn) >= k) bound = candidate;
  }
  return bound;
}
template <typename At>
__device__ __forceinline__ uint32_t
LargestReached(int n, int k, int bits, int (*scratch)[kSelectWarps], int& turn, At&& at) {
  uint32_t bound = 0;
  for (int b = 31; b >= 32 - bits; --b) {
    const uint32_t candidate = bound | 1u << b;
    int count = 0;
    for (int i = threadIdx.x; i < n; i += kSelectThreads) count += at(i) >= candidate;
    if (BlockSum(count, scratch, turn) >= k) bound = candidate;
  }
  return bound;
}

// What a selection is about.
struct Bounds {
  int n, k, num_maxima;
  bool all;  // nothing to choose
};
__device__ __forceinline__ Bounds BoundsOf(const IndexerArgs& a,
                                           const RowInfo& info,
                                           bool is_blocks) {
  Bounds b;
  const int num_blocks = (info.visible + kBlockGroups - 1) / kBlockGroups;
  if (is_blocks) {
    b.n = num_blocks;
    b.k = a.keep_blocks;
    b.all = a.role != IndexerArgs::Role::kProduce || num_blocks <= a.keep_blocks;
    b.num_maxima = (num_blocks + 1) / 2;
  } else {
    b.n = info.num_scored;
    b.k = a.topk;
    b.all = info.visible <= a.topk;
    const bool fine = b.n <= kMaxPieces * kTileKeys;
    b.num_maxima = fine ? (b.n + kTileKeys - 1) / kTileKeys
                        : (b.n + kTileKeys * kPieceTiles - 1) / (kTileKeys * kPieceTiles);
  }
  return b;
}

// Blocks of threads share the scores of a row: those that reach the bound go to the list.
static __global__ void __launch_bounds__(kSelectThreads, 1)
    FilterKernel(const __grid_constant__ IndexerArgs a, Workspace ws) {
  __shared__ __align__(16) int scratch[2][kSelectWarps];
  int turn = 0;
  DependencyLaunch();
  DependencyWait();
  const int row = blockIdx.y;
  const bool is_blocks = blockIdx.z == 1;
  const RowInfo info = InfoOf(a, row);
  const Bounds b = BoundsOf(a, info, is_blocks);
  if (b.all) return;
  const Lists lists = is_blocks ? ws.blocks : ws.groups;
  const float* scores = lists.scores + row * lists.stride;
  uint32_t bound = 0;
  if (b.n > kListCapacity && b.num_maxima >= b.k) {
    const float* maxima = lists.maxima + row * lists.maxima_stride;
    constexpr int kHeld = kMaxPieces / kSelectThreads;
    if (b.num_maxima <= kMaxPieces) {
      uint32_t keys[kHeld];
#pragma unroll
      for (int i = 0; i < kHeld; ++i) {
        const int at = threadIdx.x + i * kSelectThreads;
        keys[i] = at < b.num_maxima ? OrderKey(maxima[at]) : 0;
      }
      bound = LargestHeld(keys, b.num_maxima, b.k, 20, scratch, turn);
    } else {
      bound = LargestReached(
          b.num_maxima, b.k, 20, scratch, turn, [&](int i) { return OrderKey(maxima[i]); });
    }
  }
  // -inf is never chosen.
  bound = max(bound, OrderKey(-INFINITY) + 1);
  // A warp's scores, 128 at a time.
  const int lane = threadIdx.x % 32;
  const int segment = blockIdx.x * kSelectWarps + threadIdx.x / 32;
  const int share = ((b.n + ws.segments - 1) / ws.segments + 127) / 128 * 128;
  const int begin = min(b.n, segment * share), end = min(b.n, begin + share);
  uint2* const list = lists.list + (int64_t{row} * ws.segments + segment) * kSegmentCapacity;
  int count = 0;
  for (int first = begin; first < end; first += 128) {
    uint32_t keys[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int i = first + 32 * j + lane;
      keys[j] = i < end ? OrderKey(scores[i]) : 0;
    }
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const unsigned hits = __ballot_sync(0xffffffffu, keys[j] >= bound);
      if (hits == 0) continue;
      const int at = count + __popc(hits & ((1u << lane) - 1));
      if ((hits >> lane & 1) && at < kSegmentCapacity)
        list[at] = make_uint2(first + 32 * j + lane, keys[j]);
      count += __popc(hits);
    }
  }
  if (lane == 0) lists.count[int64_t{row} * ws.segments + segment] = count;
}

// One block per row: the exact choice.
static __global__ void __launch_bounds__(kSelectThreads, 1)
    ChooseKernel(const __grid_constant__ IndexerArgs a, Workspace ws) {
  extern __shared__ uint2 listed[];  // [kListCapacity] number, key; ascending numbers
  __shared__ __align__(16) int scratch[2][kSelectWarps];
  __shared__ int offsets[kMaxSegments + 1];
  __shared__ int warp_sums[kSelectWarps][2];
  int turn = 0;
  DependencyLaunch();
  DependencyWait();
  const int row = blockIdx.x, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const bool is_blocks = blockIdx.y == 1;
  const RowInfo info = InfoOf(a, row);
  const Bounds b = BoundsOf(a, info, is_blocks);
  int32_t* out =
      is_blocks ? a.candidates + int64_t{row} * a.keep_blocks : a.selected + int64_t{row} * a.topk;
  int32_t* out_count = is_blocks ? a.num_candidates + row : a.num_selected + row;
  if (b.all) {
    if (is_blocks) {
      if (a.role == IndexerArgs::Role::kProduce && threadIdx.x == 0) *out_count = -1;
      return;
    }
    for (int i = threadIdx.x; i < info.visible; i += kSelectThreads) out[i] = i;
    if (threadIdx.x == 0) *out_count = info.visible;
    return;
  }
  const Lists lists = is_blocks ? ws.blocks : ws.groups;
  const float* scores = lists.scores + row * lists.stride;
  // Where the segments go.
  bool fits = true;
  int n = 0;
  if (warp == 0) {
    for (int first = 0; first < ws.segments; first += 32) {
      const int segment = first + lane;
      const int mine =
          segment < ws.segments ? lists.count[int64_t{row} * ws.segments + segment] : 0;
      fits &= __all_sync(0xffffffffu, mine <= kSegmentCapacity);
      int sum = mine;
#pragma unroll
      for (int d = 1; d < 32; d *= 2) {
        const int other = __shfl_up_sync(0xffffffffu, sum, d);
        if (lane >= d) sum += other;
      }
      if (segment < ws.segments) offsets[segment] = n + sum - mine;
      n += __shfl_sync(0xffffffffu, sum, 31);
    }
    if (lane == 0) offsets[ws.segments] = fits && n <= kListCapacity ? n : -1;
  }
  __syncthreads();
  fits = offsets[ws.segments] >= 0;
  n = fits ? offsets[ws.segments] : b.n;
  if (fits) {
    for (int segment = warp; segment < ws.segments; segment += kSelectWarps) {
      const int at = offsets[segment], count = offsets[segment + 1] - at;
      for (int i = lane; i < count; i += 32)
        listed[at + i] = lists.list[(int64_t{row} * ws.segments + segment) * kSegmentCapacity + i];
    }
    __syncthreads();
  }
  const auto key_at = [&](int i) { return fits ? listed[i].y : OrderKey(scores[i]); };
  const auto number_at = [&](int i) { return fits ? static_cast<int>(listed[i].x) : i; };
  // The k-th largest key.
  constexpr int kHeld = kListCapacity / kSelectThreads;
  uint32_t kth;
  if (fits) {
    uint32_t keys[kHeld];
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      const int at = threadIdx.x + i * kSelectThreads;
      keys[i] = at < n ? listed[at].y : 0;
    }
    kth = LargestHeld(keys, n, b.k, 32, scratch, turn);
  } else {
    kth = LargestReached(n, b.k, 32, scratch, turn, key_at);
  }
  kth = max(kth, OrderKey(-INFINITY) + 1);
  int above = 0;
  for (int i = threadIdx.x; i < n; i += kSelectThreads) above += key_at(i) > kth;
  above = BlockSum(above, scratch, turn);
  // All above it and the first of its equals, in ascending order.
  const int equals = b.k - above;
  const int32_t* candidates = a.candidates + int64_t{row} * a.keep_blocks;
  int written = 0, equals_before = 0;
  for (int first = 0; first < n; first += kSelectThreads) {
    const int i = first + static_cast<int>(threadIdx.x);
    const uint32_t key = i < n ? key_at(i) : 0;
    const unsigned greater = __ballot_sync(0xffffffffu, key > kth),
                   equal = __ballot_sync(0xffffffffu, key == kth);
    __syncthreads();
    if (lane == 0) warp_sums[warp][0] = __popc(greater), warp_sums[warp][1] = __popc(equal);
    __syncthreads();
    int greater_before = 0, equal_before = equals_before, greater_all = 0, equal_all = 0;
#pragma unroll
    for (int w = 0; w < kSelectWarps; ++w) {
      if (w < warp) greater_before += warp_sums[w][0], equal_before += warp_sums[w][1];
      greater_all += warp_sums[w][0], equal_all += warp_sums[w][1];
    }
    const unsigned below = (1u << lane) - 1;
    greater_before += __popc(greater & below);
    equal_before += __popc(equal & below);
    const bool is_chosen = key > kth || (key == kth && i < n && equal_before < equals);
    if (is_chosen) {
      const int at =
          written + greater_before + min(equal_before, equals) - min(equals_before, equals);
      const int number = number_at(i);
      out[at] = !is_blocks && info.num_candidates >= 0
                    ? candidates[number / kBlockGroups] * kBlockGroups + number % kBlockGroups
                    : number;
    }
    written += greater_all + min(equals_before + equal_all, equals) - min(equals_before, equals);
    equals_before += equal_all;
  }
  if (threadIdx.x == 0) *out_count = written;
}

}  // namespace deepinfer::cuda::indexer
