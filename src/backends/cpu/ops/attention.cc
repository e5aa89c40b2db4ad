// SPDX-License-Identifier: Apache-2.0
//
// Sink softmax over window keys and selected compressed keys. The window keys of a sequence are laid out once as float32
// rows by position; compressed keys are too, when its rows select more of them than there are, else each row decodes its
// own. With one row a sequence (decoding) nothing is shared, and the window keys are decoded where they are scored, too.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "backends/cpu/cpu_device.h"

namespace deepinfer::cpu {

namespace {

// Decoded compressed keys of a step take at most this much memory; beyond it rows decode what they select.
constexpr int64_t kMaxDecodedBytes = int64_t{64} << 20;

}  // namespace

void CpuDevice::Attention(const Arithmetic& a, const device::Step& step, const device::AttentionArgs& args) {
  const int dim = args.head_dim;
  const int window = args.ring.window;
  const int64_t stride = KeyStride(dim);
  const size_t num_sequences = static_cast<size_t>(step.num_sequences);

  // First position whose window key some row of the sequence may read.
  const auto oldest_of = [&](const device::SequenceRows& rows, int p) {
    return std::max({0, rows.window_floor, args.is_draft_block ? rows.start - window : p - window + 1});
  };
  // Positions [first, last] of the window keys of a row.
  struct Window {
    int first, last;
    int size() const { return std::max(0, last - first + 1); }
  };
  const auto window_of = [&](int64_t t) {
    const device::SequenceRows& rows = step.sequences[step.row_sequence[t]];
    const int p = step.positions[t];
    return Window{oldest_of(rows, p), args.is_draft_block ? rows.start + rows.num_rows - 1 : p};
  };

  // ---- window keys of every sequence ----
  const bool shares_keys = step.num_rows > step.num_sequences;
  const int64_t ring_record = device::KeyRecordBytes(args.ring.format, dim);
  const int64_t ring_data = device::KeyDataBytes(args.ring.format, dim);
  window_begin_.assign(num_sequences + 1, 0);
  for (size_t s = 0; s < num_sequences; ++s) {
    const device::SequenceRows& rows = step.sequences[s];
    const int num_keys = shares_keys ? std::max(0, rows.start + rows.num_rows - oldest_of(rows, rows.start)) : 0;
    window_begin_[s + 1] = window_begin_[s] + num_keys;
  }
  window_keys_.EnsureCapacity(window_begin_.back() * stride * static_cast<int64_t>(sizeof(float)));
  float* const window_keys = reinterpret_cast<float*>(window_keys_.data());
  ForRows(window_begin_.back(), dim / 4, [&](int64_t begin, int64_t end) {
    size_t s = static_cast<size_t>(std::upper_bound(window_begin_.begin(), window_begin_.end(), begin) - window_begin_.begin()) - 1;
    for (int64_t i = begin; i < end; ++i) {
      while (i >= window_begin_[s + 1]) ++s;
      const device::SequenceRows& rows = step.sequences[s];
      const int p = oldest_of(rows, rows.start) + static_cast<int>(i - window_begin_[s]);
      float* to = window_keys + i * stride;
      if (p >= rows.start) {
        std::memcpy(to, Row(args.new_keys, rows.row_begin + p - rows.start), static_cast<size_t>(dim) * sizeof(float));
      } else {
        const uint8_t* from = rows.state + args.ring.offset + p % args.ring.rows * ring_record;
        row_ops_.decode_key(args.ring.format, from, from + ring_data, dim, to);
      }
    }
  });

  // ---- compressed keys ----
  int max_selected = 0, max_block = 0;
  compressed_begin_.assign(num_sequences, -1);
  const auto decode_group = [&](const device::SequenceRows& rows, int g, float* to) {
    const device::KeyCache& c = *args.compressed;
    const uint8_t* from = c.pool + rows.block_table[g / c.entries_per_block] * c.block_stride + c.main_offset +
                          g % c.entries_per_block * device::KeyRecordBytes(c.main_format, dim);
    row_ops_.decode_key(c.main_format, from, from + device::KeyDataBytes(c.main_format, dim), dim, to);
  };
  float* compressed_keys = nullptr;
  if (args.compressed != nullptr) {
    int64_t total = 0;
    const int ratio = args.compressed->ratio;
    for (size_t s = 0; s < num_sequences; ++s) {
      const device::SequenceRows& rows = step.sequences[s];
      int64_t selected = 0;
      for (int t = rows.row_begin; t < rows.row_begin + rows.num_rows; ++t) {
        max_selected = std::max(max_selected, args.num_selected[t]);
        selected += args.num_selected[t];
      }
      const int64_t groups = (rows.start + rows.num_rows) / ratio;
      if (selected > groups && (total + groups) * stride * static_cast<int64_t>(sizeof(float)) <= kMaxDecodedBytes) {
        compressed_begin_[s] = total;
        total += groups;
      }
    }
    compressed_keys_.EnsureCapacity(total * stride * static_cast<int64_t>(sizeof(float)));
    compressed_keys = reinterpret_cast<float*>(compressed_keys_.data());
    for (size_t s = 0; s < num_sequences; ++s) {
      if (compressed_begin_[s] < 0) continue;
      const device::SequenceRows& rows = step.sequences[s];
      ForRows((rows.start + rows.num_rows) / ratio, dim / 4, [&](int64_t begin, int64_t end) {
        for (int64_t g = begin; g < end; ++g)
          decode_group(rows, static_cast<int>(g), compressed_keys + (compressed_begin_[s] + g) * stride);
      });
    }
  }
  if (args.is_draft_block)
    for (size_t s = 0; s < num_sequences; ++s) max_block = std::max(max_block, step.sequences[s].num_rows);

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
      [&](int64_t t, int begin, int end, const float** keys, float* scratch) {
        const size_t s = static_cast<size_t>(step.row_sequence[t]);
        const device::SequenceRows& rows = step.sequences[s];
        const Window w = window_of(t);
        const int num_window = w.size();
        int i = begin;
        if (shares_keys) {
          const float* first = window_keys + (window_begin_[s] + w.first - oldest_of(rows, rows.start)) * stride;
          for (; i < std::min(end, num_window); ++i) keys[i] = first + i * stride;
        } else {
          for (; i < std::min(end, num_window); ++i) {
            const int p = w.first + i;
            if (p >= rows.start) {
              keys[i] = Row(args.new_keys, rows.row_begin + p - rows.start);
              continue;
            }
            const uint8_t* from = rows.state + args.ring.offset + p % args.ring.rows * ring_record;
            row_ops_.decode_key(args.ring.format, from, from + ring_data, dim, scratch + i * stride);
            keys[i] = scratch + i * stride;
          }
        }
        if (i >= end) return;
        const int32_t* selected = args.selected + t * args.selected_stride - num_window;
        if (compressed_begin_[s] >= 0) {
          for (; i < end; ++i) keys[i] = compressed_keys + (compressed_begin_[s] + selected[i]) * stride;
        } else {
          for (; i < end; ++i) {
            decode_group(rows, selected[i], scratch + i * stride);
            keys[i] = scratch + i * stride;
          }
        }
      },
      [&](int64_t t) { return Row(args.query, t); }, [&](int64_t t) { return Row(args.out, t); },
      [&](int64_t t, int first, int last) {
        const float* cos = args.rope + t * args.rope_dim;
        const size_t bytes = static_cast<size_t>(last - first) * sizeof(float);
        const int rope_begin = std::max(first, dim - args.rope_dim);
        for (int h = 0; h < args.heads; ++h) {
          float* out = Row(args.out, t) + int64_t{h} * dim;
          if (args.trace_unrotated) std::memcpy(Row(args.trace_unrotated, t) + int64_t{h} * dim + first, out + first, bytes);
          if (rope_begin >= last) continue;
          const int pair = (rope_begin - (dim - args.rope_dim)) / 2;
          row_ops_.rotate(out + rope_begin, last - rope_begin, cos + pair, cos + args.rope_dim / 2 + pair, true, a.round_bf16);
        }
      });
}

}  // namespace deepinfer::cpu
