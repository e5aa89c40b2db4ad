// SPDX-License-Identifier: Apache-2.0
//
// Matrix products of the CPU backend: y[t][r] = sum_k x[t][k] * W[r][k], W kept in its stored width (FP4, FP8, BF16, F32).
// Pack a weight once (PackedMatrix), prepare an input once (PreparedActivations), multiply as often as needed (MatMul).
//
// Order of sums, the same in every kernel of an instruction set: K is cut into groups of 32; a group's partial sum is made
// of the group's products alone, times the weight's scale of the group it is added to the output's accumulator, groups
// ascending. So an output does not depend on how many rows, tiles or threads take part. Partial sums:
//   scalar, AVX2             products in ascending k from 0
//   AVX-512, bf16 inputs     bf16 dot products of ascending pairs from 0
//   AMX, FP8 or BF16 weights even k and odd k in sums of their own, ascending from 0, then added (the tile instruction)
//   FP4, quantised inputs    exact, as integers, on AVX2, AVX-512 and AMX with the same bits: inputs are cut into high and low
//                            digits, each kind with an accumulator over the groups, added at the end if any digit was low
// Weights and quantised inputs are exact; kernels_matmul_test holds the rule, docs/internals/kernels.md tells the reasons.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "backends/cpu/kernels/aligned_buffer.h"
#include "backends/cpu/kernels/matmul_kernels.h"
#include "core/threads.h"

namespace deepinfer::cpu {

inline constexpr int kTileRows = 32;  // output rows of one packed tile
inline constexpr int kGroupK = 32;    // inputs per group: the block of every number format

enum class WeightFormat {
  kFp8Tile32,  // e4m3 bytes [rows, cols]; e8m0 scale [ceil(rows/32), ceil(cols/32)]
  kFp4Row32,   // packed e2m1 [rows, cols/2], low nibble first; e8m0 scale [rows, cols/32]
  kBf16,       // [rows, cols]
  kF32,        // [rows, cols]
};

// Bytes that one group of 32 inputs of one tile takes in packed form, without scales.
int64_t PackedGroupBytes(WeightFormat format);

// A matrix as stored in the checkpoint, row-major. Borrowed during packing only.
struct MatrixSource {
  WeightFormat format = WeightFormat::kF32;
  int64_t rows = 0;
  int64_t cols = 0;
  const void* data = nullptr;
  const uint8_t* scale = nullptr;  // null for kBf16 and kF32
};

// One or more matrices of equal format and width stacked along rows, in tiles of 32 output rows in the order the kernels
// read them. Each source starts a new tile; rows and columns are padded with zeros. Movable; owns its memory (huge pages
// when large) or lies in borrowed memory.
class PackedMatrix {
 public:
  PackedMatrix() = default;

  // interleave: with two sources of equal height, tiles alternate between them (gate and up of an expert in one stream);
  // output rows still count the first source's rows first. pool may be null.
  static PackedMatrix Pack(std::span<const MatrixSource> sources, ThreadPool* pool = nullptr, bool interleave = false);

  // The same matrix without content, to lie in `memory` (StoredBytes(), aligned to 64, outlives the matrix). Fill() packs
  // sources of the same shapes into it; content that was packed before is read into it and taken with Adopt(). The sources'
  // data may be null here.
  static PackedMatrix Place(std::span<const MatrixSource> sources, uint8_t* memory, bool interleave = false);
  static int64_t StoredBytes(std::span<const MatrixSource> sources);
  void Fill(std::span<const MatrixSource> sources, ThreadPool* pool);
  void Adopt();  // packed content has come into the memory

  WeightFormat format() const { return format_; }
  int64_t rows() const { return rows_; }
  int64_t cols() const { return cols_; }
  int64_t num_groups() const { return num_groups_; }  // ceil(cols / 32)
  int64_t num_tiles() const { return static_cast<int64_t>(tiles_.size()); }
  int64_t bytes() const { return num_tiles() * (tile_bytes_ + tile_scale_bytes_); }
  bool empty() const { return tiles_.empty(); }

  struct Tile {
    int64_t first_row;  // output row of the tile's row 0
    int32_t num_rows;   // 1..32
  };
  const Tile& tile(int64_t i) const { return tiles_[static_cast<size_t>(i)]; }
  const uint8_t* tile_weights(int64_t i) const { return weights_ + i * tile_bytes_; }
  // kFp4Row32: [num_groups][32] e8m0 bytes. kFp8Tile32: [num_groups] float. Null otherwise.
  const uint8_t* tile_scales(int64_t i) const { return scales_ + i * tile_scale_bytes_; }
  // Whether the tile kernels of level amx take this matrix: not float32, scales within 2^-60 to 2^60.
  bool suits_tiles() const { return suits_tiles_; }
  // First tile of output row `row`, which must be the first row of a tile (or rows(), giving num_tiles()).
  int64_t TileOfRow(int64_t row) const;

  // One weight as float (scale included): slow, for tests and the scalar kernels.
  float At(int64_t row, int64_t col) const;

 private:
  void SetShape(std::span<const MatrixSource> sources, bool interleave);

