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
  const int window = args.ring.window;
  const int64_t ring_record = device::KeyRecordBytes(args.ring.format, dim);
  const int64_t ring_data = device::KeyDataBytes(args.ring.format, dim);

  // Positions [first, last] of the window keys of a row.
  struct Window {
    int first, last;
    int size() const { return std::max(0, last - first + 1); }
  };
  const auto window_of = [&](int64_t t) {
    const device::SequenceRows& rows = step.sequences[step.row_sequence[t]];
    const int p = step.positions[t];
    const int last = args.is_draft_block ? rows.start + rows.num_rows - 1 : p;
    const int oldest = args.is_draft_block ? rows.start - window : p - window + 1;
    return Window{std::max({0, rows.window_floor, oldest}), last};
  };

  int max_selected = 0, max_block = 0;
  if (args.compressed != nullptr)
    for (int t = 0; t < step.num_rows; ++t) max_selected = std::max(max_selected, args.num_selected[t]);
  if (args.is_draft_block)
    for (int s = 0; s < step.num_sequences; ++s) max_block = std::max(max_block, step.sequences[s].num_rows);

  SparseAttention::Shape shape;
  shape.heads = args.heads;
  shape.dim = dim;
  shape.scale = 1.0f / std::sqrt(static_cast<float>(dim));
  shape.sink = args.sink;
  shape.round_bf16 = a.round_bf16;
  shape.max_keys = window + max_block + max_selected;

  attention_.Run(
      *pool_, shape, step.num_rows,
      [&](int64_t t) { return window_of(t).size() + (args.compressed != nullptr ? args.num_selected[t] : 0); },
      [&](int64_t t, int begin, int end, const KeyPanel& panel, int) {
        const device::SequenceRows& rows = step.sequences[step.row_sequence[t]];
        const Window w = window_of(t);
        const int64_t run_stride = int64_t{panel.stride} * kPanelLanes;
        const int num_window = w.size();
        int i = begin;
        for (; i < std::min(end, num_window); ++i) {
          const int p = w.first + i;
          if (p >= rows.start) {
            panel.Set(i, Row(args.new_keys, rows.row_begin + p - rows.start));
          } else {
            const uint8_t* from = rows.state + args.ring.offset + p % args.ring.rows * ring_record;
            row_ops_.decode_key(args.ring.format, from, from + ring_data, dim, panel.data + i * kPanelLanes, run_stride);
          }
        }
        if (i >= end) return;
        const device::KeyCache& c = *args.compressed;
        const int64_t record = device::KeyRecordBytes(c.main_format, dim);
        const int64_t data = device::KeyDataBytes(c.main_format, dim);
        const int32_t* selected = args.selected + t * args.selected_stride - num_window;
        for (; i < end; ++i) {
          const int g = selected[i];
          const uint8_t* from = c.pool + rows.block_table[g / c.entries_per_block] * c.block_stride + c.main_offset +
                                g % c.entries_per_block * record;
          row_ops_.decode_key(c.main_format, from, from + data, dim, panel.data + i * kPanelLanes, run_stride);
        }
      },
      [&](int64_t t) { return Row(args.query, t); }, [&](int64_t t) { return Row(args.out, t); },
      [&](int64_t t, int first_head, int last_head) {
        const float* cos = args.rope + t * args.rope_dim;
        for (int h = first_head; h < last_head; ++h) {
          float* out = Row(args.out, t) + int64_t{h} * dim;
          if (args.trace_unrotated)
            std::memcpy(Row(args.trace_unrotated, t) + int64_t{h} * dim, out, static_cast<size_t>(dim) * sizeof(float));
          row_ops_.rotate(out + dim - args.rope_dim, args.rope_dim, cos, cos + args.rope_dim / 2, true, a.round_bf16);
        }
      });
}

}  // namespace deepinfer::cpu
