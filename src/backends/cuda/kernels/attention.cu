// SPDX-License-Identifier: Apache-2.0
//
// A block: two warpgroups multiply, two more, one for even and one for odd splits, fetch keys and decode them into bf16 tiles
// of 64 keys x 512 channels (eight panels of 128 bytes a row, swizzled). Scores: each multiplying warpgroup takes half of the
// channels for all keys; they exchange their halves, so both hold all weights as operands of the value product, of which each
// does its channels. Keys in tiles are scaled by 2^-63: FP4 codes are subnormal bf16 numbers, and a factor of 2^126 together
// with the scale would leave the range.
#include "backends/cuda/kernels/attention.h"

#include <algorithm>

#include "backends/cuda/kernels/launch.h"
#include "backends/cuda/kernels/numbers.cuh"
#include "backends/cuda/kernels/wgmma.cuh"

namespace deepinfer::cuda {
namespace {

constexpr int kHeads = kAttentionHeads, kDim = kAttentionDim, kKeys = kAttentionSplit;
constexpr int kPanels = kDim / 64;
constexpr int kPanelBytes = kKeys * 128;
constexpr int kTileBytes = kPanels * kPanelBytes;
constexpr int kQueryBytes = kHeads * kDim * 2;
constexpr int kExchangeBytes = 2 * kHeads * kKeys * 4;
constexpr int kSmemBytes = kQueryBytes + 2 * kTileBytes + kExchangeBytes + 64;
static_assert(kSmemBytes + 1024 <= 227 * 1024);
constexpr int kThreads = 512;
constexpr int kSplitColumns = 128;  // channels of a block in the split form
constexpr int kColumnParts = kDim / kSplitColumns;
constexpr int kMaxSplitBlocks = 160;  // more rows than fit in so many blocks use the other form
constexpr float kLowest = -1e30f;
constexpr float kLog2e = 1.44269504f;
constexpr float kKeyFactor = 0x1p63f;

enum class Source : int { kNone, kFp8, kFp4, kBf16 };

// The keys of a row.
struct RowKeys {
  const device::SequenceRows* sequence;
  int first_position;  // of the window
  int num_window;
  int num_keys;
};

__device__ __forceinline__ RowKeys KeysOf(const SparseAttentionArgs& a, int row) {
  RowKeys k;
  k.sequence = a.sequences + a.row_sequence[row];
  const device::SequenceRows& s = *k.sequence;
  const int p = a.positions[row];
  k.first_position = max(max(0, s.window_floor), a.is_draft_block ? s.start - a.ring.window : p - a.ring.window + 1);
  const int last = a.is_draft_block ? s.start + s.num_rows - 1 : p;
  k.num_window = max(0, last - k.first_position + 1);
  k.num_keys = k.num_window + (a.has_compressed ? a.num_selected[row] : 0);
  return k;
}

// The selected group of key i of a row, where it is one.
__device__ __forceinline__ int SelectedOf(const SparseAttentionArgs& a, const RowKeys& k, int row, int i, int lane) {
  return lane < 16 && i >= k.num_window && i < k.num_keys ? a.selected[int64_t{row} * a.selected_stride + i - k.num_window] : 0;
}

// Byte offset of 16-byte chunk `chunk` (0..63) of key `row` in a tile.
__device__ __forceinline__ int TileOffset(int row, int chunk) {
  return (chunk >> 3) * kPanelBytes + row * 128 + (((chunk & 7) ^ (row & 7)) << 4);
}

// Eight e2m1 codes, low nibble first, times a scale that is 2^63 above its value.
__device__ __forceinline__ uint4 DecodeNibbles(uint32_t w, uint32_t scale) {
  const uint32_t even = w & 0x0F0F0F0Fu, odd = (w >> 4) & 0x0F0F0F0Fu;
  uint32_t r[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    // Code 2i in byte 1, code 2i + 1 in byte 3 (the other bytes are masked away).
    const uint32_t x = __byte_perm(even, odd, static_cast<uint32_t>((4 + i) << 12 | i << 4));
    r[i] = MulBf16x2(((x << 4) & 0x80008000u) | ((x >> 2) & 0x01C001C0u), scale);
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

// 16 keys of a warp, one a lane.
struct WarpKeys {
  uint64_t address = 0;
  int source = 0;
};

// Where key i of a row lies; `group` as SelectedOf says.
__device__ __forceinline__ WarpKeys Resolve(const SparseAttentionArgs& a, const RowKeys& k, int group, int i, int lane) {
  WarpKeys key;
  if (lane >= 16 || i >= k.num_keys) return key;
  const device::SequenceRows& s = *k.sequence;
  if (i >= k.num_window) {
    const device::KeyCache& c = a.compressed;
    const bool is_fp4 = c.main_format == device::KeyFormat::kFp4E4m3;
    key.source = static_cast<int>(is_fp4 ? Source::kFp4 : Source::kFp8);
    const int block = group / c.entries_per_block;
    key.address = reinterpret_cast<uint64_t>(c.pool) + s.block_table[block] * c.block_stride + c.main_offset +
                  int64_t{group - block * c.entries_per_block} * (is_fp4 ? kDim / 2 + kDim / 16 : kDim + kDim / 32);
    return key;
  }
  const int p = k.first_position + i;
  if (p >= s.start) {
    key.source = static_cast<int>(Source::kBf16);
    key.address = reinterpret_cast<uint64_t>(a.new_keys + int64_t{s.row_begin + p - s.start} * a.ldk);
  } else {
    key.source = static_cast<int>(Source::kFp8);
    key.address = reinterpret_cast<uint64_t>(s.state) + a.ring.offset + int64_t{p % a.ring.rows} * (kDim + kDim / 32);
  }
  return key;
}

constexpr int kRowsAtOnce = 8;

// One warp decodes its 16 keys of a split; a lane has 16 channels of each.
__device__ __forceinline__ void LoadFp4Keys(uint64_t addresses, int first_row, int lane, uint8_t* tile) {
  const bool swapped = lane / 4 & 1;  // lanes of odd panels store their chunks the other way round: no bank conflicts
  tile += (lane >> 2) * kPanelBytes + first_row * 128;
  const uint32_t chunk = (((lane * 2) & 7) ^ swapped) << 4;  // in row 0 of eight
#pragma unroll 1
  for (int first = 0; first < 16; first += kRowsAtOnce) {
    uint2 codes[kRowsAtOnce];
    uint32_t scales[kRowsAtOnce];
#pragma unroll
    for (int j = 0; j < kRowsAtOnce; ++j) {
      const uint64_t from = __shfl_sync(0xffffffffu, addresses, first + j);
      codes[j] = LoadU64(from + lane * 8);
      scales[j] = LoadU8(from + kDim / 2 + lane);
    }
#pragma unroll
    for (int j = 0; j < kRowsAtOnce; ++j) {
      const uint32_t s = Fp4Scale(scales[j]);
      uint8_t* const row = tile + first * 128 + j * 128;
      *reinterpret_cast<uint4*>(row + (chunk ^ (j << 4))) = DecodeNibbles(swapped ? codes[j].y : codes[j].x, s);
      *reinterpret_cast<uint4*>(row + (chunk ^ (j << 4) ^ 16)) = DecodeNibbles(swapped ? codes[j].x : codes[j].y, s);
    }
  }
}

// The same for keys of any source.
__device__ __forceinline__ void LoadMixedKeys(const WarpKeys& k, int first_row, int lane, uint8_t* tile) {
  const bool swapped = lane / 4 & 1;
  const auto store = [&](int r, uint4 low, uint4 high) {
    *reinterpret_cast<uint4*>(tile + TileOffset(r, lane * 2 + swapped)) = swapped ? high : low;
    *reinterpret_cast<uint4*>(tile + TileOffset(r, lane * 2 + !swapped)) = swapped ? low : high;
  };
#pragma unroll 1
  for (int first = 0; first < 16; first += 4) {
    uint4 codes[4];
    uint32_t scale[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const uint64_t from = __shfl_sync(0xffffffffu, k.address, first + j);
      const int kind = __shfl_sync(0xffffffffu, k.source, first + j);
      if (kind == static_cast<int>(Source::kFp8)) {
        codes[j] = LoadU128(from + lane * 16);
        scale[j] = LoadU8(from + kDim + lane / 2);
      } else if (kind == static_cast<int>(Source::kFp4)) {
        const uint2 c = LoadU64(from + lane * 8);
        codes[j].x = c.x, codes[j].y = c.y;
        scale[j] = LoadU8(from + kDim / 2 + lane);
      }
    }
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int r = first_row + first + j;
      const uint64_t from = __shfl_sync(0xffffffffu, k.address, first + j);
      const int kind = __shfl_sync(0xffffffffu, k.source, first + j);
      if (kind == static_cast<int>(Source::kFp8)) {
        const uint32_t s = (scale[j] + 57u) * 0x00800080u;  // 2^120 for the codes, 2^-63 for the tile
        store(r, DecodeBytes(codes[j].x, codes[j].y, s), DecodeBytes(codes[j].z, codes[j].w, s));
      } else if (kind == static_cast<int>(Source::kFp4)) {
        const uint32_t s = Fp4Scale(scale[j]);
        store(r, DecodeNibbles(codes[j].x, s), DecodeNibbles(codes[j].y, s));
      } else if (kind == static_cast<int>(Source::kBf16)) {
        const uint4 low = LoadU128(from + lane * 32), high = LoadU128(from + lane * 32 + 16);
        constexpr uint32_t kDown = 0x20002000u;  // 2^-63
        store(r, make_uint4(MulBf16x2(low.x, kDown), MulBf16x2(low.y, kDown), MulBf16x2(low.z, kDown), MulBf16x2(low.w, kDown)),
              make_uint4(MulBf16x2(high.x, kDown), MulBf16x2(high.y, kDown), MulBf16x2(high.z, kDown), MulBf16x2(high.w, kDown)));
      } else {
        store(r, make_uint4(0, 0, 0, 0), make_uint4(0, 0, 0, 0));
      }
    }
  }
}

__device__ __forceinline__ float Exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// State of the merge of splits for one head.
struct Merged {
  float top, sum;
};
// Factors of the old and the new part.
__device__ __forceinline__ void MergeFactors(Merged& m, float top, float sum, float& old_factor, float& new_factor) {
  const float both = fmaxf(m.top, top);
  old_factor = Exp2(m.top - both);
  new_factor = Exp2(top - both);
  m.sum = __fmaf_rn(sum, new_factor, __fmul_rn(m.sum, old_factor));
  m.top = both;
}
__device__ __forceinline__ float MergeValue(float old_value, float old_factor, float value, float new_factor) {
  return __fmaf_rn(value, new_factor, __fmul_rn(old_value, old_factor));
}
// Maxima are kept in units of log2.
__device__ __forceinline__ float Denominator(const Merged& m, float sink) { return m.sum + Exp2(sink * kLog2e - m.top); }

// Two neighbouring channels of one head, rounded, their rotation undone, stored.
template <bool kIsPlain>
__device__ __forceinline__ void StorePair(const SparseAttentionArgs& a, int row, int64_t at, int column, float x, float y) {
  const bool rounds = kIsPlain || a.out_type != OutputType::kFloat;
  if (rounds) x = RoundBf16(x), y = RoundBf16(y);
  const auto store = [&](void* to) {
    if (kIsPlain || a.out_type == OutputType::kBf16) {
      *reinterpret_cast<uint32_t*>(static_cast<__nv_bfloat16*>(to) + at + column) = PackBf16(x, y);
    } else {
      *reinterpret_cast<float2*>(static_cast<float*>(to) + at + column) = make_float2(x, y);
    }
  };
  if (!kIsPlain && a.unrotated != nullptr) store(a.unrotated);
  if (column >= kDim - a.rope_dim) {
    const int pair = (column - (kDim - a.rope_dim)) / 2;
    const float c = a.rope[int64_t{row} * a.rope_dim + pair], s = a.rope[int64_t{row} * a.rope_dim + a.rope_dim / 2 + pair];
    const float rx = x * c + y * s, ry = y * c - x * s;
    x = rx, y = ry;
    if (rounds) x = RoundBf16(x), y = RoundBf16(y);
  }
  store(a.out);
}

// Partial results of the split form: values [row][split][64][512], then maximum and sum [row][split][64][2].
struct Workspace {
  float* values;
  float* stats;
};

constexpr int kConsumerRegisters = 184, kProducerRegisters = 72;
static_assert(2 * kConsumerRegisters + 2 * kProducerRegisters <= 4 * 128);  // what a block of 512 threads is started with

// kIsPlain: results in bf16, no trace.
template <bool kIsSplit, bool kIsPlain>
__global__ void __launch_bounds__(kThreads, 1) AttentionKernel(const __grid_constant__ SparseAttentionArgs a, Workspace ws, int max_splits) {
  extern __shared__ uint8_t raw_smem[];
  uint8_t* const smem = raw_smem + ((1024 - (SmemAddr(raw_smem) & 1023)) & 1023);
  uint8_t* const tiles = smem + kQueryBytes;
  float* const exchange = reinterpret_cast<float*>(tiles + 2 * kTileBytes);
  uint64_t* const full = reinterpret_cast<uint64_t*>(tiles + 2 * kTileBytes + kExchangeBytes);
  uint64_t* const empty = full + 2;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int group = threadIdx.x / 128;
  if (threadIdx.x == 0) {
    for (int i = 0; i < 2; ++i) {
      BarrierInit(full + i, 128);
      BarrierInit(empty + i, 8);
    }
    BarrierInitFence();
  }
  __syncthreads();
  DependencyLaunch();
  DependencyWait();

  // Work: rows (all splits), or one split of one row.
  const int first_row = kIsSplit ? blockIdx.y : blockIdx.x;
  const int row_step = kIsSplit ? a.rows : gridDim.x;
  const int only_split = kIsSplit ? blockIdx.x / kColumnParts : 0;
  const int part = kIsSplit ? blockIdx.x % kColumnParts : 0;

  if (group >= 2) {
    LowerRegisters<kProducerRegisters>();
    const int mine = group - 2;  // this warpgroup's tile; it takes every other split of the block
    const int own = (warp % 4) * 16;
    uint8_t* const tile = tiles + mine * kTileBytes;
    uint32_t count = 0;  // splits of both warpgroups
    for (int row = first_row; row < a.rows; row += row_step) {
      const RowKeys keys = KeysOf(a, row);
      const int splits = (keys.num_keys + kKeys - 1) / kKeys;
      const int last_split = kIsSplit ? min(splits, only_split + 1) : splits;
      int split = only_split;
      if ((count & 1) != mine) ++split;
      // Addresses are looked up two steps ahead: first the selected group, then its block and a hint to the L2 cache.
      WarpKeys now, ahead;
      int group_ahead = 0;
      if (split < last_split) now = Resolve(a, keys, SelectedOf(a, keys, row, split * kKeys + own + lane, lane), split * kKeys + own + lane, lane);
      if (split + 2 < last_split) {
        const int i = (split + 2) * kKeys + own + lane;
        ahead = Resolve(a, keys, SelectedOf(a, keys, row, i, lane), i, lane);
      }
      for (; split < last_split; split += 2) {
        const uint32_t turn = (count + split - only_split) / 2;
        if (split + 4 < last_split) group_ahead = SelectedOf(a, keys, row, (split + 4) * kKeys + own + lane, lane);
        if (lane < 16 && split + 2 < last_split && ahead.source == static_cast<int>(Source::kFp4)) {
          PrefetchL2(ahead.address);
          PrefetchL2(ahead.address + 128);
          PrefetchL2(ahead.address + 256);
        }
        const bool is_fp4 = __ballot_sync(0xffffffffu, now.source == static_cast<int>(Source::kFp4)) == 0xffffu;
        if (turn > 0) BarrierWait(empty + mine, (turn & 1) ^ 1);
        if (is_fp4) {
          LoadFp4Keys(now.address, own, lane, tile);
        } else {
          LoadMixedKeys(now, own, lane, tile);
        }
        AsyncProxyFence();
        BarrierArrive(full + mine);
        now = ahead;
        if (split + 4 < last_split) ahead = Resolve(a, keys, group_ahead, (split + 4) * kKeys + own + lane, lane);
      }
      count += max(0, last_split - only_split);
    }
    return;
  }

  RaiseRegisters<kConsumerRegisters>();
  constexpr int kChunks = kIsSplit ? 1 : kDim / 128;  // of 64 channels, for each warpgroup
  const int g = lane / 4, t = lane % 4;
  const int head = (warp % 4) * 16 + g;
  const float factor = rsqrtf(static_cast<float>(kDim)) * kLog2e * kKeyFactor;
  uint32_t count = 0;
  // 64 heads in panels like the keys.
  const auto load_query = [&](int row) {
    const __nv_bfloat16* from = a.query + row * a.ldq;
#pragma unroll 8
    for (int i = threadIdx.x; i < kHeads * kDim / 8; i += 256)
      AsyncCopy16(SmemAddr(smem) + TileOffset(i / 64, i % 64), from + i * 8, true);
    AsyncCommit();
  };
  RowKeys ahead = {};
  if (first_row < a.rows) ahead = KeysOf(a, first_row);
  for (int row = first_row; row < a.rows; row += row_step) {
    if (row == first_row) load_query(row);
    const RowKeys keys = ahead;
    const int splits = (keys.num_keys + kKeys - 1) / kKeys;
    const int last_split = kIsSplit ? min(splits, only_split + 1) : splits;
    const int next_row = row + row_step;
    AsyncWait<0>();
    AsyncProxyFence();
    NamedSync(1, 256);
    if (next_row < a.rows) {
      ahead = KeysOf(a, next_row);
      if (only_split >= last_split) load_query(next_row);
    }
    float values[kChunks][32];
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
#pragma unroll
      for (int i = 0; i < 32; ++i) values[c][i] = 0.0f;
    }
    Merged merged[2] = {{kLowest, 0.0f}, {kLowest, 0.0f}};

    for (int s = only_split; s < last_split; ++s, ++count) {
      const int buffer = count & 1;
      const uint32_t tile = SmemAddr(tiles + buffer * kTileBytes);
      BarrierWait(full + buffer, count / 2 & 1);

      // Scores over this warpgroup's half of the channels.
      float z[32];
      WarpgroupArrive();
#pragma unroll
      for (int i = 0; i < 16; ++i) {
        const uint32_t at = (group * 4 + i / 4) * kPanelBytes + (i % 4) * 32;
        Wgmma<64>::SS(z, SmemDescriptor(SmemAddr(smem) + at, 1024, Swizzle::k128), SmemDescriptor(tile + at, 1024, Swizzle::k128),
                      i > 0);
      }
      WarpgroupCommit();
      WarpgroupWait<0>();
      FenceRegisters(z);
      float4* mine = reinterpret_cast<float4*>(exchange) + group * (kHeads * kKeys / 4) + threadIdx.x % 128;
      const float4* theirs = reinterpret_cast<const float4*>(exchange) + (1 - group) * (kHeads * kKeys / 4) + threadIdx.x % 128;
      if (count > 0) NamedSync(2 + group, 256);  // the other warpgroup has read what was here
#pragma unroll
      for (int i = 0; i < 8; ++i) mine[i * 128] = make_float4(z[4 * i], z[4 * i + 1], z[4 * i + 2], z[4 * i + 3]);
      NamedSync(1, 256);
      // Both warpgroups are done with this query.
      if (s + 1 == last_split && next_row < a.rows) load_query(next_row);
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const float4 o = theirs[i * 128];
        z[4 * i] += o.x, z[4 * i + 1] += o.y, z[4 * i + 2] += o.z, z[4 * i + 3] += o.w;
      }
      NamedArrive(3 - group, 256);

      // Weights relative to the split's maximum; rows g and g + 8.
      float top[2] = {kLowest, kLowest}, sum[2] = {0.0f, 0.0f};
      const int present = keys.num_keys - s * kKeys;
#pragma unroll
      for (int i = 0; i < 32; ++i) {
        const int key = (i / 4) * 8 + 2 * t + (i & 1);
        z[i] = key < present ? z[i] * factor : -INFINITY;
        top[(i / 2) & 1] = fmaxf(top[(i / 2) & 1], z[i]);
      }
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        top[r] = fmaxf(top[r], __shfl_xor_sync(0xffffffffu, top[r], 1));
        top[r] = fmaxf(top[r], __shfl_xor_sync(0xffffffffu, top[r], 2));
      }
      uint32_t p[4][4];
#pragma unroll
      for (int i = 0; i < 32; ++i) {
        z[i] = Exp2(z[i] - top[(i / 2) & 1]);
        sum[(i / 2) & 1] += z[i];
      }
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        sum[r] += __shfl_xor_sync(0xffffffffu, sum[r], 1);
        sum[r] += __shfl_xor_sync(0xffffffffu, sum[r], 2);
      }
      // Accumulator layout to operand layout: columns 8j + 2t of 16 keys.
#pragma unroll
      for (int k = 0; k < 4; ++k) {
#pragma unroll
        for (int i = 0; i < 4; ++i) p[k][i] = PackBf16(z[8 * k + 2 * i], z[8 * k + 2 * i + 1]);
      }
      float old_factor[2], new_factor[2];
      if constexpr (!kIsSplit) {
#pragma unroll
        for (int r = 0; r < 2; ++r) MergeFactors(merged[r], top[r], sum[r], old_factor[r], new_factor[r]);
      }

