// SPDX-License-Identifier: Apache-2.0
//
// FP4 weights times quantised inputs for AVX-512 with VNNI, in integers: codes become bytes 2 w + 12 by one lookup, inputs are
// two signed digits of base 256, and a dot product of bytes adds four products per row and instruction: seven instructions
// for 128 weights. The rule and the bits are those of matmul_avx2.cc: exact sums per group, low digits in sums of their own.
#include <immintrin.h>

#include "backends/cpu/kernels/matmul_kernels.h"

namespace deepinfer::cpu {
namespace {

#define DI_INLINE __attribute__((always_inline)) inline

constexpr int64_t kGroupBytes = 512;

// 2 w + 12 of each code; the lookup reads six bits of each byte, so all four quarters are the same.
DI_INLINE __m512i WeightTable() {
  return _mm512_broadcast_i32x4(_mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0));
}

// Sixteen rows of one step: two vectors of four inputs in the order of ByteDigits.
DI_INLINE void Decode(__m512i table, const uint8_t* p, __m512i* w) {
  const __m512i v = _mm512_load_si512(p);
  w[0] = _mm512_permutexvar_epi8(v, table);
  w[1] = _mm512_permutexvar_epi8(_mm512_srli_epi16(v, 4), table);
}

DI_INLINE __m512i BroadcastFour(const int8_t* digits) {
  int word;
  __builtin_memcpy(&word, digits, sizeof(word));
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
                                            const ByteDigits& x, const IntegerBlockInfo& info, float* low_sums) {
  const __m512i table = WeightTable();
  const __m512 x_scale = _mm512_set1_ps(info.scale * 0.125f);
  for (int v = 0; v < 2; ++v) {
    __m512i sum = _mm512_set1_epi32(info.low_bias);
    for (int step = 0; step < 4; ++step) {
      __m512i w[2];
      Decode(table, group_weights + step * 128 + v * 64, w);
      for (int i = 0; i < 2; ++i) sum = _mm512_dpbusd_epi32(sum, w[i], BroadcastFour(x.low + step * 8 + i * 4));
    }
    float* low = low_sums + v * 16;
    _mm512_store_ps(low, AddGroup(sum, _mm512_mul_ps(GroupScale(scales, group, v), x_scale), _mm512_load_ps(low)));
  }
}

// 256 * upper + middle.
DI_INLINE __m512i Combine(__m512i upper, __m512i middle) { return _mm512_add_epi32(_mm512_slli_epi32(upper, 8), middle); }

// M inputs straight from the stream.
template <int M>
void FewInputs(const TileTask& task) {
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
    const ByteDigits* digits = task.digits + group * task.group_rows;
    const IntegerBlockInfo* infos = task.integer_info + group * task.group_rows;
    const ByteDigits* x[M];
    __m512i upper[M][2], middle[M][2];
#pragma GCC unroll 8
    for (int m = 0; m < M; ++m) {
      x[m] = digits + task.row_idx[m];
      upper[m][0] = upper[m][1] = _mm512_setzero_si512();
      middle[m][0] = middle[m][1] = _mm512_set1_epi32(infos[task.row_idx[m]].high_bias);
    }
#pragma GCC unroll 4
    for (int step = 0; step < 4; ++step) {
      const uint8_t* p = group_weights + step * 128;
      _mm_prefetch(reinterpret_cast<const char*>(p + prefetch), _MM_HINT_T0);
      _mm_prefetch(reinterpret_cast<const char*>(p + prefetch + 64), _MM_HINT_T0);
#pragma GCC unroll 2
      for (int v = 0; v < 2; ++v) {
        __m512i w[2];
        Decode(table, p + v * 64, w);
#pragma GCC unroll 2
        for (int i = 0; i < 2; ++i) {
#pragma GCC unroll 8
          for (int m = 0; m < M; ++m) {
            upper[m][v] = _mm512_dpbusd_epi32(upper[m][v], w[i], BroadcastFour(x[m]->upper + step * 8 + i * 4));
            middle[m][v] = _mm512_dpbusd_epi32(middle[m][v], w[i], BroadcastFour(x[m]->middle + step * 8 + i * 4));
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
        total[m][v] = AddGroup(Combine(upper[m][v], middle[m][v]), _mm512_mul_ps(scale[v], x_scale), total[m][v]);
      }
      if (__builtin_expect(info.has_low, 0)) {
        has_low[m] = true;
        AddLowDigits(group_weights, task.scales, group, *x[m], info, low_sums + m * 32);
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

// kM inputs x 32 rows over one decoded group (panel [8][32 rows][4] of bytes 2 w + 12).
template <int kM>
DI_INLINE void PanelBlock(const uint8_t* panel, const ByteDigits* const* x, const IntegerBlockInfo* const* infos,
                          __m512 scale0, __m512 scale1, float* out) {
  __m512i upper[kM][2], middle[kM][2];
#pragma GCC unroll 6
  for (int m = 0; m < kM; ++m) {
    upper[m][0] = upper[m][1] = _mm512_setzero_si512();
    middle[m][0] = middle[m][1] = _mm512_set1_epi32(infos[m]->high_bias);
  }
#pragma GCC unroll 2
  for (int i = 0; i < 8; ++i) {
    const __m512i w0 = _mm512_load_si512(panel + i * 128);
    const __m512i w1 = _mm512_load_si512(panel + i * 128 + 64);
#pragma GCC unroll 6
    for (int m = 0; m < kM; ++m) {
      const __m512i u = BroadcastFour(x[m]->upper + i * 4);
      const __m512i v = BroadcastFour(x[m]->middle + i * 4);
      upper[m][0] = _mm512_dpbusd_epi32(upper[m][0], w0, u);
      upper[m][1] = _mm512_dpbusd_epi32(upper[m][1], w1, u);
      middle[m][0] = _mm512_dpbusd_epi32(middle[m][0], w0, v);
      middle[m][1] = _mm512_dpbusd_epi32(middle[m][1], w1, v);
    }
  }
#pragma GCC unroll 6
  for (int m = 0; m < kM; ++m) {
    float* total = out + m * 32;
    const __m512 x_scale = _mm512_set1_ps(infos[m]->scale);
    const __m512i sum0 = Combine(upper[m][0], middle[m][0]);
    const __m512i sum1 = Combine(upper[m][1], middle[m][1]);
    _mm512_store_ps(total, AddGroup(sum0, _mm512_mul_ps(scale0, x_scale), _mm512_load_ps(total)));
    _mm512_store_ps(total + 16, AddGroup(sum1, _mm512_mul_ps(scale1, x_scale), _mm512_load_ps(total + 16)));
  }
}

void ManyInputs(const TileTask& task) {
  constexpr int kBlock = 6;
  const __m512i table = WeightTable();
  alignas(64) uint8_t panel[8 * 128];
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
        __m512i w[2];
        Decode(table, p + v * 64, w);
        for (int i = 0; i < 2; ++i) _mm512_store_si512(panel + (step * 2 + i) * 128 + v * 64, w[i]);
      }
    }
    const ByteDigits* digits = task.digits + group * task.group_rows;
    const IntegerBlockInfo* all_infos = task.integer_info + group * task.group_rows;
    const __m512 s0 = GroupScale(task.scales, group, 0);
    const __m512 s1 = GroupScale(task.scales, group, 1);
    for (int m = 0; m < task.num_m;) {
      const int count = task.num_m - m < kBlock ? task.num_m - m : kBlock;
      const ByteDigits* x[kBlock];
      const IntegerBlockInfo* infos[kBlock];
      for (int i = 0; i < count; ++i) {
        x[i] = digits + task.row_idx[m + i];
        infos[i] = all_infos + task.row_idx[m + i];
      }
      float* o = out + m * 32;
      switch (count) {
        case 6:
          PanelBlock<6>(panel, x, infos, s0, s1, o);
          break;
        case 5:
          PanelBlock<5>(panel, x, infos, s0, s1, o);
          break;
        case 4:
          PanelBlock<4>(panel, x, infos, s0, s1, o);
          break;
        case 3:
          PanelBlock<3>(panel, x, infos, s0, s1, o);
          break;
        case 2:
          PanelBlock<2>(panel, x, infos, s0, s1, o);
          break;
        default:
          PanelBlock<1>(panel, x, infos, s0, s1, o);
          break;
      }
      for (int i = 0; i < count; ++i) {
        if (__builtin_expect(infos[i]->has_low, 0)) {
          has_low[m + i] = true;
          AddLowDigits(group_weights, task.scales, group, *x[i], *infos[i], low_sums + (m + i) * 32);
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

void AddLowDigitsAvx512(const TileTask& task, int64_t group, int32_t row, float* low_sums) {
  const int64_t block = group * task.group_rows + row;
  AddLowDigits(task.weights + group * kGroupBytes, task.scales, group, task.digits[block], task.integer_info[block], low_sums);
}

void SplitDigitsAvx512(const IntegerBlock& block, ByteDigits* digits) {
  const __m512i high = _mm512_loadu_si512(block.high);
  const __m512i middle = _mm512_srai_epi16(_mm512_slli_epi16(high, 8), 8);
  const __m512i upper = _mm512_srai_epi16(_mm512_sub_epi16(high, middle), 8);
  // Inputs k0, k1, k2, k3 in the order of the packed weights: k0, k2, k1, k3.
  const __m256i order = _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 2, 1, 3, 4, 6, 5, 7, 8, 10, 9, 11, 12, 14, 13, 15));
  const auto store = [order](int8_t* to, __m512i words) __attribute__((always_inline)) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm256_shuffle_epi8(_mm512_cvtepi16_epi8(words), order));
  };
  store(digits->upper, upper);
  store(digits->middle, middle);
  store(digits->low, _mm512_loadu_si512(block.low));
}

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
