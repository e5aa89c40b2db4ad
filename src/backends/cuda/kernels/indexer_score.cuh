// SPDX-License-Identifier: Apache-2.0
//
// What the kernels of the indexer share, and the kernel of the scores.
#pragma once

#include "backends/cuda/kernels/indexer.h"
#include "backends/cuda/kernels/ptx.cuh"

namespace deepinfer::cuda::indexer {

constexpr int kBlockGroups = 8;  // of a candidate block
constexpr int kTileKeys = 16;
constexpr int kPieceTiles = 4;
constexpr int kScoreThreads = 256;
constexpr int kListCapacity = 8192;
constexpr int kSelectThreads = 256;
constexpr int kSelectWarps = kSelectThreads / 32;
constexpr int kMaxParts = 64;  // blocks that filter a row
constexpr int kSegmentCapacity = 1024;
constexpr int kMaxSegments = kMaxParts * kSelectWarps;
constexpr int kMaxPieces = 16384;  // that the bound is made from
constexpr int kMaxChosen = 2048;
constexpr float kKeyFactor = 0x1p63f;

// One selection over scores: of groups, or of candidate blocks.
struct Lists {
  float* scores;  // [rows, stride]
  float* maxima;  // [rows, stride / 16 rounded up]
  int64_t stride;
  int64_t maxima_stride;
  // Scores that reach the bound, in segments of ascending numbers: a warp of the filter fills one.
  uint2* list;     // [rows, segments, kSegmentCapacity] number, key
  int32_t* count;  // [rows, segments]; more than the capacity: the list is void
};
struct Workspace {
  Lists groups;
  Lists blocks;
  int segments;
};

struct RowInfo {
  const device::SequenceRows* sequence;
  int visible;         // groups
  int num_candidates;  // -1: all
  int num_scored;      // groups whose scores are made
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
  uint4 low, high;  // rows g and g + 8, channels 32t..32t+31
  uint32_t scale0, scale1;
};

// A warp scores pieces of 64 keys, 16 at a time: keys are the rows of the tensor-core product,
// heads the columns. Lane 4g + t has channels 32t..32t+31 of its rows, one scale each.
static __global__ void __launch_bounds__(kScoreThreads, 2)
    ScoreKernel(const __grid_constant__ IndexerArgs a, Workspace ws) {
  DependencyLaunch();
  DependencyWait();
  const int row = blockIdx.y;
  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const RowInfo info = InfoOf(a, row);
  const int num_blocks = (info.visible + kBlockGroups - 1) / kBlockGroups;
  const bool makes_blocks = a.role == IndexerArgs::Role::kProduce && num_blocks > a.keep_blocks;
  if (info.visible <= a.topk) return;  // all of them are chosen
  const bool fine =
      info.num_scored <= kMaxPieces * kTileKeys;  // a maximum per tile, else per piece
  const int piece_tiles = fine ? 1 : kPieceTiles;
  const int num_pieces =
      (info.num_scored + kTileKeys * piece_tiles - 1) / (kTileKeys * piece_tiles);
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
      w[j][i] =
          kKeyFactor * (a.weight_is_float
                            ? static_cast<const float*>(a.weight)[at]
                            : __bfloat162float(static_cast<const __nv_bfloat16*>(a.weight)[at]));
    }
  }

  const int32_t* candidates = a.candidates + int64_t{row} * a.keep_blocks;
  const auto block_of = [&](int half_tile) {  // eight keys: the number of their first group / 8
    return info.num_candidates >= 0 ? candidates[min(half_tile, info.num_candidates - 1)]
                                    : half_tile;
  };
  const auto load = [&](int tile) {
    TileLoad l;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int group = min(block_of(2 * tile + h) * kBlockGroups + g, info.visible - 1);
      const uint8_t* region =
          a.cache.pool +
          info.sequence->block_table[group / a.cache.entries_per_block] * a.cache.block_stride +
          a.cache.index_offset;
      const int entry = group % a.cache.entries_per_block;
      const uint4 v = *reinterpret_cast<const uint4*>(region + entry * (kIndexDim / 2) + t * 16);
      const uint32_t s =
          region[a.cache.entries_per_block * (kIndexDim / 2) + entry * (kIndexDim / 32) + t];
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
      const uint32_t s0 = (now.scale0 + 63u) * 0x00800080u,
                     s1 = (now.scale1 + 63u) * 0x00800080u;  // 126 for codes, -63
      float acc[4][4] = {};
      const uint32_t words[2][4] = {{now.low.x, now.low.y, now.low.z, now.low.w},
                                    {now.high.x, now.high.y, now.high.z, now.high.w}};
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        uint32_t p0[4], p1[4];
        DecodePairs(words[0][k], s0, p0);
        DecodePairs(words[1][k], s1, p1);
        const uint32_t first[4] = {p0[0], p1[0], p0[1], p1[1]},
                       second[4] = {p0[2], p1[2], p0[3], p1[3]};
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
        for (int d = 4; d < 32; d *= 2)
          best[h] = fmaxf(best[h], __shfl_xor_sync(0xffffffffu, best[h], d));
        if (makes_blocks && lane == h && 2 * tile + h < num_blocks)
          blocks[2 * tile + h] = 2 * tile + h == num_blocks - 1 ? INFINITY : best[h];
      }
      const float tile_max = fmaxf(best[0], best[1]);
      if (fine && lane == 0 && tile * kTileKeys < info.num_scored) maxima[tile] = tile_max;
      if (makes_blocks && lane == 0 && 2 * tile < num_blocks)
        ws.blocks.maxima[row * ws.blocks.maxima_stride + tile] =
            2 * tile + 1 >= num_blocks - 1 ? INFINITY : tile_max;
      piece_max = fmaxf(piece_max, tile_max);
    }
    if (!fine && lane == 0) maxima[piece] = piece_max;
  }
}

}  // namespace deepinfer::cuda::indexer
