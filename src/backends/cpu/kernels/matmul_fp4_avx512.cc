// SPDX-License-Identifier: Apache-2.0
//
// FP4 weights times quantised inputs for AVX-512 with VNNI, in integers: codes become words 2 w by one lookup, a dot product
// of words adds two products per row and instruction. On processors where the bf16 dot product is slow this is four times
// its rate. The rule and the bits are those of matmul_avx2.cc: exact sums per group, low digits in sums of their own.
#include <immintrin.h>

#include "backends/cpu/kernels/matmul_kernels.h"

namespace deepinfer::cpu {
namespace {

#define DI_INLINE __attribute__((always_inline)) inline

constexpr int64_t kGroupBytes = 512;

// 2 w of each code; the lookup reads five bits of each word, so both halves are the same.
DI_INLINE __m512i WeightTable() {
  return _mm512_broadcast_i64x4(_mm256_setr_epi16(0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12));
}

// Sixteen rows of one step: four vectors of pairs, ascending.
DI_INLINE void Decode(__m512i table, const uint8_t* p, __m512i* w) {
  const __m512i v = _mm512_load_si512(p);
  w[0] = _mm512_permutexvar_epi16(v, table);
  w[1] = _mm512_permutexvar_epi16(_mm512_srli_epi16(v, 8), table);
  w[2] = _mm512_permutexvar_epi16(_mm512_srli_epi16(v, 4), table);
  w[3] = _mm512_permutexvar_epi16(_mm512_srli_epi16(v, 12), table);
}

DI_INLINE __m512i BroadcastPair(const int16_t* pair) {
  int word;
  __builtin_memcpy(&word, pair, sizeof(word));
  return _mm512_set1_epi32(word);
}

// Scale of rows [16v, 16v + 16) in a group.
DI_INLINE __m512 GroupScale(const uint8_t* scales, int64_t group, int v) {
  const __m128i bytes = _mm_load_si128(reinterpret_cast<const __m128i*>(scales + group * 32 + v * 16));
  const __m512i bits = _mm512_slli_epi32(_mm512_cvtepu8_epi32(bytes), 23);
  return _mm512_castsi512_ps(_mm512_max_epu32(bits, _mm512_set1_epi32(0x00400000)));  // byte 0 is 2^-127
}

DI_INLINE __m512 AddGroup(__m512i sum, __m512 scale, __m512 total) {
  return _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum), scale, total);
}

DI_INLINE void AddTo(float* out, __m512 x) { _mm512_store_ps(out, _mm512_add_ps(_mm512_load_ps(out), x)); }

// Adds the products of one input's low digits with 32 rows to their own sums. Rare, and out of the way of the registers.
__attribute__((noinline)) void AddLowDigits(const uint8_t* group_weights, const uint8_t* scales, int64_t group,
                                            const IntegerBlock& block, const IntegerBlockInfo& info, float* low_sums) {
  const __m512i table = WeightTable();
  const __m512 x_scale = _mm512_set1_ps(info.scale * 0.125f);
  for (int v = 0; v < 2; ++v) {
    __m512i sum = _mm512_setzero_si512();
    for (int step = 0; step < 4; ++step) {
      __m512i w[4];
      Decode(table, group_weights + step * 128 + v * 64, w);
      for (int i = 0; i < 4; ++i) sum = _mm512_dpwssd_epi32(sum, w[i], BroadcastPair(block.low + step * 8 + i * 2));
    }
    float* low = low_sums + v * 16;
    _mm512_store_ps(low, AddGroup(sum, _mm512_mul_ps(GroupScale(scales, group, v), x_scale), _mm512_load_ps(low)));
  }
}

