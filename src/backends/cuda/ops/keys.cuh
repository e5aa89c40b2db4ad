// SPDX-License-Identifier: Apache-2.0
//
// Device code of the keys of one row: thread c holds channel c.
#pragma once

#include "backends/cuda/ops/launch.h"
#include "backends/cuda/ops/numbers.cuh"

namespace deepinfer::cuda {

// Angle i (of all rows) of a table.
__device__ __forceinline__ void RopeTableAngle(const RopeTableList& list, int table, int64_t i) {
  const auto& one = list.tables[table];
  const int half = list.rope_dim / 2;
  if (i >= one.count * half) return;
  const int64_t row = i / half;
  const int k = static_cast<int>(i % half);
  const float angle = static_cast<float>(one.positions[row]) * one.inv_freq[k];
  one.table[row * 2 * half + k] = cosf(angle);
  one.table[row * 2 * half + half + k] = sinf(angle);
}

// By the first `threads` threads of a block, at least head_dim; `shared` has 33 floats.
__device__ __forceinline__ void WindowKeyRow(const device::Arithmetic& a, F raw, const float* norm, float eps, int head_dim, int rope_dim,
                                             const float* table, F keys, int64_t t, float* shared, unsigned threads) {
  const int c = threadIdx.x, begin = head_dim - rope_dim, pair = max(c - begin, 0) >> 1;
  const bool is_inside = c < head_dim;
  const float x = is_inside ? raw.data[t * raw.stride + c] : 0.0f, factor = is_inside ? norm[c] : 0.0f;
  const float cs = is_inside ? table[t * rope_dim + pair] : 0.0f, sn = is_inside ? table[t * rope_dim + rope_dim / 2 + pair] : 0.0f;
  const float r = 1.0f / sqrtf(BlockSum(x * x, shared, threads) / static_cast<float>(head_dim) + eps);
  float v = RoundIf(factor * (x * r), a.round_bf16);
  v = RotateLane(v, c, begin, cs, sn, a.round_bf16);
  if (a.quantize) v = FakeFp8Lane(v);
  if (is_inside) keys.data[t * keys.stride + c] = v;
}

// The value at `x` is channel c of an index query.
__device__ __forceinline__ void IndexQueryChannel(const device::Arithmetic& a, float* x, int c, int dim, int rope_dim, const float* table) {
  float v = RotateLane(*x, c, dim - rope_dim, table, rope_dim / 2, 1.0f, a.round_bf16);
  if (a.quantize) v = FakeFp4Pow2Lane(v);
  *x = v;
}

// By at least head_dim threads.
__device__ __forceinline__ void StoreWindowRow(const device::Step& step, const device::WindowRing& ring, int64_t record, int64_t data_bytes,
                                               int head_dim, F keys, int64_t t) {
  const int c = threadIdx.x;
  if (c >= head_dim) return;
  // Without the list of rows (a part of a step) the sequence is looked for.
  int s = 0;
  if (step.row_sequence != nullptr) {
    s = step.row_sequence[t];
  } else {
    while (s + 1 < step.num_sequences && step.sequences[s + 1].row_begin <= t) ++s;
  }
  const device::SequenceRows& rows = step.sequences[s];
  const int r = static_cast<int>(t) - rows.row_begin;
  if (r < 0 || r >= rows.num_rows || rows.num_rows - r > ring.rows) return;
  uint8_t* to = rows.state + ring.offset + (rows.start + r) % ring.rows * record;
  EncodeKeyChannel(ring.format, keys.data[t * keys.stride + c], c, to, to + data_bytes);
}

}  // namespace deepinfer::cuda
