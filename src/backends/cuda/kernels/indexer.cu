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
constexpr int kSelectThreads = 256;
constexpr int kSelectWarps = kSelectThreads / 32;
constexpr int kMaxParts = 64;        // blocks that filter a row
constexpr int kSegmentCapacity = 1024;
constexpr int kMaxSegments = kMaxParts * kSelectWarps;
constexpr int kMaxPieces = 16384;   // that the bound is made from
constexpr int kMaxChosen = 2048;
constexpr float kKeyFactor = 0x1p63f;

// One selection over scores: of groups, or of candidate blocks.
struct Lists {
  float* scores;      // [rows, stride]
  float* maxima;      // [rows, stride / 16 rounded up]
  int64_t stride;
  int64_t maxima_stride;
  // Scores that reach the bound, in segments of ascending numbers: a warp of the filter fills one.
  uint2* list;        // [rows, segments, kSegmentCapacity] number, key
  int32_t* count;     // [rows, segments]; more than the capacity: the list is void
};
struct Workspace {
  Lists groups;
  Lists blocks;
  int segments;
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
  const int num_blocks = (info.visible + kBlockGroups - 1) / kBlockGroups;
  const bool makes_blocks = a.role == IndexerArgs::Role::kProduce && num_blocks > a.keep_blocks;
  if (info.visible <= a.topk) return;  // all of them are chosen
  const bool fine = info.num_scored <= kMaxPieces * kTileKeys;  // a maximum per tile, else per piece
  const int piece_tiles = fine ? 1 : kPieceTiles;
  const int num_pieces = (info.num_scored + kTileKeys * piece_tiles - 1) / (kTileKeys * piece_tiles);
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
  const int step = gridDim.x * (kScoreThreads / 32);
  TileLoad next = load(first_piece * piece_tiles);
  for (int piece = first_piece; piece < num_pieces; piece += step) {
    float piece_max = -INFINITY;
#pragma unroll 1
    for (int i = 0; i < piece_tiles; ++i) {
      const int tile = piece * piece_tiles + i;
      const TileLoad now = next;
      const int next_tile = i + 1 < piece_tiles ? tile + 1 : (piece + step) * piece_tiles;
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

// Sum over the block; `turn` counts the calls.
__device__ __forceinline__ int BlockSum(int x, int (*scratch)[kSelectWarps], int& turn) {
  x = __reduce_add_sync(0xffffffffu, x);
  int* const mine = scratch[turn++ & 1];
  if (threadIdx.x % 32 == 0) mine[threadIdx.x / 32] = x;
  __syncthreads();
  const int4 a = *reinterpret_cast<const int4*>(mine), b = *reinterpret_cast<const int4*>(mine + 4);
  return a.x + a.y + a.z + a.w + b.x + b.y + b.z + b.w;
}

// Largest prefix of `bits` bits (the rest zero) that at least k of the block's keys reach: held in registers (n of them,
// strided by the block), or made again for each bit.
template <int kHeld>
__device__ __forceinline__ uint32_t LargestHeld(const uint32_t (&keys)[kHeld], int n, int k, int bits, int (*scratch)[kSelectWarps],
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
__device__ __forceinline__ uint32_t LargestReached(int n, int k, int bits, int (*scratch)[kSelectWarps], int& turn, At&& at) {
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
      bound = LargestReached(b.num_maxima, b.k, 20, scratch, turn, [&](int i) { return OrderKey(maxima[i]); });
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
      if ((hits >> lane & 1) && at < kSegmentCapacity) list[at] = make_uint2(first + 32 * j + lane, keys[j]);
      count += __popc(hits);
    }
  }
  if (lane == 0) lists.count[int64_t{row} * ws.segments + segment] = count;
}

// One block per row: the exact choice.
__global__ void __launch_bounds__(kSelectThreads, 1) ChooseKernel(const __grid_constant__ IndexerArgs a, Workspace ws) {
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
  // Where the segments go.
  bool fits = true;
  int n = 0;
  if (warp == 0) {
    for (int first = 0; first < ws.segments; first += 32) {
      const int segment = first + lane;
      const int mine = segment < ws.segments ? lists.count[int64_t{row} * ws.segments + segment] : 0;
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
    const unsigned greater = __ballot_sync(0xffffffffu, key > kth), equal = __ballot_sync(0xffffffffu, key == kth);
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
      const int at = written + greater_before + min(equal_before, equals) - min(equals_before, equals);
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

constexpr int64_t Align(int64_t x) { return (x + 255) / 256 * 256; }

int PartsOf(int64_t rows, int max_groups) {
  const int64_t room = std::max<int64_t>(1, NumMultiprocessors() / rows);
  return static_cast<int>(std::clamp<int64_t>(max_groups / 8192, 1, std::min<int64_t>(room, kMaxParts)));
}

Workspace ViewsOf(void* memory, int64_t rows, int max_groups, int64_t* bytes) {
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
    l->list = reinterpret_cast<uint2*>(take(rows * ws.segments * kSegmentCapacity * 8));
    l->count = reinterpret_cast<int32_t*>(take(rows * ws.segments * 4));
  }
  if (bytes != nullptr) *bytes = used;
  return ws;
}

}  // namespace

int64_t IndexerWorkspaceBytes(int64_t rows, int max_groups) {
  int64_t bytes = 0;
  ViewsOf(nullptr, std::max<int64_t>(rows, 1), std::max(max_groups, 1), &bytes);
  return bytes;
}

cudaError_t LaunchIndexer(const IndexerArgs& args, cudaStream_t stream) {
  const bool has_blocks = args.role != IndexerArgs::Role::kNone;
  if (args.cache.index_format != device::KeyFormat::kFp4Pow2 || args.cache.index_dim != kIndexDim || args.topk < 1 ||
      args.topk > kMaxChosen || args.cache.entries_per_block % kTileKeys != 0 || args.rows < 0 ||
      (has_blocks && (args.keep_blocks < 1 || args.keep_blocks > kMaxChosen)))
    return cudaErrorInvalidValue;
  if (args.rows == 0) return cudaSuccess;
  const int max_groups = std::max(args.max_groups, 1);
  const Workspace ws = ViewsOf(args.workspace, args.rows, max_groups, nullptr);
  const bool produces = args.role == IndexerArgs::Role::kProduce;
  if (max_groups > args.topk) {
    const int pieces = (max_groups + kTileKeys * kPieceTiles - 1) / (kTileKeys * kPieceTiles);
    const int room = std::max(1, 2 * NumMultiprocessors() / args.rows);
    const int blocks = std::min(room, max_groups <= kMaxPieces * kTileKeys ? (pieces * kPieceTiles + 7) / 8 : (pieces + 7) / 8);
    cudaError_t error = Launch(ScoreKernel, dim3(blocks, args.rows), dim3(kScoreThreads), 0, stream, args.dependent, args, ws);
    if (error != cudaSuccess) return error;
    const int parts = ws.segments / kSelectWarps;
    error = Launch(FilterKernel, dim3(parts, args.rows, produces ? 2 : 1), dim3(kSelectThreads), 0, stream, args.dependent, args, ws);
    if (error != cudaSuccess) return error;
  }
  return Launch(ChooseKernel, dim3(args.rows, produces ? 2 : 1), dim3(kSelectThreads), kListCapacity * 8, stream, args.dependent, args, ws);
}

}  // namespace deepinfer::cuda
