// SPDX-License-Identifier: Apache-2.0
//
// The keys of sparse attention: where those of a row lie, and their way into bf16 tiles in shared
// memory. A split is 64 keys, two halves of 32; half a tile is 32 keys x 512 channels, eight panels
// of 128 bytes a key, swizzled. Keys in tiles are scaled by 2^-63: FP4 codes are subnormal bf16
// numbers, and a factor of 2^126 together with the scale would leave the range.
#pragma once

#include "backends/cuda/kernels/attention.h"
#include "backends/cuda/kernels/ptx.cuh"

namespace deepinfer::cuda {

constexpr int kHeads = kAttentionHeads, kDim = kAttentionDim, kKeys = kAttentionSplit;
constexpr int kPanels = kDim / 64;
constexpr int kHalfKeys = kKeys / 2;
constexpr int kPanelBytes = kHalfKeys * 128;
constexpr int kHalfBytes = kPanels * kPanelBytes;
constexpr int kTileBytes = 2 * kHalfBytes;
constexpr float kKeyFactor = 0x1p63f;

enum class Source : int { kNone, kFp8, kFp4, kBf16 };

// The keys of a row.
struct RowKeys {
  const device::SequenceRows* sequence;
  int first_position;  // of the window
  int num_window;
  int num_keys;

  __device__ int splits() const { return (num_keys + kKeys - 1) / kKeys; }
};

// Metadata only: may run before earlier kernels are done. num_keys does not count the selected keys
// yet.
__device__ __forceinline__ RowKeys WindowOf(const SparseAttentionArgs& a, int row) {
  RowKeys k;
  k.sequence = a.sequences + a.row_sequence[row];
  const device::SequenceRows& s = *k.sequence;
  const int p = a.positions[row];
  k.first_position = max(max(0, s.window_floor),
                         a.is_draft_block ? s.start - a.ring.window : p - a.ring.window + 1);
  const int last = a.is_draft_block ? s.start + s.num_rows - 1 : p;
  k.num_window = max(0, last - k.first_position + 1);
  k.num_keys = k.num_window;
  return k;
}
__device__ __forceinline__ RowKeys KeysOf(const SparseAttentionArgs& a, int row) {
  RowKeys k = WindowOf(a, row);
  if (a.has_compressed) k.num_keys += a.num_selected[row];
  return k;
}

// The number of a row's keys, looked up in two steps without waiting for the loads.
struct KeyCount {
  int sequence = 0, position = 0, selected = 0;
  int start = 0, num_rows = 0, floor = 0;

  __device__ __forceinline__ void Begin(const SparseAttentionArgs& a, int row) {
    sequence = a.row_sequence[row];
    position = a.positions[row];
    if (a.has_compressed) selected = a.num_selected[row];
  }
  __device__ __forceinline__ void Continue(const SparseAttentionArgs& a) {
    const device::SequenceRows& s = a.sequences[sequence];
    start = s.start, num_rows = s.num_rows, floor = s.window_floor;
  }
  __device__ __forceinline__ int Get(const SparseAttentionArgs& a) const {
    const int first =
        max(max(0, floor), a.is_draft_block ? start - a.ring.window : position - a.ring.window + 1);
    const int last = a.is_draft_block ? start + num_rows - 1 : position;
    return max(0, last - first + 1) + selected;
  }
};

// The selected group of key i of a row, where it is one.
__device__ __forceinline__ int SelectedOf(const SparseAttentionArgs& a,
                                          const RowKeys& k,
                                          int row,
                                          int i) {
  const int at = i - k.num_window;
  return a.has_compressed && at >= 0 && at < a.selected_stride
             ? a.selected[int64_t{row} * a.selected_stride + at]
             : 0;
}

struct KeyPlace {
  uint64_t address = 0;
  Source source = Source::kNone;

