// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda/kernels/indexer.h"

#include <algorithm>

#include "backends/cuda/kernels/launch.h"
#include "backends/cuda/kernels/ptx.cuh"

namespace deepinfer::cuda {
namespace {

constexpr int kBlockGroups = 8;     // of a candidate block
constexpr int kTileKeys = 16;
constexpr int kPieceTiles = 4;
constexpr int kScoreThreads = 256;
constexpr int kListCapacity = 8192;
constexpr int kSelectThreads = 1024;
constexpr int kMaxPieces = 16384;   // that the bound is made from
constexpr float kKeyFactor = 0x1p63f;

// One selection over scores: of groups, or of candidate blocks.
struct Lists {
  float* scores;      // [rows, stride]
  float* maxima;      // [rows, stride / 16 rounded up]
  int64_t stride;
  int64_t maxima_stride;
  int32_t* list;      // [rows, kListCapacity] numbers
  int32_t* count;     // [rows]
};
struct Workspace {
  Lists groups;
  Lists blocks;
};

struct RowInfo {
  const device::SequenceRows* sequence;
  int visible;        // groups
  int num_candidates; // -1: all
  int num_scored;     // groups whose scores are made
};

__device__ __forceinline__ RowInfo InfoOf(const IndexerArgs& a, int row) {
  RowInfo r;
  r.sequence = a.sequences + a.row_sequence[row];
  r.visible = (a.positions[row] + 1) / a.cache.ratio;
  r.num_candidates = a.role == IndexerArgs::Role::kConsume ? a.num_candidates[row] : -1;
  r.num_scored = r.num_candidates >= 0 ? r.num_candidates * kBlockGroups : r.visible;
  return r;
}

// Order-preserving integer of a float; -0 counts as 0.
__device__ __forceinline__ uint32_t OrderKey(float x) {
  const uint32_t bits = __float_as_uint(x + 0.0f);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

// Four pairs of e2m1 codes of a word: codes i and i + 4.
__device__ __forceinline__ void DecodePairs(uint32_t w, uint32_t scale, uint32_t (&p)[4]) {
  constexpr uint32_t kSign = 0x80008000u, kRest = 0x01C001C0u;
  p[0] = MulBf16x2(((w << 12) & kSign) | ((w << 6) & kRest), scale);
  p[1] = MulBf16x2(((w << 8) & kSign) | ((w << 2) & kRest), scale);
  p[2] = MulBf16x2(((w << 4) & kSign) | ((w >> 2) & kRest), scale);
  p[3] = MulBf16x2((w & kSign) | ((w >> 6) & kRest), scale);
}

struct TileLoad {
  uint4 low, high;          // rows g and g + 8, channels 32t..32t+31
  uint32_t scale0, scale1;
};

// A warp scores pieces of 64 keys, 16 at a time: keys are the rows of the tensor-core product, heads the columns. Lane 4g + t
// has channels 32t..32t+31 of its rows, one scale each.
__global__ void __launch_bounds__(kScoreThreads, 2) ScoreKernel(const __grid_constant__ IndexerArgs a, Workspace ws) {
  DependencyLaunch();
  DependencyWait();
  const int row = blockIdx.y;
  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const RowInfo info = InfoOf(a, row);
  if (threadIdx.x == 0 && blockIdx.x == 0) ws.groups.count[row] = ws.blocks.count[row] = 0;
  const int num_blocks = (info.visible + kBlockGroups - 1) / kBlockGroups;
  const bool makes_blocks = a.role == IndexerArgs::Role::kProduce && num_blocks > a.keep_blocks;
  if (info.visible <= a.topk) return;  // all of them are chosen
  const int num_pieces = (info.num_scored + kTileKeys * kPieceTiles - 1) / (kTileKeys * kPieceTiles);
  const int first_piece = blockIdx.x * (kScoreThreads / 32) + threadIdx.x / 32;
  if (first_piece >= num_pieces) return;

  // Queries as operands: step s, head tile j.
  uint32_t q[8][4][2];
  float w[4][2];
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const __nv_bfloat16* from = a.query + row * a.ldq + (8 * j + g) * kIndexDim + 32 * t;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint4 v = LoadU128(from + 8 * i);  // channels 0 1 | 2 3 | 4 5 | 6 7
      q[2 * i][j][0] = __byte_perm(v.x, v.z, 0x5410);
      q[2 * i][j][1] = __byte_perm(v.x, v.z, 0x7632);
      q[2 * i + 1][j][0] = __byte_perm(v.y, v.w, 0x5410);
      q[2 * i + 1][j][1] = __byte_perm(v.y, v.w, 0x7632);
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int64_t at = row * a.ldw + 8 * j + 2 * t + i;
      w[j][i] = kKeyFactor * (a.weight_is_float ? static_cast<const float*>(a.weight)[at]
                                                : __bfloat162float(static_cast<const __nv_bfloat16*>(a.weight)[at]));
    }
  }