// M inputs straight from the stream. With one or two, each sum has two parts, so that the latency of the dot product hides.
template <int M>
void FewInputs(const TileTask& task) {
  constexpr int kParts = M <= 2 ? 2 : 1;
  const __m512i table = WeightTable();
  const int64_t prefetch = task.prefetch_bytes;
  __m512 total[M][2];
  alignas(64) float low_sums[M * 32];
  bool has_low[M] = {};
#pragma GCC unroll 8
  for (int m = 0; m < M; ++m) {
    total[m][0] = total[m][1] = _mm512_setzero_ps();
    _mm512_store_ps(low_sums + m * 32, _mm512_setzero_ps());
    _mm512_store_ps(low_sums + m * 32 + 16, _mm512_setzero_ps());
  }
  const uint8_t* group_weights = task.weights;
  for (int64_t group = 0; group < task.num_groups; ++group) {
    const IntegerBlock* blocks = task.integers + group * task.group_rows;
    const IntegerBlockInfo* infos = task.integer_info + group * task.group_rows;
    const int16_t* x[M];
    __m512i sum[M][2][kParts];
#pragma GCC unroll 8
    for (int m = 0; m < M; ++m) {
      x[m] = blocks[task.row_idx[m]].high;
      for (int v = 0; v < 2; ++v)
        for (int part = 0; part < kParts; ++part) sum[m][v][part] = _mm512_setzero_si512();
    }
#pragma GCC unroll 4
    for (int step = 0; step < 4; ++step) {
      const uint8_t* p = group_weights + step * 128;
      _mm_prefetch(reinterpret_cast<const char*>(p + prefetch), _MM_HINT_T0);
      _mm_prefetch(reinterpret_cast<const char*>(p + prefetch + 64), _MM_HINT_T0);
#pragma GCC unroll 2
      for (int v = 0; v < 2; ++v) {
        __m512i w[4];
        Decode(table, p + v * 64, w);
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i) {
#pragma GCC unroll 8
          for (int m = 0; m < M; ++m) {
            sum[m][v][i % kParts] = _mm512_dpwssd_epi32(sum[m][v][i % kParts], w[i], BroadcastPair(x[m] + step * 8 + i * 2));
          }
        }
      }
    }
    const __m512 scale[2] = {GroupScale(task.scales, group, 0), GroupScale(task.scales, group, 1)};
#pragma GCC unroll 8
    for (int m = 0; m < M; ++m) {
      const IntegerBlockInfo& info = infos[task.row_idx[m]];
      const __m512 x_scale = _mm512_set1_ps(info.scale);
#pragma GCC unroll 2
      for (int v = 0; v < 2; ++v) {
        __m512i all = sum[m][v][0];
        if constexpr (kParts == 2) all = _mm512_add_epi32(all, sum[m][v][1]);
        total[m][v] = AddGroup(all, _mm512_mul_ps(scale[v], x_scale), total[m][v]);
      }
      if (__builtin_expect(info.has_low, 0)) {
        has_low[m] = true;
        AddLowDigits(group_weights, task.scales, group, blocks[task.row_idx[m]], info, low_sums + m * 32);
      }
    }
    group_weights += kGroupBytes;
  }
#pragma GCC unroll 8
  for (int m = 0; m < M; ++m) {
    float* out = task.out + m * 32;
    _mm512_store_ps(out, total[m][0]);
    _mm512_store_ps(out + 16, total[m][1]);
    if (has_low[m]) {
      AddTo(out, _mm512_load_ps(low_sums + m * 32));
      AddTo(out + 16, _mm512_load_ps(low_sums + m * 32 + 16));
    }
  }
}

// kM inputs x 32 rows over one decoded group (panel [16 pairs][32 rows] of words 2 w).
template <int kM>
DI_INLINE void PanelBlock(const uint32_t* panel, const IntegerBlock* const* blocks, const IntegerBlockInfo* const* infos,
                          __m512 scale0, __m512 scale1, float* out) {
  __m512i a[kM][2];
#pragma GCC unroll 12
  for (int m = 0; m < kM; ++m) a[m][0] = a[m][1] = _mm512_setzero_si512();
#pragma GCC unroll 2
  for (int i = 0; i < 16; ++i) {
    const __m512i w0 = _mm512_load_si512(panel + i * 32);
    const __m512i w1 = _mm512_load_si512(panel + i * 32 + 16);
#pragma GCC unroll 12
    for (int m = 0; m < kM; ++m) {
      const __m512i x = BroadcastPair(blocks[m]->high + 2 * i);
      a[m][0] = _mm512_dpwssd_epi32(a[m][0], w0, x);
      a[m][1] = _mm512_dpwssd_epi32(a[m][1], w1, x);
    }
  }
#pragma GCC unroll 12
  for (int m = 0; m < kM; ++m) {
    float* total = out + m * 32;
    const __m512 x_scale = _mm512_set1_ps(infos[m]->scale);
    _mm512_store_ps(total, AddGroup(a[m][0], _mm512_mul_ps(scale0, x_scale), _mm512_load_ps(total)));
    _mm512_store_ps(total + 16, AddGroup(a[m][1], _mm512_mul_ps(scale1, x_scale), _mm512_load_ps(total + 16)));
  }
}