  __device__ __forceinline__ void Prefetch() const {
    if (source == Source::kNone) return;
    PrefetchL2(address);
    PrefetchL2(address + 128);
    PrefetchL2(address + 256);
    if (source == Source::kFp8) PrefetchL2(address + 384);
  }
};

// Where key i of a row lies; `group` as SelectedOf says.
__device__ __forceinline__ KeyPlace Resolve(const SparseAttentionArgs& a,
                                            const RowKeys& k,
                                            int group,
                                            int i) {
  KeyPlace key;
  if (i >= k.num_keys) return key;
  const device::SequenceRows& s = *k.sequence;
  if (i >= k.num_window) {
    const device::KeyCache& c = a.compressed;
    const bool is_fp4 = c.main_format == device::KeyFormat::kFp4E4m3;
    key.source = is_fp4 ? Source::kFp4 : Source::kFp8;
    const int block = group / c.entries_per_block;
    key.address = reinterpret_cast<uint64_t>(c.pool) + s.block_table[block] * c.block_stride +
                  c.main_offset +
                  int64_t{group - block * c.entries_per_block} *
                      (is_fp4 ? kDim / 2 + kDim / 16 : kDim + kDim / 32);
    return key;
  }
  const int p = k.first_position + i;
  if (p >= s.start) {
    key.source = Source::kBf16;
    key.address =
        reinterpret_cast<uint64_t>(a.new_keys + int64_t{s.row_begin + p - s.start} * a.ldk);
  } else {
    key.source = Source::kFp8;
    key.address = reinterpret_cast<uint64_t>(s.state) + a.ring.offset +
                  int64_t{p % a.ring.rows} * (kDim + kDim / 32);
  }
  return key;
}

// Byte offset of 16-byte chunk `chunk` (0..63) of key `row` in a tile of panels of `rows` rows.
template <int kRows>
__device__ __forceinline__ int TileOffset(int row, int chunk) {
  return (chunk >> 3) * (kRows * 128) + row * 128 + (((chunk & 7) ^ (row & 7)) << 4);
}

// Eight e2m1 codes, low nibble first, times a scale that is 2^63 above its value. A code alone in
// half a word, times 2^12 + 2^6, has its sign and its other bits where bf16 has them.
__device__ __forceinline__ uint4 DecodeNibbles(uint32_t w, uint32_t scale) {
  const uint32_t even = w & 0x0F0F0F0Fu, odd = (w >> 4) & 0x0F0F0F0Fu;
  uint32_t r[4];
#pragma unroll
  for (uint32_t i = 0; i < 4; ++i) {
    // Code 2i in byte 0, code 2i + 1 in byte 2; the other bytes repeat a sign bit that is zero.
    const uint32_t x = Permute(even, odd, i | (8 + i) << 4 | (4 + i) << 8 | (12 + i) << 12);
    r[i] = MulBf16x2((x * 0x1040u) & 0x81C081C0u, scale);
  }
  return make_uint4(r[0], r[1], r[2], r[3]);
}

// Eight e4m3 codes times a scale that is 2^57 above its value.
__device__ __forceinline__ uint4 DecodeBytes(uint32_t low, uint32_t high, uint32_t scale) {
  uint32_t r[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const uint32_t x = __byte_perm(i < 2 ? low : high, 0, (i & 1) ? 0x3424u : 0x1404u);
    r[i] = MulBf16x2((x & 0x80008000u) | ((x >> 4) & 0x07F007F0u), scale);
  }
  return make_uint4(r[0], r[1], r[2], r[3]);
}

// An e4m3 byte as a pair of bf16 values 2^63 above: its bits mean 2^-120 of the value.
__device__ __forceinline__ uint32_t Fp4Scale(uint32_t byte) {
  return MulBf16x2(MulBf16x2(byte * 0x00100010u, 0x7B807B80u), 0x5F005F00u);
}

// What a decoding warp does of half a tile: four keys, 16 channels a lane.
constexpr int kWarpKeys = 4;
constexpr int kFp4Bytes = kDim / 2 + kDim / 16;
constexpr int kFp8Bytes = kDim + kDim / 32;
// What comes by bulk copies at a time, a piece: four FP4 records or two FP8 records.
constexpr int kRawBytes = kWarpKeys * kFp4Bytes;
static_assert(kRawBytes >= 2 * kFp8Bytes);

// Lanes of odd panels store their two chunks the other way round: no bank conflicts.
struct LaneChunks {
  uint8_t* panel;  // at the first row
  uint32_t chunk;  // in row 0 of eight
  bool swapped;

