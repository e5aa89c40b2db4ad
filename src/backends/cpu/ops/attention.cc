// SPDX-License-Identifier: Apache-2.0
//
// Sink softmax over window keys and selected compressed keys.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "backends/cpu/cpu_device.h"

namespace deepinfer::cpu {

void CpuDevice::Attention(const Arithmetic& a, const device::Step& step, const device::AttentionArgs& args) {
  const int dim = args.head_dim;
  const int64_t ring_record = device::KeyRecordBytes(args.ring.format, dim);
  const int64_t ring_data = device::KeyDataBytes(args.ring.format, dim);
  // Window keys before the step, decoded once per sequence: positions start - W + 1 .. start - 1 (a draft block sees one
  // more).
  const int history = args.ring.window - (args.is_draft_block ? 0 : 1);
  history_.resize(static_cast<size_t>(step.num_sequences) * static_cast<size_t>(history) * static_cast<size_t>(dim));
  pool_->ParallelFor(step.num_sequences, [&](int64_t s, int) {
    const device::SequenceRows& rows = step.sequences[s];
    float* to = history_.data() + s * history * dim;
    for (int i = 0; i < history; ++i) {
      const int p = rows.start - history + i;
      if (p < rows.window_floor || p < 0) continue;
      const uint8_t* from = rows.state + args.ring.offset + p % args.ring.rows * ring_record;
      row_ops_.decode_key(args.ring.format, from, from + ring_data, dim, to + i * dim);
    }
  });

  const float scale = 1.0f / std::sqrt(static_cast<float>(dim));
  const int max_keys = args.ring.window + step.num_rows * (args.is_draft_block ? 1 : 0) + args.selected_stride;
  pool_->ParallelFor(step.num_rows, [&](int64_t t, int thread) {
    const int s = step.row_sequence[t];
    const device::SequenceRows& rows = step.sequences[s];
    const int p = step.positions[t];
    float* keys = Scratch(thread, 0, int64_t{max_keys} * dim);
    int n = 0;
    const auto copy_key = [&](const float* from) {
      std::memcpy(keys + int64_t{n} * dim, from, static_cast<size_t>(dim) * sizeof(float));
      ++n;
    };
    const int newest_past = args.is_draft_block ? rows.start - 1 : std::min(p, rows.start - 1);
    const int first = std::max({0, rows.window_floor, args.is_draft_block ? rows.start - args.ring.window : p - args.ring.window + 1});
    for (int q = first; q <= newest_past; ++q) copy_key(history_.data() + (int64_t{s} * history + q - rows.start + history) * dim);
    const int last_new = args.is_draft_block ? rows.start + rows.num_rows - 1 : p;
    for (int q = std::max(first, rows.start); q <= last_new; ++q) copy_key(Row(args.new_keys, rows.row_begin + q - rows.start));
    if (args.compressed != nullptr) {
      const device::KeyCache& c = *args.compressed;
      const int64_t record = device::KeyRecordBytes(c.main_format, dim);
      const int64_t data = device::KeyDataBytes(c.main_format, dim);
      for (int i = 0; i < args.num_selected[t]; ++i) {
        const int g = args.selected[t * args.selected_stride + i];
        const uint8_t* from = c.pool + rows.block_table[g / c.entries_per_block] * c.block_stride + c.main_offset +
                              g % c.entries_per_block * record;
        row_ops_.decode_key(c.main_format, from, from + data, dim, keys + int64_t{n} * dim);
        ++n;
      }
    }
    float* weight = Scratch(thread, 1, max_keys);
    const float* cos = args.rope + t * args.rope_dim;
    for (int h = 0; h < args.heads; ++h) {
      const float* q = Row(args.query, t) + h * dim;
      float* out = Row(args.out, t) + h * dim;
      float top = -1e30f;
      for (int i = 0; i < n; ++i) {
        weight[i] = row_ops_.dot(q, keys + int64_t{i} * dim, dim) * scale;
        top = std::max(top, weight[i]);
      }
      float total = 0;
      for (int i = 0; i < n; ++i) {
        weight[i] = std::exp(weight[i] - top);
        total += weight[i];
      }
      total += std::exp(args.sink[h] - top);
      if (a.round_bf16) row_ops_.round_bf16(weight, n, weight);
      std::fill_n(out, dim, 0.0f);
      for (int i = 0; i < n; ++i) row_ops_.add_scaled(keys + int64_t{i} * dim, weight[i], dim, false, out);
      for (int c = 0; c < dim; ++c) out[c] = out[c] / total;
      if (a.round_bf16) row_ops_.round_bf16(out, dim, out);
      if (args.trace_unrotated) std::memcpy(Row(args.trace_unrotated, t) + h * dim, out, static_cast<size_t>(dim) * sizeof(float));
      row_ops_.rotate(out + dim - args.rope_dim, args.rope_dim, cos, cos + args.rope_dim / 2, true, a.round_bf16);
    }
  });
}

}  // namespace deepinfer::cpu