  const int32_t* candidates = a.candidates + int64_t{row} * a.keep_blocks;
  const auto block_of = [&](int half_tile) {  // eight keys: the number of their first group / 8
    return info.num_candidates >= 0 ? candidates[min(half_tile, info.num_candidates - 1)] : half_tile;
  };
  const auto load = [&](int tile) {
    TileLoad l;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int group = min(block_of(2 * tile + h) * kBlockGroups + g, info.visible - 1);
      const uint8_t* region =
          a.cache.pool + info.sequence->block_table[group / a.cache.entries_per_block] * a.cache.block_stride + a.cache.index_offset;
      const int entry = group % a.cache.entries_per_block;
      const uint4 v = *reinterpret_cast<const uint4*>(region + entry * (kIndexDim / 2) + t * 16);
      const uint32_t s = region[a.cache.entries_per_block * (kIndexDim / 2) + entry * (kIndexDim / 32) + t];
      if (h == 0) {
        l.low = v, l.scale0 = s;
      } else {
        l.high = v, l.scale1 = s;
      }
    }
    return l;
  };

  float* const scores = ws.groups.scores + row * ws.groups.stride;
  float* const maxima = ws.groups.maxima + row * ws.groups.maxima_stride;
  float* const blocks = ws.blocks.scores + row * ws.blocks.stride;
  const bool fine = info.num_scored <= kMaxPieces * kTileKeys;  // a maximum per tile, else per piece
  const int step = gridDim.x * (kScoreThreads / 32);
  TileLoad next = load(first_piece * kPieceTiles);
  for (int piece = first_piece; piece < num_pieces; piece += step) {
    float piece_max = -INFINITY;
#pragma unroll 1
    for (int i = 0; i < kPieceTiles; ++i) {
      const int tile = piece * kPieceTiles + i;
      const TileLoad now = next;
      const int next_tile = i + 1 < kPieceTiles ? tile + 1 : (piece + step) * kPieceTiles;
      if (next_tile * kTileKeys < info.num_scored) next = load(next_tile);
      const uint32_t s0 = (now.scale0 + 63u) * 0x00800080u, s1 = (now.scale1 + 63u) * 0x00800080u;  // 126 for codes, -63
      float acc[4][4] = {};
      const uint32_t words[2][4] = {{now.low.x, now.low.y, now.low.z, now.low.w}, {now.high.x, now.high.y, now.high.z, now.high.w}};
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        uint32_t p0[4], p1[4];
        DecodePairs(words[0][k], s0, p0);
        DecodePairs(words[1][k], s1, p1);
        const uint32_t first[4] = {p0[0], p1[0], p0[1], p1[1]}, second[4] = {p0[2], p1[2], p0[3], p1[3]};
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          MmaBf16(acc[j], first, q[2 * k][j][0], q[2 * k][j][1]);
          MmaBf16(acc[j], second, q[2 * k + 1][j][0], q[2 * k + 1][j][1]);
        }
      }
      float sum[2] = {0.0f, 0.0f};
#pragma unroll
      for (int j = 0; j < 4; ++j) {
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          sum[0] = fmaf(w[j][c], fmaxf(acc[j][c], 0.0f), sum[0]);
          sum[1] = fmaf(w[j][c], fmaxf(acc[j][2 + c], 0.0f), sum[1]);
        }
      }
      float best[2];
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        sum[h] += __shfl_xor_sync(0xffffffffu, sum[h], 1);
        sum[h] += __shfl_xor_sync(0xffffffffu, sum[h], 2);
        const int at = tile * kTileKeys + 8 * h + g;
        const int group = block_of(2 * tile + h) * kBlockGroups + g;
        const bool is_valid = at < info.num_scored && group < info.visible;
        if (!is_valid) sum[h] = -INFINITY;
        if (t == h && at < info.num_scored) scores[at] = sum[h];
        best[h] = sum[h];