  // first_row: a multiple of four.
  __device__ __forceinline__ LaneChunks(uint8_t* half, int first_row, int lane) {
    swapped = lane / 4 & 1;
    panel = half + (lane >> 2) * kPanelBytes + first_row * 128;
    chunk = ((((lane * 2) & 7) ^ swapped) ^ (first_row & 4)) << 4;
  }
  __device__ __forceinline__ void Store(int j, uint4 low, uint4 high) const {
    uint8_t* const row = panel + j * 128;
    *reinterpret_cast<uint4*>(row + (chunk ^ (j << 4))) = swapped ? high : low;
    *reinterpret_cast<uint4*>(row + (chunk ^ (j << 4) ^ 16)) = swapped ? low : high;
  }
};

// FP4 records from shared memory.
__device__ __forceinline__ void DecodeFp4Keys(const uint8_t* raw, int lane, const LaneChunks& to) {
  // All loads before the first store, which the compiler could not tell apart.
  uint2 codes[kWarpKeys];
  uint32_t scales[kWarpKeys];
#pragma unroll
  for (int j = 0; j < kWarpKeys; ++j) {
    codes[j] = *reinterpret_cast<const uint2*>(raw + j * kFp4Bytes + lane * 8);
    scales[j] = raw[j * kFp4Bytes + kDim / 2 + lane];
  }
#pragma unroll
  for (int j = 0; j < kWarpKeys; ++j) {
    const uint32_t scale = Fp4Scale(scales[j]);
    // The codes change places, not what they decode to.
    uint8_t* const row = to.panel + j * 128;
    *reinterpret_cast<uint4*>(row + (to.chunk ^ (j << 4))) =
        DecodeNibbles(to.swapped ? codes[j].y : codes[j].x, scale);
    *reinterpret_cast<uint4*>(row + (to.chunk ^ (j << 4) ^ 16)) =
        DecodeNibbles(to.swapped ? codes[j].x : codes[j].y, scale);
  }
}

__device__ __forceinline__ uint4 ScaledDown(uint4 v) {
  constexpr uint32_t kDown = 0x20002000u;  // 2^-63
  return make_uint4(
      MulBf16x2(v.x, kDown), MulBf16x2(v.y, kDown), MulBf16x2(v.z, kDown), MulBf16x2(v.w, kDown));
}
// The factor of an FP8 record's codes: 2^120 for the codes, 2^-63 for the tile.
__device__ __forceinline__ uint32_t Fp8Scale(uint32_t byte) {
  return (byte + 57u) * 0x00800080u;
}

// Two FP8 records from shared memory, to rows first and first + 1.
__device__ __forceinline__ void DecodeFp8Keys(const uint8_t* raw,
                                              int lane,
                                              const LaneChunks& to,
                                              int first) {
  uint4 codes[2];
  uint32_t scales[2];
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    codes[j] = *reinterpret_cast<const uint4*>(raw + j * kFp8Bytes + lane * 16);
    scales[j] = raw[j * kFp8Bytes + kDim + lane / 2];
  }
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    const uint32_t s = Fp8Scale(scales[j]);
    to.Store(
        first + j, DecodeBytes(codes[j].x, codes[j].y, s), DecodeBytes(codes[j].z, codes[j].w, s));
  }
}

// kCount keys of any source, from where they lie; lane first_lane + j knows the place of key j,
// which becomes row first + j.
template <int kCount>
__device__ __forceinline__ void DecodeMixedKeys(
    const KeyPlace& place, int first_lane, int lane, const LaneChunks& to, int first) {
  uint4 codes[kCount];
  uint32_t scale[kCount];
#pragma unroll
  for (int j = 0; j < kCount; ++j) {
    const uint64_t from = __shfl_sync(0xffffffffu, place.address, first_lane + j);
    const auto source = static_cast<Source>(
        __shfl_sync(0xffffffffu, static_cast<int>(place.source), first_lane + j));
    if (source == Source::kFp8) {
      codes[j] = LoadU128(from + lane * 16);
      scale[j] = LoadU8(from + kDim + lane / 2);
    } else if (source == Source::kFp4) {
      const uint2 c = LoadU64(from + lane * 8);
      codes[j].x = c.x, codes[j].y = c.y;
      scale[j] = LoadU8(from + kDim / 2 + lane);
    }
  }
#pragma unroll
  for (int j = 0; j < kCount; ++j) {
    const auto source = static_cast<Source>(
        __shfl_sync(0xffffffffu, static_cast<int>(place.source), first_lane + j));
    if (source == Source::kFp8) {
      const uint32_t s = Fp8Scale(scale[j]);
      to.Store(first + j,
               DecodeBytes(codes[j].x, codes[j].y, s),
               DecodeBytes(codes[j].z, codes[j].w, s));
    } else if (source == Source::kFp4) {
      const uint32_t s = Fp4Scale(scale[j]);
      to.Store(first + j, DecodeNibbles(codes[j].x, s), DecodeNibbles(codes[j].y, s));
    } else if (source == Source::kBf16) {
      const uint64_t from = __shfl_sync(0xffffffffu, place.address, first_lane + j);
      const uint4 low = LoadU128(from + lane * 32), high = LoadU128(from + lane * 32 + 16);
      to.Store(first + j, ScaledDown(low), ScaledDown(high));
    } else {
      to.Store(first + j, make_uint4(0, 0, 0, 0), make_uint4(0, 0, 0, 0));
    }
  }
}

}  // namespace deepinfer::cuda
