// SPDX-License-Identifier: Apache-2.0
//
// Plain data that flows between the model and a device: activations, weight sources, the rows of a step and the layout of
// the key caches. Every pointer here is a device pointer unless the name says host; the model never dereferences one.
#pragma once

#include <cstdint>

namespace deepinfer::device {

// Which storage points round. Plain float32 arithmetic has both off.
struct Arithmetic {
  bool round_bf16 = false;  // results that the released model stores in bf16 are rounded to it
  bool quantize = false;    // FP8/FP4 rounding of activations, keys and index vectors
};

// A matrix of activations in the device's own value type (float32 on the CPU). These are the storage points that
// `round_bf16` rounds. Rows are `stride` values apart, so a column range of a wider matrix is one too.
struct Act {
  void* data = nullptr;
  int64_t stride = 0;
  int32_t value_bytes = 4;

  explicit operator bool() const { return data != nullptr; }
  Act Columns(int64_t first) const { return {static_cast<uint8_t*>(data) + first * value_bytes, stride, value_bytes}; }
  Act Rows(int64_t first) const { return {static_cast<uint8_t*>(data) + first * stride * value_bytes, stride, value_bytes}; }
};

// How weights are stored in the checkpoint. One scale byte is a ue8m0 exponent.
enum class WeightFormat {
  kF32,
  kBf16,
  kFp8Block32,  // e4m3 [rows, cols], one scale per 32 x 32 tile: [ceil(rows/32), ceil(cols/32)]
  kFp8Row32,    // e4m3 [rows, cols], one scale per row and 32 columns: [rows, cols/32] (Engram tables)
  kFp4Row32,    // e2m1 [rows, cols/2] low nibble first, one scale per row and 32 columns
};

// A matrix as it lies in the (host) mapping of the checkpoint; row-major, `rows` outputs of `cols` inputs.
struct HostMatrix {
  WeightFormat format = WeightFormat::kBf16;
  int64_t rows = 0;
  int64_t cols = 0;
  const void* host_data = nullptr;
  const uint8_t* host_scale = nullptr;
  bool is_volatile = false;  // the values change from step to step: a device must not keep a copy of them
};

// One sequence's rows in a step. Rows of a sequence are adjacent and their positions consecutive.
struct SequenceRows {
  int32_t row_begin = 0;
  int32_t num_rows = 0;
  int32_t start = 0;         // position of the first row
  int32_t window_floor = 0;  // window keys of smaller positions are not visible
  uint8_t* state = nullptr;  // the sequence's state slot: window rings, compressor rings
  const int32_t* block_table = nullptr;
};

struct Step {
  int32_t num_rows = 0;
  int32_t num_sequences = 0;
  const SequenceRows* sequences = nullptr;  // [num_sequences]
  const int32_t* positions = nullptr;       // [num_rows]
  const int32_t* row_sequence = nullptr;    // [num_rows], index into sequences
};

// A complete group of `ratio` tokens whose last token is a row of the step: one new compressed entry.
struct NewGroup {
  int32_t last_row = 0;  // row of its last token
  int32_t sequence = 0;  // index into Step::sequences
  int32_t position = 0;  // of its first token
  int32_t block = 0;     // block id and entry inside the block where the keys go
  int32_t entry = 0;
};

// Records of cached keys (model.md 9.1 of the specification).
enum class KeyFormat {
  kFloat,    // float32 values: arithmetic without rounding
  kMxFp8,    // n e4m3 bytes, then n/32 ue8m0 scales
  kFp4E4m3,  // n/2 bytes of e2m1 pairs, then n/16 e4m3 scales
  kFp4Pow2,  // index keys: n/2 bytes of e2m1 pairs; the n/32 ue8m0 scales lie behind the data of the whole block
};

inline int64_t KeyDataBytes(KeyFormat format, int64_t n) {
  switch (format) {
    case KeyFormat::kFloat: return 4 * n;
    case KeyFormat::kMxFp8: return n;
    case KeyFormat::kFp4E4m3: return n / 2;
    case KeyFormat::kFp4Pow2: return n / 2;
  }
  return 0;
}
inline int64_t KeyScaleBytes(KeyFormat format, int64_t n) {
  switch (format) {
    case KeyFormat::kFloat: return 0;
    case KeyFormat::kMxFp8: return n / 32;
    case KeyFormat::kFp4E4m3: return n / 16;
    case KeyFormat::kFp4Pow2: return n / 32;
  }
  return 0;
}
inline int64_t KeyRecordBytes(KeyFormat format, int64_t n) { return KeyDataBytes(format, n) + KeyScaleBytes(format, n); }

// The compressed keys of one source layer inside the block pool. Entry e of block b: main record at
// pool + b * block_stride + main_offset + e * KeyRecordBytes(main_format, head_dim); index data at ... + index_offset +
// e * data bytes, index scales behind all data of the block.
struct KeyCache {
  uint8_t* pool = nullptr;
  int64_t block_stride = 0;
  int32_t entries_per_block = 0;  // 128 / ratio
  int32_t ratio = 1;
  int32_t head_dim = 0;
  int32_t index_dim = 0;
  int64_t main_offset = 0;
  int64_t index_offset = 0;
  KeyFormat main_format = KeyFormat::kFloat;
  KeyFormat index_format = KeyFormat::kFloat;
};

// A window ring inside a state slot: record of position p at state + offset + (p mod rows) * KeyRecordBytes(format, dim).
struct WindowRing {
  int64_t offset = 0;
  int32_t rows = 0;
  int32_t window = 0;  // keys visible to a query, itself included
  KeyFormat format = KeyFormat::kFloat;
};

// What a greedy choice needs of a row of logits.
struct RowBest {
  float max = 0;      // of the values that are not masked
  int32_t id = 0;     // the lowest with that value
  float sum_exp = 0;  // sum of exp((x - max) * inverse_temperature), bit by bit that of sampling/row_ops.h
  int32_t unused = 0;
};

}  // namespace deepinfer::device