#pragma unroll
        for (int d = 4; d < 32; d *= 2) best[h] = fmaxf(best[h], __shfl_xor_sync(0xffffffffu, best[h], d));
        if (makes_blocks && lane == h && 2 * tile + h < num_blocks)
          blocks[2 * tile + h] = 2 * tile + h == num_blocks - 1 ? INFINITY : best[h];
      }
      const float tile_max = fmaxf(best[0], best[1]);
      if (fine && lane == 0 && tile * kTileKeys < info.num_scored) maxima[tile] = tile_max;
      if (makes_blocks && lane == 0 && 2 * tile < num_blocks)
        ws.blocks.maxima[row * ws.blocks.maxima_stride + tile] = 2 * tile + 1 >= num_blocks - 1 ? INFINITY : tile_max;
      piece_max = fmaxf(piece_max, tile_max);
    }
    if (!fine && lane == 0) maxima[piece] = piece_max;
  }
}

__device__ __forceinline__ int BlockSum(int x, int* scratch) {
  x = __reduce_add_sync(0xffffffffu, x);
  __syncthreads();
  if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = x;
  __syncthreads();
  x = __reduce_add_sync(0xffffffffu, scratch[threadIdx.x % 32]);
  return x;
}

// Largest prefix of `bits` bits (the rest zero) that at least k of the keys reach. at(i): key of element i < n.
template <typename At>
__device__ __forceinline__ uint32_t LargestReached(int n, int k, int bits, int* scratch, At&& at) {
  uint32_t bound = 0;
  for (int b = 31; b >= 32 - bits; --b) {
    const uint32_t candidate = bound | 1u << b;
    int count = 0;
    for (int i = threadIdx.x; i < n; i += kSelectThreads) count += at(i) >= candidate;
    if (BlockSum(count, scratch) >= k) bound = candidate;
  }
  return bound;
}

// What a selection is about.
struct Bounds {
  int n, k, num_maxima;
  bool all;  // nothing to choose
};
__device__ __forceinline__ Bounds BoundsOf(const IndexerArgs& a, const RowInfo& info, bool is_blocks) {
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
    b.num_maxima = fine ? (b.n + kTileKeys - 1) / kTileKeys : (b.n + kTileKeys * kPieceTiles - 1) / (kTileKeys * kPieceTiles);
  }
  return b;
}

// Blocks of threads share the scores of a row: those that reach the bound go to the list.
__global__ void __launch_bounds__(kSelectThreads, 1) FilterKernel(const __grid_constant__ IndexerArgs a, Workspace ws) {
  __shared__ int scratch[32];
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
      for (int bit = 31; bit >= 12; --bit) {
        const uint32_t candidate = bound | 1u << bit;
        int count = 0;
#pragma unroll
        for (int i = 0; i < kHeld; ++i) count += keys[i] >= candidate;
        if (BlockSum(count, scratch) >= b.k) bound = candidate;
      }
    } else {
      bound = LargestReached(b.num_maxima, b.k, 20, scratch, [&](int i) { return OrderKey(maxima[i]); });
    }
  }
  // -inf is never chosen.
  bound = max(bound, OrderKey(-INFINITY) + 1);
  const int share = (b.n + gridDim.x - 1) / gridDim.x;
  const int begin = blockIdx.x * share, end = min(b.n, begin + share);
  for (int i = begin + static_cast<int>(threadIdx.x); i < end; i += kSelectThreads) {
    if (OrderKey(scores[i]) < bound) continue;
    const int at = atomicAdd(lists.count + row, 1);
    if (at < kListCapacity) lists.list[int64_t{row} * kListCapacity + at] = i;
  }
}

