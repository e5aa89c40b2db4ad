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

// One row, all heads.
struct AttendTask {
  const float* query = nullptr;  // [num_heads, dim]
  int num_heads = 0;
  KeyList list;
  float scale = 1;
  const float* sink = nullptr;   // [num_heads]
  bool round_bf16 = false;       // round P before the values and the result
  float* scores = nullptr;       // [num_heads, score_stride], score_stride = ScoreStride(list.num_keys) or more
  int64_t score_stride = 0;
  float* denominators = nullptr;  // [num_heads]
  float* out = nullptr;          // [num_heads, dim]
};

// Room for the padding to three keys and, after that, to eight.
constexpr int64_t ScoreStride(int num_keys) { return PaddedKeys(num_keys) + 16; }

// The three parts of a row, each of which threads can share.
struct AttendKernels {
  // Scores of all heads and keys [first, last): first a multiple of 3, last too unless it is num_keys.
  void (*scores)(const AttendTask& task, int first, int last);
  // Weights and denominators of heads [first, last), when all their scores are there.
  void (*weights)(const AttendTask& task, int first, int last);
  // Channels [first, last) of all heads, multiples of kPanelLanes.
  void (*values)(const AttendTask& task, int first, int last);
};
const AttendKernels& ActiveAttendKernels();
#if defined(__x86_64__)
extern const AttendKernels kAttendAvx2;
extern const AttendKernels kAttendAvx512;
#elif defined(__aarch64__)
extern const AttendKernels kAttendNeon;
#endif

// exp(x) as the attention computes it.
float AttentionExp(float x);

// Rows of a step, each with its own list of keys. Many rows: one row per item. Few rows: items of keys (made and scored where
// they were decoded, for all heads), then items of channels. The bits are the same. The functions are called from pool threads:
//   num_keys(row) -> int
//   collect(row, first, last, keys, scratch): sets keys[i] for first <= i < last; a key that has to be decoded may be put at
//     scratch + i * KeyStride(dim)
//   query(row) -> const float*    out(row) -> float*
//   finish(row, first_channel, last_channel): those channels of all heads of out(row) are done (undo the rotation, ...); the
//     borders are multiples of kPanelLanes
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
    const AttendKernels& kernels = ActiveAttendKernels();
    const int64_t list_size = PaddedKeys(shape.max_keys);
    const int64_t key_floats = list_size * KeyStride(shape.dim);
    const int64_t score_stride = ScoreStride(shape.max_keys);
    const int64_t score_floats = shape.heads * score_stride;
    const int threads = pool.num_threads();
    const bool row_per_item = num_rows >= int64_t{4} * threads || threads == 1;
    const int64_t batch = row_per_item ? threads : num_rows < 4 ? num_rows : 4;
    lists_.EnsureCapacity(batch * list_size * static_cast<int64_t>(sizeof(const float*)));
    keys_.EnsureCapacity(batch * key_floats * static_cast<int64_t>(sizeof(float)));
    scores_.EnsureCapacity(batch * (score_floats + shape.heads) * static_cast<int64_t>(sizeof(float)));
    const auto list_of = [&](int64_t slot) { return reinterpret_cast<const float**>(lists_.data()) + slot * list_size; };
    const auto keys_of = [&](int64_t slot) { return reinterpret_cast<float*>(keys_.data()) + slot * key_floats; };
    const auto task_of = [&](int64_t row, int64_t slot) {
      AttendTask task;
      task.query = query(row);
      task.num_heads = shape.heads;
      task.list = {list_of(slot), num_keys(row), shape.dim};
      task.scale = shape.scale;
      task.sink = shape.sink;
      task.round_bf16 = shape.round_bf16;
      task.scores = reinterpret_cast<float*>(scores_.data()) + slot * (score_floats + shape.heads);
      task.score_stride = score_stride;
      task.denominators = task.scores + score_floats;
      task.out = out(row);
      return task;
    };
    const auto pad = [&](const float** list, int n) {
      for (int i = n; i < PaddedKeys(n); ++i) list[i] = list[n - 1];
    };
    if (row_per_item) {
      pool.ParallelFor(num_rows, [&](int64_t row, int thread) {
        const AttendTask task = task_of(row, thread);
        const int n = task.list.num_keys;
        collect(row, 0, n, list_of(thread), keys_of(thread));
        if (n > 0) {
          pad(list_of(thread), n);
          kernels.scores(task, 0, n);
          kernels.weights(task, 0, shape.heads);
        }
        kernels.values(task, 0, shape.dim);
        finish(row, 0, shape.dim);
      });
      return;
    }
    constexpr int kKeysPerItem = 24;
    constexpr int kHeadsPerItem = 4;
    constexpr int64_t kInlineWeights = 2048;  // so few that waking nobody is faster
    const int64_t key_items = (shape.max_keys + kKeysPerItem - 1) / kKeysPerItem;
    const int64_t head_items = (shape.heads + kHeadsPerItem - 1) / kHeadsPerItem;
    // Two items a thread at least, in whole cache lines of channels.
    const int channels_per_item =
        std::max(kPanelLanes, shape.dim / (2 * threads) / kPanelLanes * kPanelLanes);
    const int64_t channel_items = (shape.dim + channels_per_item - 1) / channels_per_item;
    for (int64_t begin = 0; begin < num_rows; begin += batch) {
      const int64_t rows = num_rows - begin < batch ? num_rows - begin : batch;
      pool.ParallelFor(rows * key_items, [&](int64_t item, int) {
        const int64_t slot = item / key_items;
        const AttendTask task = task_of(begin + slot, slot);
        const int n = task.list.num_keys;
        const int first = static_cast<int>(item % key_items) * kKeysPerItem;
        const int last = std::min(first + kKeysPerItem, n);
        if (first >= last) return;
        collect(begin + slot, first, last, list_of(slot), keys_of(slot));
        if (last == n) pad(list_of(slot), n);
        kernels.scores(task, first, last);
      });
      const auto weigh = [&](int64_t item, int) {
        const int64_t slot = item / head_items;
        const AttendTask task = task_of(begin + slot, slot);
        const int first = static_cast<int>(item % head_items) * kHeadsPerItem;
        if (task.list.num_keys > 0) kernels.weights(task, first, std::min(first + kHeadsPerItem, shape.heads));
      };
      if (rows * shape.heads * shape.max_keys <= kInlineWeights) {
        for (int64_t item = 0; item < rows * head_items; ++item) weigh(item, 0);
      } else {
        pool.ParallelFor(rows * head_items, weigh);
      }
      pool.ParallelFor(rows * channel_items, [&](int64_t item, int) {
        const int64_t slot = item / channel_items;
        const int first = static_cast<int>(item % channel_items) * channels_per_item;
        const int last = std::min(first + channels_per_item, shape.dim);
        kernels.values(task_of(begin + slot, slot), first, last);
        finish(begin + slot, first, last);
      });
    }
  }

 private:
  AlignedBuffer lists_;   // few rows: one per row of a batch; many rows: one per thread
  AlignedBuffer keys_;    // decoded keys, likewise
  AlignedBuffer scores_;  // scores and denominators, likewise
};

}  // namespace deepinfer::cpu
