// SPDX-License-Identifier: Apache-2.0
//
// Packing, preparation of inputs and the driver that cuts a product into tiles.
//
// Packed layout, one for all instruction sets. A tile is 32 output rows; inside it, K ascends in groups of 32 and each group
// in steps of 128 bytes that hold all 32 rows: 8 inputs (FP4), 4 (FP8), 2 (BF16) or 1 (F32). Dword r of a step belongs to
// row r. Its two 16-bit halves are the two inputs of a pair (k, k + 1), k in the low half:
//   FP4   byte 0 = k0 | k4 << 4, byte 1 = k2 | k6 << 4, byte 2 = k1 | k5 << 4, byte 3 = k3 | k7 << 4
//   FP8   bytes k0, k2, k1, k3
//   BF16  words k0, k1
// so a shift of 16-bit words by 0, 8 (and 4, 12) brings pair after pair to the low bits of both halves, where a word lookup
// or a few shifts decode it in place: no unpacking, one row per dword all along (docs/internals/kernels.md).
#include "backends/cpu/kernels/matmul.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "backends/cpu/kernels/matmul_tile.h"
#include "core/check.h"
#include "core/cpu_features.h"
#include "core/dtypes.h"
#include "core/integers.h"

namespace deepinfer::cpu {
namespace {

// About 5 KiB ahead of the weight stream: measured best on the machines of docs/benchmarks.
int64_t g_prefetch_bytes = 5120;
// Bytes of weights per item when there are tiles enough: short items end a thread's stream, and prefetching with it.
int64_t g_item_bytes = 256 * 1024;

int64_t GroupScaleBytes(WeightFormat format) {
  switch (format) {
    case WeightFormat::kFp8Tile32:
      return static_cast<int64_t>(sizeof(float));
    case WeightFormat::kFp4Row32:
      return kTileRows;
    default:
      return 0;
  }
}

// Byte of a row's dword that holds input k of FP4 (its low or high nibble) and FP8.
constexpr int64_t PackedByte(int64_t k) { return (k % 4) / 2 + (k & 1) * 2; }

// A row's dword of a step from the four bytes of its inputs as they are stored.
uint32_t PackFp4(uint32_t x) {  // (k0 k1) (k2 k3) (k4 k5) (k6 k7), low nibble first
  const uint32_t low = x & 0xffffu, high = x >> 16;
  return (low & 0x0f0fu) | ((high & 0x0f0fu) << 4) | ((low >> 4) & 0x0f0fu) << 16 | (high & 0xf0f0u) << 16;
}
uint32_t PackFp8(uint32_t x) { return (x & 0xff0000ffu) | (x & 0xff00u) << 8 | (x >> 8 & 0xff00u); }
uint32_t PackWide(uint32_t x) { return x; }

static_assert(std::endian::native == std::endian::little);

// steps[s * 32 + r] := pack(dword s of row r) for the whole dwords of the rows, sixteen steps at a time so that both sides stay
// in the first-level cache.
template <typename Pack>
void PackDwords(const uint8_t* rows, int64_t row_bytes, int num_rows, uint8_t* steps, Pack pack) {
  constexpr int64_t kBlock = 16;
  const int64_t num_steps = row_bytes / 4;
  for (int64_t first = 0; first < num_steps; first += kBlock) {
    const int64_t count = std::min(kBlock, num_steps - first);
    uint8_t* const out = steps + first * kTileRows * 4;
    for (int r = 0; r < num_rows; ++r) {
      const uint8_t* const in = rows + r * row_bytes + first * 4;
      for (int64_t s = 0; s < count; ++s) {
        uint32_t x;
        std::memcpy(&x, in + s * 4, 4);
        x = pack(x);
        std::memcpy(out + (s * kTileRows + r) * 4, &x, 4);
      }
    }
  }
}

// Packs rows [row0, row0 + rows) of `source` into one tile.
void PackTile(const MatrixSource& source, int64_t row0, int rows, int64_t num_groups, uint8_t* weights, uint8_t* scales) {
  const int64_t cols = source.cols, scale_cols = CeilDiv(cols, kGroupK);
  const auto* data = static_cast<const uint8_t*>(source.data);
  switch (source.format) {
    case WeightFormat::kFp4Row32: {
      data += row0 * (cols / 2);
      PackDwords(data, cols / 2, rows, weights, PackFp4);
      for (int r = 0; r < rows; ++r) {
        const uint8_t* const in = data + r * (cols / 2);
        for (int64_t k = cols / 8 * 8; k < cols; ++k) {
          const int code = (k & 1) ? in[k / 2] >> 4 : in[k / 2] & 15;
          uint8_t& out = weights[(k / 8) * 128 + r * 4 + PackedByte(k)];
          out = static_cast<uint8_t>(out | (k % 8 < 4 ? code : code << 4));
        }
        for (int64_t g = 0; g < scale_cols; ++g) scales[g * kTileRows + r] = source.scale[(row0 + r) * scale_cols + g];
      }
      break;
    }
    case WeightFormat::kFp8Tile32: {
      data += row0 * cols;
      PackDwords(data, cols, rows, weights, PackFp8);
      for (int r = 0; r < rows; ++r)
        for (int64_t k = cols / 4 * 4; k < cols; ++k) weights[(k / 4) * 128 + r * 4 + PackedByte(k)] = data[r * cols + k];
      auto* out = reinterpret_cast<float*>(scales);
      for (int64_t g = 0; g < num_groups; ++g) out[g] = E8M0ToFloat(source.scale[(row0 / kTileRows) * scale_cols + g]);
      break;
    }
    case WeightFormat::kBf16: {
      data += row0 * cols * 2;
      PackDwords(data, cols * 2, rows, weights, PackWide);
      if (cols & 1) {
        for (int r = 0; r < rows; ++r) std::memcpy(weights + cols / 2 * 128 + r * 4, data + (r + 1) * cols * 2 - 2, 2);
      }
      break;
    }
    case WeightFormat::kF32:
      PackDwords(data + row0 * cols * 4, cols * 4, rows, weights, PackWide);
      break;
  }
}

}  // namespace

void SetPrefetchBytes(int64_t bytes) { g_prefetch_bytes = bytes; }
void SetItemBytes(int64_t bytes) { g_item_bytes = bytes; }

TileFn SelectTileFn(const PackedMatrix& w, const PreparedActivations& x) {
  const WeightFormat format = w.format();
  const MatMulKernels* kernels = &kMatMulScalar;
#if defined(__x86_64__)
  const CpuIsa isa = ActiveCpuIsa();
  if (format == WeightFormat::kFp4Row32 && x.has_integers()) {
    if (isa == CpuIsa::kAmx && w.suits_tiles()) return TileFp4Amx;
    return isa >= CpuIsa::kAvx512 ? TileFp4IntegerAvx512 : TileFp4IntegerAvx2;
  }
  if (isa == CpuIsa::kAmx && x.has_pairs() && w.suits_tiles() && format != WeightFormat::kFp4Row32) {
    return format == WeightFormat::kBf16 ? TileBf16Amx : TileFp8Amx;
  }
  if (isa >= CpuIsa::kAvx512 && (x.has_pairs() || format == WeightFormat::kF32)) {
    kernels = &kMatMulAvx512;
  } else if (isa >= CpuIsa::kAvx2) {
    kernels = &kMatMulAvx2;
  }
#elif defined(__aarch64__)
  const CpuIsa isa = ActiveCpuIsa();
  if (isa == CpuIsa::kNeonBf16 && x.has_pairs() && format != WeightFormat::kF32) {
    kernels = &kMatMulNeonBf16;
  } else if (isa >= CpuIsa::kNeon) {
    kernels = &kMatMulNeon;
  }
#else
  (void)x;
#endif
  switch (format) {
    case WeightFormat::kFp8Tile32:
      return kernels->fp8;
    case WeightFormat::kFp4Row32:
      return kernels->fp4;
    case WeightFormat::kBf16:
      return kernels->bf16;
    case WeightFormat::kF32:
      return kernels->f32;
  }
  return kernels->f32;
}

int64_t PackedGroupBytes(WeightFormat format) {
  switch (format) {
    case WeightFormat::kFp8Tile32:
      return 1024;
    case WeightFormat::kFp4Row32:
      return 512;
    case WeightFormat::kBf16:
      return 2048;
    case WeightFormat::kF32:
      return 4096;
  }
  return 0;
}

namespace {

// Whether the scales of a matrix, if any, can be multiplied into its weights exactly (matmul_amx.cc).
bool HasOrdinaryScales(const MatrixSource& source) {
  if (source.scale == nullptr) return true;
  const int64_t scale_rows = source.format == WeightFormat::kFp4Row32 ? source.rows : CeilDiv(source.rows, kTileRows);
  const int64_t count = scale_rows * CeilDiv(source.cols, kGroupK);
  return std::all_of(source.scale, source.scale + count,
                     [](uint8_t s) { return s >= 127 - kMaxScaleExponent && s <= 127 + kMaxScaleExponent; });
}

}  // namespace

void PackedMatrix::SetShape(std::span<const MatrixSource> sources, bool interleave) {
  DI_CHECK(!sources.empty()) << "nothing to pack";
  const MatrixSource& first = sources[0];
  format_ = first.format;
  cols_ = first.cols;
  num_groups_ = CeilDiv(first.cols, kGroupK);
  tile_bytes_ = num_groups_ * PackedGroupBytes(first.format);
  tile_scale_bytes_ = CeilDiv(num_groups_ * GroupScaleBytes(first.format), 64) * 64;
  interleaved_ = interleave;
  suits_tiles_ = first.format == WeightFormat::kBf16;  // FP8 and FP4: when the scales are known
  DI_CHECK(!interleave || (sources.size() == 2 && sources[0].rows == sources[1].rows)) << "two equal halves expected";
  for (const MatrixSource& source : sources) {
    DI_CHECK(source.format == first.format && source.cols == first.cols) << "stacked matrices differ";
    DI_CHECK(source.format != WeightFormat::kFp4Row32 || source.cols % 2 == 0) << "cols " << source.cols;
    for (int64_t row = 0; row < source.rows; row += kTileRows)
      tiles_.push_back({rows_ + row, static_cast<int32_t>(std::min<int64_t>(kTileRows, source.rows - row))});
    rows_ += source.rows;
  }
  if (!interleave) return;
  const size_t half = tiles_.size() / 2;
  std::vector<Tile> tiles(tiles_.size());
  for (size_t i = 0; i < half; ++i) {
    tiles[2 * i] = tiles_[i];
    tiles[2 * i + 1] = tiles_[half + i];
  }
  tiles_ = std::move(tiles);
}

int64_t PackedMatrix::StoredBytes(std::span<const MatrixSource> sources) {
  PackedMatrix shape;
  shape.SetShape(sources, false);
  return shape.bytes();
}

PackedMatrix PackedMatrix::Pack(std::span<const MatrixSource> sources, ThreadPool* pool, bool interleave) {
  PackedMatrix packed;
  packed.SetShape(sources, interleave);
  packed.owned_weights_.AllocateLasting(packed.num_tiles() * packed.tile_bytes_);
  packed.owned_scales_.AllocateLasting(packed.num_tiles() * packed.tile_scale_bytes_);
  packed.weights_ = packed.owned_weights_.data();
  packed.scales_ = packed.owned_scales_.data();
  packed.Fill(sources, pool);
  return packed;
}

PackedMatrix PackedMatrix::Place(std::span<const MatrixSource> sources, uint8_t* memory, bool interleave) {
  PackedMatrix placed;
  placed.SetShape(sources, interleave);
  placed.weights_ = memory;
  placed.scales_ = memory + placed.num_tiles() * placed.tile_bytes_;
  return placed;
}

void PackedMatrix::Adopt() {
  if (format_ == WeightFormat::kFp8Tile32) {
    const auto is_ordinary = [](float s) { return s >= std::ldexp(1.0f, -kMaxScaleExponent) && s <= std::ldexp(1.0f, kMaxScaleExponent); };
    suits_tiles_ = true;
    for (int64_t i = 0; i < num_tiles() && suits_tiles_; ++i) {
      const auto* scales = reinterpret_cast<const float*>(tile_scales(i));
      suits_tiles_ = std::all_of(scales, scales + num_groups_, is_ordinary);
    }
  } else if (format_ == WeightFormat::kFp4Row32) {
    uint8_t low = 127, high = 127;
    for (int64_t i = 0; i < num_tiles(); ++i) {
      for (int64_t g = 0; g < num_groups_; ++g) {
        const uint8_t* scales = tile_scales(i) + g * kTileRows;
        for (int r = 0; r < tile(i).num_rows; ++r) {
          low = std::min(low, scales[r]);
          high = std::max(high, scales[r]);
        }
      }
    }
    suits_tiles_ = low >= 127 - kMaxScaleExponent && high <= 127 + kMaxScaleExponent;
  }
}

void PackedMatrix::Fill(std::span<const MatrixSource> sources, ThreadPool* pool) {
  if (format_ == WeightFormat::kFp8Tile32 || format_ == WeightFormat::kFp4Row32)
    suits_tiles_ = std::all_of(sources.begin(), sources.end(), HasOrdinaryScales);
  const auto pack_one = [&](int64_t i, int) {
    int64_t row = tile(i).first_row;
    size_t s = 0;
    while (row >= sources[s].rows) row -= sources[s++].rows;
    if (tile(i).num_rows < kTileRows || cols_ % kGroupK != 0) {  // what pads must be zero
      std::memset(weights_ + i * tile_bytes_, 0, static_cast<size_t>(tile_bytes_));
      if (tile_scale_bytes_ > 0) std::memset(scales_ + i * tile_scale_bytes_, 0, static_cast<size_t>(tile_scale_bytes_));
    }
    PackTile(sources[s], row, tile(i).num_rows, num_groups_, weights_ + i * tile_bytes_, scales_ + i * tile_scale_bytes_);
  };
  if (pool != nullptr) {
    pool->ParallelFor(num_tiles(), pack_one);
  } else {
    for (int64_t i = 0; i < num_tiles(); ++i) pack_one(i, 0);
  }
}

int64_t PackedMatrix::TileOfRow(int64_t row) const {
  if (row == rows_) return num_tiles();
  const auto it = std::find_if(tiles_.begin(), tiles_.end(), [row](const Tile& t) { return t.first_row == row; });
  DI_CHECK(it != tiles_.end()) << "row " << row << " does not begin a tile";
  return it - tiles_.begin();
}

float PackedMatrix::At(int64_t row, int64_t col) const {
  for (int64_t i = 0; i < num_tiles(); ++i) {
    const Tile& t = tile(i);
    if (row < t.first_row || row >= t.first_row + t.num_rows) continue;
    const int64_t r = row - t.first_row;
    const int64_t group = col / kGroupK;
    const int64_t k = col % kGroupK;
    const uint8_t* g = tile_weights(i) + group * PackedGroupBytes(format_);
    switch (format_) {
      case WeightFormat::kFp4Row32: {
        const uint8_t byte = g[(k / 8) * 128 + r * 4 + PackedByte(k)];
        return E2M1ToFloat(static_cast<uint8_t>(k % 8 < 4 ? byte & 15 : byte >> 4)) *
               E8M0ToFloat(tile_scales(i)[group * kTileRows + r]);
      }
      case WeightFormat::kFp8Tile32:
        return E4M3ToFloat(g[(k / 4) * 128 + r * 4 + PackedByte(k)]) *
               reinterpret_cast<const float*>(tile_scales(i))[group];
      case WeightFormat::kBf16:
        return Bf16ToFloat(reinterpret_cast<const uint16_t*>(g)[(k / 2) * 64 + r * 2 + (k & 1)]);
      case WeightFormat::kF32:
        return reinterpret_cast<const float*>(g)[k * kTileRows + r];
    }
  }
  DI_CHECK(false) << "row " << row << " of " << rows_;
  return 0.0f;
}

void PreparedActivations::Resize(int64_t num_rows, int64_t cols, ActivationForm form) {
  num_rows_ = num_rows;
  cols_ = cols;
  num_groups_ = CeilDiv(cols, kGroupK);
  form_ = form;
  const CpuIsa isa = ActiveCpuIsa();
  uses_avx512_ = isa == CpuIsa::kAvx512 || isa == CpuIsa::kAmx;
  has_own_quantiser_ = isa >= CpuIsa::kAvx2;
  has_pairs_ = is_bf16() && (uses_avx512_ || isa == CpuIsa::kNeonBf16);
  const int64_t elements = num_groups_ * num_rows_ * kGroupK;
  values_.EnsureCapacity(elements * static_cast<int64_t>(sizeof(float)));
  // Tile kernels read whole blocks of sixteen rows; what lies behind the last row is not used.
  if (has_pairs_) pairs_.EnsureCapacity(elements * 2 + 16 * kGroupK * 2);
  has_integers_ = form_ == ActivationForm::kFp8 && (uses_avx512_ || isa == CpuIsa::kAvx2);
  has_high_pairs_ = false;
  if (has_integers_) {
    const int64_t blocks = num_groups_ * num_rows_;
    static_assert(sizeof(IntegerBlock) == sizeof(ByteDigits));
    integers_.EnsureCapacity(blocks * static_cast<int64_t>(sizeof(IntegerBlock)));
    integer_info_.EnsureCapacity(blocks * static_cast<int64_t>(sizeof(IntegerBlockInfo)));
    has_high_pairs_ = isa == CpuIsa::kAmx;
    if (has_high_pairs_) {
      high_pairs_.EnsureCapacity(elements * 2 + 16 * kGroupK * 2);
      low_flags_.EnsureCapacity(blocks);
    }
  }
}

namespace {

// 32 bf16 values, kept as floats, to pairs.
void StorePairs(const float* x, uint32_t* pairs) {
  for (int i = 0; i < kGroupK / 2; ++i) {
    pairs[i] = (std::bit_cast<uint32_t>(x[2 * i]) >> 16) | (std::bit_cast<uint32_t>(x[2 * i + 1]) & 0xffff0000u);
  }
}

}  // namespace

void PreparedActivations::StoreGroup(int64_t row, int64_t group, const float* x) {
  const int64_t slot = group * num_rows_ + row;
  float* out = reinterpret_cast<float*>(values_.data()) + slot * kGroupK;
  if (form_ == ActivationForm::kFp8 && has_own_quantiser_) {
#if defined(__x86_64__)
    auto* block = reinterpret_cast<IntegerBlock*>(integers_.data()) + slot;
    auto* info = reinterpret_cast<IntegerBlockInfo*>(integer_info_.data()) + slot;
    if (uses_avx512_) {
      IntegerBlock words;
      QuantizeFp8GroupAvx2(x, out, &words, info);
      SplitDigitsAvx512(words, reinterpret_cast<ByteDigits*>(block));
      if (has_high_pairs_) {
        low_flags_.data()[slot] = info->has_low != 0;
        float high[kGroupK];  // a unit of high is 2 in units of high * (2 w)
        for (int i = 0; i < kGroupK; ++i) high[i] = static_cast<float>(words.high[i]) * (info->scale * 2.0f);
        StorePairs(high, reinterpret_cast<uint32_t*>(high_pairs_.data()) + slot * (kGroupK / 2));
      }
    } else {
      QuantizeFp8GroupAvx2(x, out, block, info);
    }
#elif defined(__aarch64__)
    QuantizeFp8GroupNeon(x, out);
#endif
  } else if (form_ == ActivationForm::kFp8) {
    float amax = 1e-4f;
    for (int i = 0; i < kGroupK; ++i) amax = std::max(amax, std::fabs(x[i]));
    const int e = CeilLog2(amax * (1.0f / 448.0f));
    const float scale = std::bit_cast<float>(static_cast<uint32_t>(e + 127) << 23);
    const float inverse = std::bit_cast<float>(static_cast<uint32_t>(127 - e) << 23);
    float q[kGroupK];  // the e4m3 values
    for (int i = 0; i < kGroupK; ++i) {
      // Round to three mantissa bits (or to the subnormal step 2^-9): adding 2^(exponent + 20) leaves exactly those bits.
      const uint32_t bits = std::bit_cast<uint32_t>(x[i] * inverse);
      const float magnitude = std::min(std::bit_cast<float>(bits & 0x7fffffffu), 448.0f);
      const uint32_t exponent = std::max(std::bit_cast<uint32_t>(magnitude), 0x3c800000u) & 0x7f800000u;
      const float anchor = std::bit_cast<float>(exponent + (20u << 23));
      const float rounded = (magnitude + anchor) - anchor;
      q[i] = std::bit_cast<float>(std::bit_cast<uint32_t>(rounded) | (bits & 0x80000000u));
      out[i] = q[i] * scale;
    }
  } else {
    for (int i = 0; i < kGroupK; ++i) out[i] = x[i];
  }
  if (has_pairs_) StorePairs(out, reinterpret_cast<uint32_t*>(pairs_.data()) + slot * (kGroupK / 2));
}

void PreparedActivations::Prepare(ThreadPool& pool, const float* x, int64_t num_rows, int64_t cols, int64_t ldx,
                                  ActivationForm form) {
  Resize(num_rows, cols, form);
  if (num_rows == 1 && form != ActivationForm::kFp8 && !has_pairs_ && cols % kGroupK == 0) {
    std::memcpy(values_.data(), x, static_cast<size_t>(cols) * sizeof(float));  // the layout of one row
    return;
  }
  const auto prepare = [&](int64_t row, int64_t group) {
    const float* in = x + row * ldx + group * kGroupK;
    const int64_t valid = std::min<int64_t>(kGroupK, cols - group * kGroupK);
    if (valid == kGroupK) return StoreGroup(row, group, in);
    float padded[kGroupK] = {};
    std::copy(in, in + valid, padded);
    StoreGroup(row, group, padded);
  };
  // Rows inside groups: the writes are sequential. A decode row is not worth waking anyone.
  constexpr int64_t kGroupsPerItem = 4;
  const auto prepare_item = [&](int64_t item, int) {
    const int64_t begin = item * kGroupsPerItem;
    const int64_t end = std::min(begin + kGroupsPerItem, num_groups_);
    for (int64_t row = 0; row < num_rows_; ++row) {
      for (int64_t group = begin; group < end; ++group) prepare(row, group);
    }
  };
  const int64_t items = CeilDiv(num_groups_, kGroupsPerItem);
  if (num_rows * num_groups_ <= 512) {
    for (int64_t item = 0; item < items; ++item) prepare_item(item, 0);
  } else {
    pool.ParallelFor(items, prepare_item);
  }
}

void RunPackedTile(TileFn fn, const PackedMatrix& w, int64_t tile_idx, const PreparedActivations& x, int64_t first_group,
                   const int32_t* row_idx, int num_m, float* out) {
  TileTask task;
  task.weights = w.tile_weights(tile_idx);
  task.scales = w.tile_scales(tile_idx);
  task.num_groups = w.num_groups();
  task.values = x.values() + first_group * x.num_rows() * kGroupK;
  task.pairs = x.has_pairs() ? x.pairs() + first_group * x.num_rows() * (kGroupK / 2) : nullptr;
  const int64_t first_block = first_group * x.num_rows();
  task.integers = x.integers() != nullptr ? x.integers() + first_block : nullptr;
  task.digits = x.digits() != nullptr ? x.digits() + first_block : nullptr;
  task.integer_info = x.has_integers() ? x.integer_info() + first_block : nullptr;
  task.high_pairs = x.high_pairs() != nullptr ? x.high_pairs() + first_block * (kGroupK / 2) : nullptr;
  task.low_flags = x.low_flags() != nullptr ? x.low_flags() + first_block : nullptr;
  task.group_rows = x.num_rows();
  task.row_idx = row_idx;
  task.num_m = num_m;
  task.out = out;
  task.prefetch_bytes = g_prefetch_bytes;
  fn(task);
}

void RoundToBf16InPlace(float* x, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    const uint32_t bits = std::bit_cast<uint32_t>(x[i]);
    const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) & 0xffff0000u;
    const uint32_t nan = (bits | 0x00400000u) & 0xffff0000u;
    x[i] = std::bit_cast<float>((bits & 0x7fffffffu) > 0x7f800000u ? nan : rounded);
  }
}

