// SPDX-License-Identifier: Apache-2.0
//
// Sink softmax attention of one query row over a list of keys that are also the values (model.md 6.6). Keys are decoded
// float32 vectors anywhere in memory; a KeyList points at them, so rows and heads share decoded keys without copying. Per
// head: z_i = (q . k_i) * scale; m = max z_i (at least -1e30); P_i = exp(z_i - m); den = sum P_i + exp(sink - m) from
// unrounded P; out = (sum round(P_i) * k_i) / den, rounded on request. A head's result depends on its query and the list of
// keys only: fixed lanes inside a dot product, keys ascending in the sums. exp is a polynomial of degree 6 with an error
// below 2 units in the last place, the same on every instruction set.
#pragma once

#include <algorithm>
#include <cstdint>

#include "backends/cpu/kernels/aligned_buffer.h"
#include "core/threads.h"

namespace deepinfer::cpu {

inline constexpr int kPanelLanes = 16;  // head_dim must be a multiple of it

// Floats between decoded keys stored one after another: one cache line more than a key, so that the same channel of
// successive keys does not fall into the same cache sets.
constexpr int64_t KeyStride(int dim) { return dim + kPanelLanes; }

// The keys of one row in the order of attention: keys[i] points at dim floats. The list has PaddedKeys(num_keys) entries;
// those behind num_keys point at any readable key.
struct KeyList {
  const float* const* keys = nullptr;
  int num_keys = 0;
  int dim = 0;
};
constexpr int PaddedKeys(int num_keys) { return (num_keys + 2) / 3 * 3; }

struct AttendTask {
  const float* query = nullptr;  // [num_heads, dim]
  int num_heads = 0;
  KeyList list;
  float scale = 1;
  const float* sink = nullptr;   // [num_heads]
  bool round_bf16 = false;       // round P before the values and the result
  float* scratch = nullptr;      // [AttendScratchFloats(num_heads, list.num_keys)]
  float* out = nullptr;          // [num_heads, dim]
};

inline int64_t AttendScratchFloats(int num_heads, int num_keys) {
  return int64_t{num_heads} * (PaddedKeys(num_keys) + 16);
}

// At the active instruction set level.
void Attend(const AttendTask& task);

// exp(x) as the attention computes it.
float AttentionExp(float x);

// Rows of a step, each with its own list of keys. Few rows: lists are made by all threads, then heads are split; many rows:
// one row per item. The bits are the same. The functions are called from pool threads:
//   num_keys(row) -> int
//   collect(row, first, last, keys, scratch): sets keys[i] for first <= i < last; a key that has to be decoded may be put at
//     scratch + i * KeyStride(dim)
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

  template <typename NumKeys, typename Collect, typename Query, typename Out, typename Finish>
  void Run(ThreadPool& pool, const Shape& shape, int64_t num_rows, NumKeys&& num_keys, Collect&& collect, Query&& query,
           Out&& out, Finish&& finish) {
    const int64_t list_size = PaddedKeys(shape.max_keys);
    const int64_t key_floats = list_size * KeyStride(shape.dim);
    const int64_t scratch_floats = AttendScratchFloats(shape.heads, shape.max_keys);
    const int threads = pool.num_threads();
    const bool row_per_item = num_rows >= int64_t{4} * threads || threads == 1;
    const int64_t batch = row_per_item ? threads : num_rows < 4 ? num_rows : 4;
    lists_.EnsureCapacity(batch * list_size * static_cast<int64_t>(sizeof(const float*)));
    keys_.EnsureCapacity(batch * key_floats * static_cast<int64_t>(sizeof(float)));
    scratch_.EnsureCapacity(threads * scratch_floats * static_cast<int64_t>(sizeof(float)));
    const auto list_of = [&](int64_t slot) { return reinterpret_cast<const float**>(lists_.data()) + slot * list_size; };
    const auto keys_of = [&](int64_t slot) { return reinterpret_cast<float*>(keys_.data()) + slot * key_floats; };
    const auto attend = [&](int64_t row, int64_t slot, int first_head, int last_head, int thread) {
      AttendTask task;
      task.query = query(row) + int64_t{first_head} * shape.dim;
      task.num_heads = last_head - first_head;
      task.list = {list_of(slot), num_keys(row), shape.dim};
      task.scale = shape.scale;
      task.sink = shape.sink + first_head;
      task.round_bf16 = shape.round_bf16;
      task.scratch = reinterpret_cast<float*>(scratch_.data()) + thread * scratch_floats;
      task.out = out(row) + int64_t{first_head} * shape.dim;
      Attend(task);
      finish(row, first_head, last_head);
    };
    const auto pad = [&](const float** list, int n) {
      for (int i = n; i < PaddedKeys(n); ++i) list[i] = list[n - 1];
    };
    if (row_per_item) {
      pool.ParallelFor(num_rows, [&](int64_t row, int thread) {
        const int n = num_keys(row);
        collect(row, 0, n, list_of(thread), keys_of(thread));
        pad(list_of(thread), n);
        attend(row, thread, 0, shape.heads, thread);
      });
      return;
    }
    constexpr int kKeysPerItem = 32;
    // At least one item per thread where there are that many heads, at most 8 heads an item: they share the keys' loads.
    const int heads_per_item = std::clamp((shape.heads + threads - 1) / threads, 1, 8);
    const int64_t key_items = (shape.max_keys + kKeysPerItem - 1) / kKeysPerItem;
    const int64_t head_items = (shape.heads + heads_per_item - 1) / heads_per_item;
    for (int64_t begin = 0; begin < num_rows; begin += batch) {
      const int64_t rows = num_rows - begin < batch ? num_rows - begin : batch;
      pool.ParallelFor(rows * key_items, [&](int64_t item, int) {
        const int64_t slot = item / key_items;
        const int n = num_keys(begin + slot);
        const int first = static_cast<int>(item % key_items) * kKeysPerItem;
        const int last = std::min(first + kKeysPerItem, n);
        if (first < last) collect(begin + slot, first, last, list_of(slot), keys_of(slot));
        if (first < last && last == n) pad(list_of(slot), n);
      });
      pool.ParallelFor(rows * head_items, [&](int64_t item, int thread) {
        const int64_t slot = item / head_items;
        const int first = static_cast<int>(item % head_items) * heads_per_item;
        attend(begin + slot, slot, first, std::min(first + heads_per_item, shape.heads), thread);
      });
    }
  }

 private:
  AlignedBuffer lists_;    // few rows: one per row of a batch; many rows: one per thread
  AlignedBuffer keys_;     // decoded keys, likewise
  AlignedBuffer scratch_;  // per thread
};

}  // namespace deepinfer::cpu