// One block per row: the exact choice.
__global__ void __launch_bounds__(kSelectThreads, 1) ChooseKernel(const __grid_constant__ IndexerArgs a, Workspace ws) {
  extern __shared__ uint32_t keys[];  // [kListCapacity], then the numbers
  int32_t* const numbers = reinterpret_cast<int32_t*>(keys + kListCapacity);
  __shared__ int scratch[32];
  __shared__ int chosen_count;
  DependencyLaunch();
  DependencyWait();
  const int row = blockIdx.x;
  const bool is_blocks = blockIdx.y == 1;
  const RowInfo info = InfoOf(a, row);
  const Bounds b = BoundsOf(a, info, is_blocks);
  int32_t* out = is_blocks ? a.candidates + int64_t{row} * a.keep_blocks : a.selected + int64_t{row} * a.topk;
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
  int n = lists.count[row];
  const int32_t* candidates = a.candidates + int64_t{row} * a.keep_blocks;
  // Group of position i among the scores.
  const auto number_of = [&](int i) {
    return !is_blocks && info.num_candidates >= 0 ? candidates[i / kBlockGroups] * kBlockGroups + i % kBlockGroups : i;
  };
  const bool fits = n <= kListCapacity;
  if (fits) {
    for (int i = threadIdx.x; i < n; i += kSelectThreads) {
      const int at = lists.list[int64_t{row} * kListCapacity + i];
      numbers[i] = at;
      keys[i] = OrderKey(scores[at]);
    }
  } else {
    n = b.n;
  }
  if (threadIdx.x == 0) chosen_count = 0;
  __syncthreads();
  const uint32_t lowest = OrderKey(-INFINITY);
  const auto key_at = [&](int i) { return fits ? keys[i] : OrderKey(scores[i]); };
  const auto position_at = [&](int i) { return fits ? numbers[i] : i; };
  // The k-th largest key, then among its equals the last position that is still chosen.
  const uint32_t kth = max(LargestReached(n, b.k, 32, scratch, key_at), lowest + 1);
  int above = 0, equal = 0;
  for (int i = threadIdx.x; i < n; i += kSelectThreads) {
    above += key_at(i) > kth;
    equal += key_at(i) == kth;
  }
  above = BlockSum(above, scratch);
  equal = BlockSum(equal, scratch);
  const int wanted = min(equal, b.k - above);
  uint32_t last = 0xffffffffu;
  if (wanted < equal) {
    // Smallest position such that `wanted` of the equals are at or before it.
    uint32_t complement = LargestReached(n, wanted, 32, scratch, [&](int i) {
      return key_at(i) == kth ? ~static_cast<uint32_t>(position_at(i)) : 0u;
    });
    last = ~complement;
  }
  const auto is_chosen = [&](int i) {
    return key_at(i) > kth || (key_at(i) == kth && static_cast<uint32_t>(position_at(i)) <= last);
  };
  // The chosen positions, then their ranks.
  int mine[2];
  int held = 0;
  if (fits) {
    __syncthreads();
    int flags = 0, positions[kListCapacity / kSelectThreads];
#pragma unroll
    for (int j = 0; j < kListCapacity / kSelectThreads; ++j) {
      const int i = threadIdx.x + j * kSelectThreads;
      positions[j] = i < n ? numbers[i] : 0;
      if (i < n && is_chosen(i)) flags |= 1 << j;
    }
    __syncthreads();
#pragma unroll
    for (int j = 0; j < kListCapacity / kSelectThreads; ++j)
      if (flags >> j & 1) numbers[atomicAdd(&chosen_count, 1)] = positions[j];
  } else {
    for (int i = threadIdx.x; i < n; i += kSelectThreads)
      if (is_chosen(i)) numbers[atomicAdd(&chosen_count, 1)] = i;
  }
  __syncthreads();
  const int count = chosen_count;
  for (int i = threadIdx.x; i < count && held < 2; i += kSelectThreads) mine[held++] = numbers[i];
  for (int h = 0; h < held; ++h) {
    int rank = 0;
    for (int i = 0; i < count; ++i) rank += numbers[i] < mine[h];
    out[rank] = number_of(mine[h]);
  }
  if (threadIdx.x == 0) *out_count = count;
}

