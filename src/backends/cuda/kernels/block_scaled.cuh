// SPDX-License-Identifier: Apache-2.0
//
// What the block-scaled kernels of both architectures share: arguments, the walk over tiles, what happens to finished sums.
#pragma once

#include "backends/cuda/kernels/block_scaled.h"
#include "backends/cuda/kernels/numbers.cuh"

namespace deepinfer::cuda {

enum class BlockScaledOutput {
  kPlain,        // y[token][row]
  kSwiglu,       // gate and up to bf16, quantised
  kSwigluCodes,  // gate and up to codes and scales
};

struct BlockScaledArgs {
  BlockScaledLayout layout;
  // Dense: one matrix, `tokens` rows. Experts: jobs from a plan.
  const uint8_t* weights;
  int tokens;
  int token_tiles;
  int rows_per_group;  // block-diagonal: rows that share columns of the input; 0 = all
  const int32_t* num_jobs;
  const ExpertJob* jobs;
  const int32_t* slot_pair;
  int num_chosen;
  const float* routing;  // [T, K], null = 1
  bool is_gate_up;
  const uint8_t* codes;
  const uint8_t* scales;
  int64_t input_cols;
  BlockScaledOutput output;
  void* y;
  int64_t ldy;
  uint8_t* y_scales;
  OutputType out;
  float limit;
  bool round_bf16;
};

struct BlockScaledTile {
  const uint8_t* weights;  // of the matrix
  int first_panel;
  int first;  // token or slot
  int count;  // of tokens
  int column;  // of the input
};

template <int kTileRows>
__device__ __forceinline__ int BlockScaledWork(const BlockScaledArgs& a) {
  const int row_tiles = (a.layout.rows + kTileRows - 1) / kTileRows;
  return row_tiles * (a.jobs != nullptr ? *a.num_jobs : a.token_tiles);
}

template <int kTileRows>
__device__ __forceinline__ BlockScaledTile BlockScaledTileOf(const BlockScaledArgs& a, int work) {
  constexpr int kPanels = kTileRows / kPanelRows;
  const int row_tiles = (a.layout.rows + kTileRows - 1) / kTileRows;
  if (a.jobs != nullptr) {
    const ExpertJob& job = a.jobs[work / row_tiles];
    return {a.is_gate_up ? job.gate_up : job.down, work % row_tiles * kPanels, job.first_slot, job.count, 0};
  }
  const TilePlace place = TilePlaceOf(work, row_tiles, a.token_tiles);
  const int row_tile = place.row_tile, first = place.token_tile * kBlockScaledTokens;
  const int group = a.rows_per_group > 0 ? row_tile * kTileRows / a.rows_per_group : 0;
  return {a.weights, row_tile * kPanels, first, min(kBlockScaledTokens, a.tokens - first), group * a.layout.cols};
}

// Row of the input of token `token` of the tile; -1: none.
__device__ __forceinline__ int InputRow(const BlockScaledArgs& a, const BlockScaledTile& tile, int token) {
  if (token >= tile.count) return -1;
  const int at = tile.first + token;
  return a.is_gate_up ? a.slot_pair[at] / a.num_chosen : at;
}

// Codes and scales of stage `stage` of a panel; panels behind the last are the last.
__device__ __forceinline__ const uint8_t* PanelStage(const BlockScaledArgs& a, const BlockScaledTile& tile, int panel, int stage) {
  const int at = min(tile.first_panel + panel, a.layout.panels() - 1);
  return tile.weights + at * a.layout.panel_bytes() + int64_t{stage} * PanelStageBytes(a.layout.kind);
}

// Code of x in e4m3 times 2^e.
__device__ __forceinline__ uint8_t Fp8Code(float x, int e) {
  return static_cast<uint8_t>(__nv_cvt_float_to_fp8(x * PowerOfTwo(-e), __NV_SATFINITE, __NV_E4M3));
}

// The sums of one token and 64 packed rows from `column` of the tile on.
__device__ __forceinline__ void StoreBlockScaled(const BlockScaledArgs& a, const BlockScaledTile& tile, int token, int column,
                                                 float (&v)[64]) {
  const int row = tile.first_panel * kPanelRows + column;
  if (token >= tile.count || row >= a.layout.rows) return;
  const int64_t at = tile.first + token;
  if (a.output == BlockScaledOutput::kPlain) {
    const int count = min(64, a.layout.rows - row);
    if (a.out == OutputType::kBf16) {
      __nv_bfloat16* to = static_cast<__nv_bfloat16*>(a.y) + at * a.ldy + row;
      if (count == 64 && reinterpret_cast<uintptr_t>(to) % 16 == 0) {
#pragma unroll
        for (int i = 0; i < 64; i += 8)
          *reinterpret_cast<uint4*>(to + i) = make_uint4(PackBf16(v[i], v[i + 1]), PackBf16(v[i + 2], v[i + 3]),
                                                         PackBf16(v[i + 4], v[i + 5]), PackBf16(v[i + 6], v[i + 7]));
      } else {
#pragma unroll
        for (int i = 0; i < 64; ++i)
          if (i < count) to[i] = __float2bfloat16_rn(v[i]);
      }
    } else {
      float* to = static_cast<float*>(a.y) + at * a.ldy + row;
#pragma unroll
      for (int i = 0; i < 64; ++i)
        if (i < count) to[i] = a.out == OutputType::kFloat ? v[i] : RoundBf16(v[i]);
    }
    return;
  }
  const float weight = a.routing != nullptr ? a.routing[a.slot_pair[at]] : 1.0f;
  float amax = 0;
#pragma unroll
  for (int i = 0; i < 32; ++i) {
    float gate = v[i / 8 * 16 + i % 8], up = v[i / 8 * 16 + 8 + i % 8];
    if (a.round_bf16) gate = RoundBf16(gate), up = RoundBf16(up);
    float x = Swiglu(gate, up, a.limit, weight);
    if (a.round_bf16) x = RoundBf16(x);
    v[i] = x;  // not read again
    amax = fmaxf(amax, fabsf(x));
  }
  const int e = QuantExponent(amax);
  const int64_t to = at * a.ldy + row / 2;
  if (a.output == BlockScaledOutput::kSwiglu) {
#pragma unroll
    for (int i = 0; i < 32; i += 2)
      *reinterpret_cast<uint32_t*>(static_cast<__nv_bfloat16*>(a.y) + to + i) = PackBf16(FakeFp8(v[i], e), FakeFp8(v[i + 1], e));
    return;
  }
  uint32_t words[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    words[i] = 0;
#pragma unroll
    for (int j = 0; j < 4; ++j) words[i] |= uint32_t{Fp8Code(v[4 * i + j], e)} << (8 * j);
  }
  uint4* codes = reinterpret_cast<uint4*>(static_cast<uint8_t*>(a.y) + to);
  codes[0] = make_uint4(words[0], words[1], words[2], words[3]);
  codes[1] = make_uint4(words[4], words[5], words[6], words[7]);
  a.y_scales[to / 32] = static_cast<uint8_t>(e + 127);
}

cudaError_t LaunchBlockScaledSm100a(const BlockScaledArgs& args, bool dependent, cudaStream_t stream);
cudaError_t LaunchBlockScaledSm120a(const BlockScaledArgs& args, bool dependent, cudaStream_t stream);

}  // namespace deepinfer::cuda