namespace {

struct Product {
  const PreparedActivations* x;
  const PackedMatrix* w;
  TileFn fn;
  float* y;
  int64_t ldy;
  Rounding rounding;
};

// One tile times inputs [m0, m0 + num_m).
void RunTile(const Product& p, int64_t tile_idx, int64_t first_group, int64_t m0, int num_m, int64_t y_row_offset) {
  alignas(64) float out[kMaxTileM * kTileRows];
  int32_t row_idx[kMaxTileM];
  for (int m = 0; m < kMaxTileM; ++m) row_idx[m] = static_cast<int32_t>(m0) + m;
  RunPackedTile(p.fn, *p.w, tile_idx, *p.x, first_group, row_idx, num_m, out);
  const PackedMatrix::Tile& tile = p.w->tile(tile_idx);
  if (p.rounding == Rounding::kBf16) RoundToBf16InPlace(out, int64_t{num_m} * kTileRows);
  for (int m = 0; m < num_m; ++m) {
    float* y = p.y + (m0 + m) * p.ldy + (tile.first_row - y_row_offset);
    const float* in = out + m * kTileRows;
    for (int r = 0; r < tile.num_rows; ++r) y[r] = in[r];
  }
}

}  // namespace

void MatMul(ThreadPool& pool, const PreparedActivations& x, const PackedMatrix& w, int64_t first_row, int64_t num_rows,
            float* y, int64_t ldy, Rounding rounding, int64_t first_group) {
  DI_CHECK(x.num_groups() >= first_group + w.num_groups()) << x.cols() << " inputs for " << w.cols() << " columns";
  const int64_t t = x.num_rows();
  if (t == 0 || num_rows == 0) return;
  const Product product{&x, &w, SelectTileFn(w, x), y, ldy, rounding};
  const int64_t tile_begin = w.TileOfRow(first_row);
  const int64_t tile_end = w.TileOfRow(first_row + num_rows);
  const int64_t tile_bytes = w.num_groups() * PackedGroupBytes(w.format());
  // Few inputs: several tiles per item so that an item is worth its overhead, yet every thread gets a few.
  int64_t tiles_per_item = 1;
  if (t <= 8) {
    const int64_t spread = CeilDiv(tile_end - tile_begin, int64_t{pool.num_threads()} * 4);
    tiles_per_item = std::clamp<int64_t>(g_item_bytes / tile_bytes, 1, std::max<int64_t>(spread, 1));
  }
  const int64_t tile_items = CeilDiv(tile_end - tile_begin, tiles_per_item);
  const int64_t m_items = CeilDiv(t, kMaxTileM);
  pool.ParallelFor(tile_items * m_items, [&](int64_t item, int) {
    const int64_t m0 = (item / tile_items) * kMaxTileM;
    const int num_m = static_cast<int>(std::min<int64_t>(kMaxTileM, t - m0));
    const int64_t begin = tile_begin + (item % tile_items) * tiles_per_item;
    const int64_t end = std::min(begin + tiles_per_item, tile_end);
    for (int64_t i = begin; i < end; ++i) RunTile(product, i, first_group, m0, num_m, first_row);
  }, tile_items);
}