      FenceRegisters(p);
#pragma unroll
      for (int c = 0; c < kChunks; ++c) {
        const int panel = kIsSplit ? part * 2 + group : group * 4 + c;
        float acc[32];
        WarpgroupArrive();
#pragma unroll
        for (int k = 0; k < 4; ++k)
          Wgmma<64>::RS<true>(acc, p[k], SmemDescriptor(tile + panel * kPanelBytes + k * 2048, 1024, Swizzle::k128), k > 0);
        WarpgroupCommit();
        WarpgroupWait<0>();
        FenceRegisters(acc);
#pragma unroll
        for (int i = 0; i < 32; ++i) {
          const int r = (i / 2) & 1;
          values[c][i] = kIsSplit ? acc[i] : MergeValue(values[c][i], old_factor[r], acc[i], new_factor[r]);
        }
      }
      __syncwarp();
      if (lane == 0) BarrierArrive(empty + buffer);

      if constexpr (kIsSplit) {
        const int64_t at = (int64_t{row} * max_splits + s) * kHeads;
#pragma unroll
        for (int i = 0; i < 32; i += 2) {
          const int column = (part * 2 + group) * 64 + (i / 4) * 8 + 2 * t;
          *reinterpret_cast<float2*>(ws.values + (at + head + 8 * ((i / 2) & 1)) * kDim + column) =
              make_float2(values[0][i], values[0][i + 1]);
        }
        if (part == 0 && group == 0 && t == 0) {
          for (int r = 0; r < 2; ++r) *reinterpret_cast<float2*>(ws.stats + (at + head + 8 * r) * 2) = make_float2(top[r], sum[r]);
        }
      }
    }
    if constexpr (!kIsSplit) {
      float inverse[2];
#pragma unroll
      for (int r = 0; r < 2; ++r) inverse[r] = kKeyFactor * __frcp_rn(Denominator(merged[r], a.sink[head + 8 * r]));
      if constexpr (kIsPlain) {
        float cosine[8], sine[8];
        if (group == 1) {
#pragma unroll
          for (int j = 0; j < 8; ++j) {
            cosine[j] = a.rope[int64_t{row} * 64 + 4 * j + t];
            sine[j] = a.rope[int64_t{row} * 64 + 32 + 4 * j + t];
          }
        }
        __nv_bfloat16* out = static_cast<__nv_bfloat16*>(a.out) + row * a.ldo + head * kDim + group * 256 + 2 * t;
        asm volatile("" : "+l"(out));  // addresses are made here, not kept from before
#pragma unroll
        for (int c = 0; c < kChunks; ++c) {
#pragma unroll
          for (int i = 0; i < 32; i += 2) {
            const int r = (i / 2) & 1, j = i / 4;
            float x = values[c][i] * inverse[r], y = values[c][i + 1] * inverse[r];
            if (c == kChunks - 1 && group == 1) {
              x = RoundBf16(x), y = RoundBf16(y);
              const float rx = x * cosine[j] + y * sine[j], ry = y * cosine[j] - x * sine[j];
              x = rx, y = ry;
            }
            *reinterpret_cast<uint32_t*>(out + c * 64 + j * 8 + r * 8 * kDim) = PackBf16(x, y);
          }
        }
      } else {
#pragma unroll
        for (int c = 0; c < kChunks; ++c) {
#pragma unroll
          for (int i = 0; i < 32; i += 2) {
            const int r = (i / 2) & 1;
            const int column = (group * 4 + c) * 64 + (i / 4) * 8 + 2 * t;
            StorePair<false>(a, row, row * a.ldo + int64_t{head + 8 * r} * kDim, column, values[c][i] * inverse[r],
                             values[c][i + 1] * inverse[r]);
          }
        }
      }
    }
  }
}