void ManyInputs(const TileTask& task) {
  const __m512i table = WeightTable();
  alignas(64) uint32_t panel[16 * 32];
  alignas(64) float low_sums[kMaxTileM * 32];
  bool has_low[kMaxTileM] = {};
  float* out = task.out;
  for (int i = 0; i < task.num_m * 2; ++i) _mm512_store_ps(low_sums + i * 16, _mm512_setzero_ps());
  for (int i = 0; i < task.num_m * 2; ++i) _mm512_store_ps(out + i * 16, _mm512_setzero_ps());
  for (int64_t group = 0; group < task.num_groups; ++group) {
    const uint8_t* group_weights = task.weights + group * kGroupBytes;
#pragma GCC unroll 4
    for (int step = 0; step < 4; ++step) {
      const uint8_t* p = group_weights + step * 128;
      _mm_prefetch(reinterpret_cast<const char*>(p + task.prefetch_bytes), _MM_HINT_T0);
      _mm_prefetch(reinterpret_cast<const char*>(p + task.prefetch_bytes + 64), _MM_HINT_T0);
#pragma GCC unroll 2
      for (int v = 0; v < 2; ++v) {
        __m512i w[4];
        Decode(table, p + v * 64, w);
        for (int i = 0; i < 4; ++i) _mm512_store_si512(panel + (step * 4 + i) * 32 + v * 16, w[i]);
      }
    }
    const IntegerBlock* all_blocks = task.integers + group * task.group_rows;
    const IntegerBlockInfo* all_infos = task.integer_info + group * task.group_rows;
    const __m512 s0 = GroupScale(task.scales, group, 0);
    const __m512 s1 = GroupScale(task.scales, group, 1);
    for (int m = 0; m < task.num_m;) {
      const int left = task.num_m - m;
      const int count = left >= 12 ? 12 : left >= 8 ? 8 : left >= 4 ? 4 : left >= 2 ? 2 : 1;
      const IntegerBlock* blocks[12];
      const IntegerBlockInfo* infos[12];
      for (int i = 0; i < count; ++i) {
        blocks[i] = all_blocks + task.row_idx[m + i];
        infos[i] = all_infos + task.row_idx[m + i];
      }
      float* o = out + m * 32;
      switch (count) {
        case 12:
          PanelBlock<12>(panel, blocks, infos, s0, s1, o);
          break;
        case 8:
          PanelBlock<8>(panel, blocks, infos, s0, s1, o);
          break;
        case 4:
          PanelBlock<4>(panel, blocks, infos, s0, s1, o);
          break;
        case 2:
          PanelBlock<2>(panel, blocks, infos, s0, s1, o);
          break;
        default:
          PanelBlock<1>(panel, blocks, infos, s0, s1, o);
          break;
      }
      for (int i = 0; i < count; ++i) {
        if (__builtin_expect(infos[i]->has_low, 0)) {
          has_low[m + i] = true;
          AddLowDigits(group_weights, task.scales, group, *blocks[i], *infos[i], low_sums + (m + i) * 32);
        }
      }
      m += count;
    }
  }
  for (int m = 0; m < task.num_m; ++m) {
    if (!has_low[m]) continue;
    AddTo(out + m * 32, _mm512_load_ps(low_sums + m * 32));
    AddTo(out + m * 32 + 16, _mm512_load_ps(low_sums + m * 32 + 16));
  }
}

}  // namespace

void TileFp4IntegerAvx512(const TileTask& task) {
  switch (task.num_m) {
    case 1:
      return FewInputs<1>(task);
    case 2:
      return FewInputs<2>(task);
    case 3:
      return FewInputs<3>(task);
    case 4:
      return FewInputs<4>(task);
    default:
      return ManyInputs(task);
  }
}

}  // namespace deepinfer::cpu