void GroupedMatMul(ThreadPool& pool, const PreparedActivations& x, const PackedMatrix& w, int64_t groups, float* y,
                   int64_t ldy, Rounding rounding) {
  DI_CHECK(groups > 0 && w.rows() % groups == 0 && (groups == 1 || w.cols() % kGroupK == 0)) << "groups " << groups;
  DI_CHECK(x.num_groups() >= groups * w.num_groups()) << x.cols() << " inputs for " << groups << " x " << w.cols();
  const int64_t t = x.num_rows();
  if (t == 0) return;
  const int64_t rows_per_group = w.rows() / groups;
  const Product product{&x, &w, SelectTileFn(w, x), y, ldy, rounding};
  const int64_t num_tiles = w.num_tiles();
  const int64_t m_items = CeilDiv(t, kMaxTileM);
  pool.ParallelFor(num_tiles * m_items, [&](int64_t item, int) {
    const int64_t m0 = (item / num_tiles) * kMaxTileM;
    const int64_t tile = item % num_tiles;
    const int num_m = static_cast<int>(std::min<int64_t>(kMaxTileM, t - m0));
    RunTile(product, tile, w.tile(tile).first_row / rows_per_group * w.num_groups(), m0, num_m, 0);
  }, num_tiles);
}

}  // namespace deepinfer::cpu