constexpr int64_t Align(int64_t x) { return (x + 255) / 256 * 256; }

Workspace ViewsOf(void* memory, int64_t rows, int max_groups) {
  auto* at = static_cast<uint8_t*>(memory);
  const auto take = [&](int64_t bytes) {
    uint8_t* p = at;
    at += Align(bytes);
    return p;
  };
  Workspace ws;
  for (Lists* l : {&ws.groups, &ws.blocks}) {
    // Scored groups are whole tiles of a consumer's candidates, too.
    l->stride = l == &ws.groups ? (int64_t{max_groups} + 63) / 64 * 64 : (int64_t{max_groups} + 63) / 64 * 8;
    l->maxima_stride = (int64_t{max_groups} + 63) / 64 * 4;
    l->scores = reinterpret_cast<float*>(take(rows * l->stride * 4));
    l->maxima = reinterpret_cast<float*>(take(rows * l->maxima_stride * 4));
    l->list = reinterpret_cast<int32_t*>(take(rows * kListCapacity * 4));
    l->count = reinterpret_cast<int32_t*>(take(rows * 4));
  }
  return ws;
}

}  // namespace

int64_t IndexerWorkspaceBytes(int64_t rows, int max_groups) {
  const int64_t tiles = (int64_t{max_groups} + 63) / 64;
  return Align(rows * tiles * 64 * 4) + Align(rows * tiles * 8 * 4) + 2 * Align(rows * tiles * 4 * 4) +
         2 * Align(rows * kListCapacity * 4) + 2 * Align(rows * 4);
}

cudaError_t LaunchIndexer(const IndexerArgs& args, cudaStream_t stream) {
  const bool has_blocks = args.role != IndexerArgs::Role::kNone;
  if (args.cache.index_format != device::KeyFormat::kFp4Pow2 || args.cache.index_dim != kIndexDim || args.topk < 1 ||
      args.topk > 2 * kSelectThreads || args.cache.entries_per_block % kTileKeys != 0 || args.rows < 0 ||
      (has_blocks && (args.keep_blocks < 1 || args.keep_blocks > 2 * kSelectThreads)))
    return cudaErrorInvalidValue;
  if (args.rows == 0) return cudaSuccess;
  const int max_groups = std::max(args.max_groups, 1);
  const Workspace ws = ViewsOf(args.workspace, args.rows, max_groups);
  const bool produces = args.role == IndexerArgs::Role::kProduce;
  if (max_groups > args.topk) {
    const int pieces = (max_groups + kTileKeys * kPieceTiles - 1) / (kTileKeys * kPieceTiles);
    const int room = std::max(1, 2 * NumMultiprocessors() / args.rows);
    const int blocks = std::min(room, (pieces + 7) / 8);
    cudaError_t error = Launch(ScoreKernel, dim3(blocks, args.rows), dim3(kScoreThreads), 0, stream, args.dependent, args, ws);
    if (error != cudaSuccess) return error;
    const int parts = std::clamp(max_groups / 16384, 1, std::max(1, NumMultiprocessors() / args.rows));
    error = Launch(FilterKernel, dim3(parts, args.rows, produces ? 2 : 1), dim3(kSelectThreads), 0, stream, args.dependent, args, ws);
    if (error != cudaSuccess) return error;
  }
  return Launch(ChooseKernel, dim3(args.rows, produces ? 2 : 1), dim3(kSelectThreads), kListCapacity * 8, stream, args.dependent, args, ws);
}

}  // namespace deepinfer::cuda
