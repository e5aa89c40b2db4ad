// SPDX-License-Identifier: Apache-2.0
//
// Sink softmax attention of one query row over a list of keys that are also the values (model.md 6.6). The caller decodes
// each key once into a KeyPanel; all heads then share it. Per head: z_i = (q . k_i) * scale; m = max z_i (at least -1e30);
// P_i = exp(z_i - m); den = sum P_i + exp(sink - m) from unrounded P; out = (sum round(P_i) * k_i) / den, rounded on request.
// A head's result depends on its query and the list of keys only: fixed lanes inside a dot product, keys ascending in the
// sums. exp is a polynomial of degree 6 with an error below 2 units in the last place, the same on every instruction set.
#pragma once

#include <cstdint>
#include <cstring>

#include "backends/cpu/kernels/aligned_buffer.h"
#include "core/threads.h"

namespace deepinfer::cpu {

inline constexpr int kPanelLanes = 16;  // head_dim must be a multiple of it

// Keys of one row in the order of attention: [dim/16][stride][16] float32. The stride is an odd multiple of 3 so that
// panels of different channels do not fall on the same cache sets; keys behind num_keys are zero.
struct KeyPanel {
  float* data = nullptr;
  int num_keys = 0;
  int stride = 0;
  int dim = 0;

  static int Stride(int num_keys) {
    const int blocks = (num_keys + 2) / 3;
    return 3 * (blocks | 1);
  }
  static int64_t NumFloats(int num_keys, int dim) { return int64_t{Stride(num_keys)} * dim; }

  // Copies key i. Thread-safe for different keys.
  void Set(int i, const float* key) const {
    for (int c = 0; c < dim; c += kPanelLanes) {
      std::memcpy(data + (int64_t{c} * stride + int64_t{i} * kPanelLanes), key + c, kPanelLanes * sizeof(float));
    }
  }
  void ZeroPadding() const {
    for (int c = 0; c < dim; c += kPanelLanes) {
      std::memset(data + (int64_t{c} * stride + int64_t{num_keys} * kPanelLanes), 0,
                  static_cast<size_t>(stride - num_keys) * kPanelLanes * sizeof(float));
    }
  }
};

struct AttendTask {
  const float* query = nullptr;  // [num_heads, dim]
  int num_heads = 0;
  KeyPanel panel;
  float scale = 1;
  const float* sink = nullptr;   // [num_heads]
  bool round_bf16 = false;       // round P before the values and the result
  float* scratch = nullptr;      // [AttendScratchFloats(num_heads, panel.num_keys)]
  float* out = nullptr;          // [num_heads, dim]
};

inline int64_t AttendScratchFloats(int num_heads, int num_keys) {
  return int64_t{num_heads} * (KeyPanel::Stride(num_keys) + 16);
}

// At the active instruction set level.
void Attend(const AttendTask& task);

// exp(x) as the attention computes it.
float AttentionExp(float x);

// Rows of a step, each with its own list of keys. Few rows: keys are gathered by all threads, then heads are split; many
// rows: one row per item. The bits are the same. The functions are called from pool threads:
//   num_keys(row) -> int
//   gather(row, first, last, panel, thread_idx): panel.Set() of keys first..last-1
//   query(row) -> const float*    out(row) -> float*
//   finish(row, first_head, last_head): those heads of out(row) are done (undo the rotation, trace, ...)
class SparseAttention {
 public:
  struct Shape {
    int heads = 0;
    int dim = 0;
    float scale = 1;
    const float* sink = nullptr;
    bool round_bf16 = false;
    int max_keys = 0;  // >= num_keys(row) of every row
  };

  template <typename NumKeys, typename Gather, typename Query, typename Out, typename Finish>
  void Run(ThreadPool& pool, const Shape& shape, int64_t num_rows, NumKeys&& num_keys, Gather&& gather, Query&& query,
           Out&& out, Finish&& finish) {
    const int64_t panel_floats = KeyPanel::NumFloats(shape.max_keys, shape.dim);
    const int64_t scratch_floats = AttendScratchFloats(shape.heads, shape.max_keys);
    const int threads = pool.num_threads();
    const bool row_per_item = num_rows >= int64_t{4} * threads || threads == 1;
    const int64_t batch = row_per_item ? threads : num_rows < 4 ? num_rows : 4;
    panels_.EnsureCapacity(batch * panel_floats * static_cast<int64_t>(sizeof(float)));
    scratch_.EnsureCapacity(threads * scratch_floats * static_cast<int64_t>(sizeof(float)));
    const auto panel_of = [&](int64_t row, int64_t slot) {
      const int n = num_keys(row);
      return KeyPanel{reinterpret_cast<float*>(panels_.data()) + slot * panel_floats, n, KeyPanel::Stride(n), shape.dim};
    };
    const auto attend = [&](int64_t row, const KeyPanel& panel, int first_head, int last_head, int thread) {
      AttendTask task;
      task.query = query(row) + int64_t{first_head} * shape.dim;
      task.num_heads = last_head - first_head;
      task.panel = panel;
      task.scale = shape.scale;
      task.sink = shape.sink + first_head;
      task.round_bf16 = shape.round_bf16;
      task.scratch = reinterpret_cast<float*>(scratch_.data()) + thread * scratch_floats;
      task.out = out(row) + int64_t{first_head} * shape.dim;
      Attend(task);
      finish(row, first_head, last_head);
    };
    if (row_per_item) {
      pool.ParallelFor(num_rows, [&](int64_t row, int thread) {
        const KeyPanel panel = panel_of(row, thread);
        gather(row, 0, panel.num_keys, panel, thread);
        panel.ZeroPadding();
        attend(row, panel, 0, shape.heads, thread);
      });
      return;
    }
    constexpr int kKeysPerItem = 64;
    constexpr int kHeadsPerItem = 8;
    const int64_t key_items = (shape.max_keys + kKeysPerItem - 1) / kKeysPerItem;
    const int64_t head_items = (shape.heads + kHeadsPerItem - 1) / kHeadsPerItem;
    for (int64_t begin = 0; begin < num_rows; begin += batch) {
      const int64_t rows = num_rows - begin < batch ? num_rows - begin : batch;
      pool.ParallelFor(rows * key_items, [&](int64_t item, int thread) {
        const int64_t slot = item / key_items;
        const KeyPanel panel = panel_of(begin + slot, slot);
        const int first = static_cast<int>(item % key_items) * kKeysPerItem;
        const int last = first + kKeysPerItem < panel.num_keys ? first + kKeysPerItem : panel.num_keys;
        if (first < last) gather(begin + slot, first, last, panel, thread);
        if (first == 0) panel.ZeroPadding();
      });
      pool.ParallelFor(rows * head_items, [&](int64_t item, int thread) {
        const int64_t slot = item / head_items;
        const int first = static_cast<int>(item % head_items) * kHeadsPerItem;
        const int last = first + kHeadsPerItem < shape.heads ? first + kHeadsPerItem : shape.heads;
        attend(begin + slot, panel_of(begin + slot, slot), first, last, thread);
      });
    }
  }

 private:
  AlignedBuffer panels_;   // few rows: one per row of a batch; many rows: one per thread
  AlignedBuffer scratch_;  // per thread
};

}  // namespace deepinfer::cpu