  WeightFormat format_ = WeightFormat::kF32;
  int64_t rows_ = 0;
  int64_t cols_ = 0;
  int64_t num_groups_ = 0;
  int64_t tile_bytes_ = 0;
  int64_t tile_scale_bytes_ = 0;
  bool interleaved_ = false;
  bool suits_tiles_ = false;
  std::vector<Tile> tiles_;
  uint8_t* weights_ = nullptr;
  uint8_t* scales_ = nullptr;
  AlignedBuffer owned_weights_;  // empty when the memory is borrowed
  AlignedBuffer owned_scales_;
};

enum class ActivationForm {
  kFloat32,  // any float32 value (plain arithmetic, and unquantised products of fp32 arithmetic)
  kBf16,     // the caller promises that every value is a bf16 value
  kFp8,      // fake-quantised here to e4m3 with a power-of-two scale per 32 (model.md 3 step 1); also bf16 values then
};

// An input of several products, in the layout the kernels read: [ceil(K/32)][T][32]. Reusable; grows its buffer on demand.
class PreparedActivations {
 public:
  // x [num_rows, cols] float32, row stride ldx.
  void Prepare(ThreadPool& pool, const float* x, int64_t num_rows, int64_t cols, int64_t ldx, ActivationForm form);

  // For kernels that produce their output in this layout: sizes the buffers; the caller fills them with StoreGroup().
  void Resize(int64_t num_rows, int64_t cols, ActivationForm form);
  // Sets values [32] of one row and one group, quantising as the form says. Thread-safe for different (row, group).
  void StoreGroup(int64_t row, int64_t group, const float* values);

  int64_t num_rows() const { return num_rows_; }
  int64_t cols() const { return cols_; }
  int64_t num_groups() const { return num_groups_; }
  ActivationForm form() const { return form_; }
  bool is_bf16() const { return form_ != ActivationForm::kFloat32; }
  // float32 values, always present: [num_groups][num_rows][32].
  const float* values() const { return reinterpret_cast<const float*>(values_.data()); }
  // bf16 pairs (element 2i low), present when is_bf16() and has_pairs(): [num_groups][num_rows][16].
  const uint32_t* pairs() const { return reinterpret_cast<const uint32_t*>(pairs_.data()); }
  bool has_pairs() const { return has_pairs_; }
  // Integer blocks for FP4 weights, present on x86 levels above scalar when quantised: [num_groups][num_rows]. One of the
  // two pointers is not null.
  bool has_integers() const { return has_integers_; }
  const IntegerBlock* integers() const {
    return has_integers_ && !uses_avx512_ ? reinterpret_cast<const IntegerBlock*>(integers_.data()) : nullptr;
  }
  const ByteDigits* digits() const {
    return has_integers_ && uses_avx512_ ? reinterpret_cast<const ByteDigits*>(integers_.data()) : nullptr;
  }
  const IntegerBlockInfo* integer_info() const {
    return reinterpret_cast<const IntegerBlockInfo*>(integer_info_.data());
  }
  // For FP4 weights on AMX: the high digits alone as pairs, and which blocks have low ones. Null elsewhere.
  const uint32_t* high_pairs() const { return has_high_pairs_ ? reinterpret_cast<const uint32_t*>(high_pairs_.data()) : nullptr; }
  const uint8_t* low_flags() const { return has_high_pairs_ ? low_flags_.data() : nullptr; }
  // The (quantised) value of one element.
  float At(int64_t row, int64_t col) const { return values()[((col / kGroupK) * num_rows_ + row) * kGroupK + col % kGroupK]; }

 private:
  int64_t num_rows_ = 0;
  int64_t cols_ = 0;
  int64_t num_groups_ = 0;
  ActivationForm form_ = ActivationForm::kFloat32;
  bool has_pairs_ = false;
  bool has_integers_ = false;
  bool has_own_quantiser_ = false;  // of the instruction set
  bool uses_avx512_ = false;
  bool has_high_pairs_ = false;
  AlignedBuffer values_;
  AlignedBuffer pairs_;
  AlignedBuffer integers_;
  AlignedBuffer integer_info_;
  AlignedBuffer high_pairs_;
  AlignedBuffer low_flags_;
};

enum class Rounding { kNone, kBf16 };

// y[t * ldy + (r - first_row)] = x[t] . W[r] for rows first_row <= r < first_row + num_rows, which must begin and end at
// tile borders of the packed matrix (a source's border always is one). x must have at least as many columns as W;
// first_group skips input groups (a slice of a wider input that starts at a multiple of 32).
void MatMul(ThreadPool& pool, const PreparedActivations& x, const PackedMatrix& w, int64_t first_row, int64_t num_rows,
            float* y, int64_t ldy, Rounding rounding, int64_t first_group = 0);

// All rows.
inline void MatMul(ThreadPool& pool, const PreparedActivations& x, const PackedMatrix& w, float* y, int64_t ldy,
                   Rounding rounding) {
  MatMul(pool, x, w, 0, w.rows(), y, ldy, rounding);
}

// wo_a: `groups` sources of equal height; source g multiplies columns [g * W.cols(), (g + 1) * W.cols()) of x (W.cols() a
// multiple of 32). y [T, groups * rows-per-group]. One phase over all groups.
void GroupedMatMul(ThreadPool& pool, const PreparedActivations& x, const PackedMatrix& w, int64_t groups, float* y,
                   int64_t ldy, Rounding rounding);

}  // namespace deepinfer::cpu