// One block per row and head, two channels a thread.
template <bool kIsPlain>
__global__ void MergeKernel(const __grid_constant__ SparseAttentionArgs a, Workspace ws, int max_splits) {
  const int row = blockIdx.y, head = blockIdx.x, column = threadIdx.x * 2;
  DependencyLaunch();
  DependencyWait();
  const RowKeys keys = KeysOf(a, row);
  const int splits = (keys.num_keys + kKeys - 1) / kKeys;
  Merged merged = {kLowest, 0.0f};
  float x = 0, y = 0;
#pragma unroll 4
  for (int s = 0; s < splits; ++s) {
    const int64_t at = (int64_t{row} * max_splits + s) * kHeads + head;
    const float2 stats = *reinterpret_cast<const float2*>(ws.stats + at * 2);
    const float2 v = *reinterpret_cast<const float2*>(ws.values + at * kDim + column);
    float old_factor, new_factor;
    MergeFactors(merged, stats.x, stats.y, old_factor, new_factor);
    x = MergeValue(x, old_factor, v.x, new_factor);
    y = MergeValue(y, old_factor, v.y, new_factor);
  }
  const float inverse = kKeyFactor * __frcp_rn(Denominator(merged, a.sink[head]));
  StorePair<kIsPlain>(a, row, row * a.ldo + int64_t{head} * kDim, column, x * inverse, y * inverse);
}

}  // namespace

int64_t AttentionWorkspaceBytes(int max_keys) {
  const int64_t splits = (max_keys + kKeys - 1) / kKeys;
  const int64_t rows = std::max<int64_t>(1, kMaxSplitBlocks / (splits * kColumnParts));
  return rows * splits * kHeads * (kDim + 2) * 4;
}

cudaError_t LaunchSparseAttention(const SparseAttentionArgs& args, cudaStream_t stream) {
  if (args.ring.format != device::KeyFormat::kMxFp8 || args.rows < 0 || args.rope_dim > kDim) return cudaErrorInvalidValue;
  if (args.has_compressed && args.compressed.main_format != device::KeyFormat::kFp4E4m3 &&
      args.compressed.main_format != device::KeyFormat::kMxFp8)
    return cudaErrorInvalidValue;
  if (args.rows == 0) return cudaSuccess;
  const int splits = std::max(1, (args.max_keys + kKeys - 1) / kKeys);
  const bool is_plain = args.out_type == OutputType::kBf16 && args.unrotated == nullptr && args.rope_dim == 64;
  if (args.workspace != nullptr && args.rows * splits * kColumnParts <= std::max(kMaxSplitBlocks, splits * kColumnParts)) {
    Workspace ws;
    ws.values = static_cast<float*>(args.workspace);
    ws.stats = ws.values + int64_t{args.rows} * splits * kHeads * kDim;
    const cudaError_t error = Launch(AttentionKernel<true, true>, dim3(splits * kColumnParts, args.rows), dim3(kThreads),
                                     kSmemBytes + 1024, stream, args.dependent, args, ws, splits);
    if (error != cudaSuccess) return error;
    return Launch(is_plain ? MergeKernel<true> : MergeKernel<false>, dim3(kHeads, args.rows), dim3(kDim / 2), 0, stream,
                  args.dependent, args, ws, splits);
  }
  const int blocks = std::min(NumMultiprocessors(), args.rows);
  return Launch(is_plain ? AttentionKernel<false, true> : AttentionKernel<false, false>, dim3(blocks), dim3(kThreads),
                kSmemBytes + 1024, stream, args.dependent, args, Workspace{}, splits);
}

}  // namespace deepinfer::cuda
