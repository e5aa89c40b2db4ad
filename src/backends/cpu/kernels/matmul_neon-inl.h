// SPDX-License-Identifier: Apache-2.0
//
// Tile kernels for 64-bit ARM, included by matmul_neon.cc (float32 multiply-adds) and matmul_neon_bf16.cc (dot products of
// bf16 pairs) inside their own anonymous namespaces. Weights become bf16 pairs in registers by byte table lookups; four rows
// are one vector. Up to four inputs: the weight stream is decoded straight into the products. More inputs: each group of
// 32 x 32 weights is decoded once into a panel and a block of 6 inputs x 16 rows runs over it. Both take the products of one
// output in the same order (matmul.h): with float32 the order of the scalar kernels, with pairs in ascending pairs.
// No include guard: one inclusion per translation unit.

#define DI_INLINE __attribute__((always_inline)) inline

typedef float32x4_t V;
typedef uint32x4_t Pairs;  // (k, k + 1) of one row per lane, bf16, k low

// A format gives kGroupBytes, kStepK (inputs per step of 128 bytes), what its scales are, and Decode: the 16 bytes of four
// rows of one step to kStepK / 2 vectors of pairs.
struct Fp4 {
  static constexpr int kGroupBytes = 512;
  static constexpr int kStepK = 8;
  static constexpr bool kPerRowScale = true;
  static constexpr bool kPerTileScale = false;
  DI_INLINE static void DecodeHalf(uint8x16_t codes, Pairs* pairs) {
    // e2m1 as bf16: 0, 0x3f00, 0x3f80, 0x3fc0, 0x4000, 0x4040, 0x4080, 0x40c0 and the sign.
    const uint8x16_t low_table = {0, 0, 0x80, 0xc0, 0, 0x40, 0x80, 0xc0, 0, 0, 0x80, 0xc0, 0, 0x40, 0x80, 0xc0};
    const uint8x16_t high_table = {0,    0x3f, 0x3f, 0x3f, 0x40, 0x40, 0x40, 0x40,
                                   0x80, 0xbf, 0xbf, 0xbf, 0xc0, 0xc0, 0xc0, 0xc0};
    const uint8x16_t low = vqtbl1q_u8(low_table, codes);
    const uint8x16_t high = vqtbl1q_u8(high_table, codes);
    pairs[0] = vreinterpretq_u32_u8(vtrn1q_u8(low, high));
    pairs[1] = vreinterpretq_u32_u8(vtrn2q_u8(low, high));
  }
  DI_INLINE static void Decode(const uint8_t* p, Pairs* pairs) {
    const uint8x16_t bytes = vld1q_u8(p);
    DecodeHalf(vandq_u8(bytes, vdupq_n_u8(15)), pairs);
    DecodeHalf(vshrq_n_u8(bytes, 4), pairs + 2);
  }
};

struct Fp8 {
  static constexpr int kGroupBytes = 1024;
  static constexpr int kStepK = 4;
  static constexpr bool kPerRowScale = false;
  static constexpr bool kPerTileScale = true;
  DI_INLINE static void Decode(const uint8_t* p, Pairs* pairs) {
    // e4m3 magnitudes 1 to 7 are subnormal: n 2^-9. As bf16: 0x3b00, 0x3b80, 0x3bc0, 0x3c00, 0x3c20, 0x3c40, 0x3c60. A bf16
    // product takes normal numbers only, so they come from a table; 8 to 15 are there because the lookup reaches them.
    const uint8x16_t low_table = {0, 0, 0x80, 0xc0, 0, 0x20, 0x40, 0x60, 0x80, 0x90, 0xa0, 0xb0, 0xc0, 0xd0, 0xe0, 0xf0};
    const uint8x16_t high_table = {0,    0x3b, 0x3b, 0x3b, 0x3c, 0x3c, 0x3c, 0x3c,
                                   0x3c, 0x3c, 0x3c, 0x3c, 0x3c, 0x3c, 0x3c, 0x3c};
    const uint8x16_t codes = vld1q_u8(p);
    const uint8x16_t magnitude = vandq_u8(codes, vdupq_n_u8(0x7f));
    // Others: exponent + 120 and three bits of mantissa; a lookup beyond the table leaves them.
    const uint8x16_t low = vqtbx1q_u8(vshlq_n_u8(codes, 4), low_table, magnitude);
    const uint8x16_t high = vqtbx1q_u8(vaddq_u8(vshrq_n_u8(magnitude, 4), vdupq_n_u8(0x3c)), high_table, magnitude);
    const uint8x16_t with_sign = vbslq_u8(vdupq_n_u8(0x80), codes, high);
    pairs[0] = vreinterpretq_u32_u8(vtrn1q_u8(low, with_sign));
    pairs[1] = vreinterpretq_u32_u8(vtrn2q_u8(low, with_sign));
  }
};

struct Bf16 {
  static constexpr int kGroupBytes = 2048;
  static constexpr int kStepK = 2;
  static constexpr bool kPerRowScale = false;
  static constexpr bool kPerTileScale = false;
  DI_INLINE static void Decode(const uint8_t* p, Pairs* pairs) { pairs[0] = vreinterpretq_u32_u8(vld1q_u8(p)); }
};

// The arithmetics: what a vector of inputs holds, and how one is multiplied with pairs of weights.
// float32: a vector is 4 inputs; a pair takes two multiply-adds.
struct FloatMath {
  static constexpr int kInputsPerVector = 4;
  static constexpr int kGroupVectors = 8;  // of 32 inputs
  static constexpr int kPanelVectors = 32;  // per four rows and group
  typedef float32x4_t Input;
  DI_INLINE static Input Load(const TileTask& task, int64_t slot, int vector) {
    return vld1q_f32(task.values + slot * 32 + vector * 4);
  }
  template <int kAt>  // position of the pair's first input in its vector
  DI_INLINE static V Add(V sum, Pairs w, Input x) {
    sum = vfmaq_laneq_f32(sum, vreinterpretq_f32_u32(vshlq_n_u32(w, 16)), x, kAt);
    return vfmaq_laneq_f32(sum, vreinterpretq_f32_u32(vandq_u32(w, vdupq_n_u32(0xffff0000u))), x, kAt + 1);
  }
  // What a panel keeps of a pair, and a product with one vector of it.
  DI_INLINE static void Store(Pairs w, uint32_t* panel, int64_t stride) {
    vst1q_u32(panel, vshlq_n_u32(w, 16));
    vst1q_u32(panel + stride, vandq_u32(w, vdupq_n_u32(0xffff0000u)));
  }
  static constexpr int kPanelRowsPerPair = 2;
  template <int kLane>
  DI_INLINE static V AddPanel(V sum, uint32x4_t w, Input x) {
    return vfmaq_laneq_f32(sum, vreinterpretq_f32_u32(w), x, kLane);
  }
};

#if defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
// bf16 pairs: a vector is 8 inputs.
struct PairMath {
  static constexpr int kInputsPerVector = 8;
  static constexpr int kGroupVectors = 4;
  static constexpr int kPanelVectors = 16;
  typedef bfloat16x8_t Input;
  DI_INLINE static Input Load(const TileTask& task, int64_t slot, int vector) {
    return vreinterpretq_bf16_u32(vld1q_u32(task.pairs + slot * 16 + vector * 4));
  }
  template <int kAt>
  DI_INLINE static V Add(V sum, Pairs w, Input x) {
    return vbfdotq_laneq_f32(sum, vreinterpretq_bf16_u32(w), x, kAt / 2);
  }
  DI_INLINE static void Store(Pairs w, uint32_t* panel, int64_t) { vst1q_u32(panel, w); }
  static constexpr int kPanelRowsPerPair = 1;
  template <int kLane>
  DI_INLINE static V AddPanel(V sum, uint32x4_t w, Input x) {
    return vbfdotq_laneq_f32(sum, vreinterpretq_bf16_u32(w), x, kLane);
  }
};
#endif

// Calls body.operator()<0>(), <1>(), ... <kCount - 1>().
template <int kCount, int kFrom = 0, typename Body>
DI_INLINE void Unroll(const Body& body) {
  if constexpr (kFrom < kCount) {
    body.template operator()<kFrom>();
    Unroll<kCount, kFrom + 1>(body);
  }
}

// Scale of rows [4u, 4u + 4) in a group.
template <typename Format>
DI_INLINE V GroupScale(const uint8_t* scales, int64_t group, int u) {
  if constexpr (Format::kPerRowScale) {
    uint32_t bytes;
    __builtin_memcpy(&bytes, scales + group * 32 + u * 4, sizeof(bytes));
    const uint16x8_t words = vmovl_u8(vreinterpret_u8_u32(vdup_n_u32(bytes)));
    // Byte 0 means 2^-127, the subnormal 0x00400000.
    return vreinterpretq_f32_u32(vmaxq_u32(vshlq_n_u32(vmovl_u16(vget_low_u16(words)), 23), vdupq_n_u32(0x00400000)));
  } else if constexpr (Format::kPerTileScale) {
    return vld1q_dup_f32(reinterpret_cast<const float*>(scales) + group);
  } else {
    return vdupq_n_f32(0);
  }
}

template <typename Format>
DI_INLINE V AddGroup(V partial, V scale, V sum) {
  if constexpr (Format::kPerRowScale || Format::kPerTileScale) return vfmaq_f32(sum, partial, scale);
  return vaddq_f32(sum, partial);
}

// M inputs, kUnits vectors of four rows at a time: M * kUnits sums in flight hide the latency of the multiply-adds.
template <typename Format, typename Math, int M, int kUnits>
void FewInputs(const TileTask& task) {
  constexpr int kStepsPerChunk = 8 / Format::kStepK;  // a chunk is 8 inputs
  constexpr int kVectors = 8 / Math::kInputsPerVector;
  float* out = task.out;
  for (int i = 0; i < M * 8; ++i) vst1q_f32(out + i * 4, vdupq_n_f32(0));
  for (int64_t group = 0; group < task.num_groups; ++group) {
    int64_t slot[M];
#pragma GCC unroll 4
    for (int m = 0; m < M; ++m) slot[m] = group * task.group_rows + task.row_idx[m];
    for (int u0 = 0; u0 < 8; u0 += kUnits) {
      V partial[M][kUnits];
#pragma GCC unroll 4
      for (int m = 0; m < M; ++m) {
#pragma GCC unroll 8
        for (int u = 0; u < kUnits; ++u) partial[m][u] = vdupq_n_f32(0);
      }
      const uint8_t* p = task.weights + group * Format::kGroupBytes + u0 * 16;
#pragma GCC unroll 1
      for (int chunk = 0; chunk < 4; ++chunk) {
        typename Math::Input x[M][kVectors];
#pragma GCC unroll 4
        for (int m = 0; m < M; ++m) {
#pragma GCC unroll 2
          for (int i = 0; i < kVectors; ++i) x[m][i] = Math::Load(task, slot[m], chunk * kVectors + i);
        }
        Unroll<kStepsPerChunk>([&]<int kStep>() __attribute__((always_inline)) {
          __builtin_prefetch(p + task.prefetch_bytes);
          if constexpr (kUnits == 8) __builtin_prefetch(p + task.prefetch_bytes + 64);
#pragma GCC unroll 8
          for (int u = 0; u < kUnits; ++u) {
            Pairs w[Format::kStepK / 2];
            Format::Decode(p + u * 16, w);
            Unroll<Format::kStepK / 2>([&]<int kPair>() __attribute__((always_inline)) {
              constexpr int kK = kStep * Format::kStepK + 2 * kPair;  // in the chunk
#pragma GCC unroll 4
              for (int m = 0; m < M; ++m) {
                partial[m][u] = Math::template Add<kK % Math::kInputsPerVector>(partial[m][u], w[kPair],
                                                                               x[m][kK / Math::kInputsPerVector]);
              }
            });
          }
          p += 128;
        });
      }
#pragma GCC unroll 8
      for (int u = 0; u < kUnits; ++u) {
        const V scale = GroupScale<Format>(task.scales, group, u0 + u);
#pragma GCC unroll 4
        for (int m = 0; m < M; ++m) {
          float* sum = out + m * 32 + (u0 + u) * 4;
          vst1q_f32(sum, AddGroup<Format>(partial[m][u], scale, vld1q_f32(sum)));
        }
      }
    }
  }
}

// kM inputs x 16 rows over one decoded group (panel [kPanelVectors][32 rows], rows from `panel` on).
template <typename Format, typename Math, int kM>
DI_INLINE void PanelBlock(const TileTask& task, const uint32_t* panel, const int64_t* slot, const V* scale, float* out) {
  V a[kM][4];
#pragma GCC unroll 8
  for (int m = 0; m < kM; ++m) {
#pragma GCC unroll 4
    for (int u = 0; u < 4; ++u) a[m][u] = vdupq_n_f32(0);
  }
#pragma GCC unroll 1
  for (int vector = 0; vector < Math::kGroupVectors; ++vector) {
    typename Math::Input x[kM];
#pragma GCC unroll 8
    for (int m = 0; m < kM; ++m) x[m] = Math::Load(task, slot[m], vector);
    Unroll<4>([&]<int kLane>() __attribute__((always_inline)) {
      const uint32_t* row = panel + (vector * 4 + kLane) * 32;
#pragma GCC unroll 4
      for (int u = 0; u < 4; ++u) {
        const uint32x4_t w = vld1q_u32(row + u * 4);
#pragma GCC unroll 8
        for (int m = 0; m < kM; ++m) a[m][u] = Math::template AddPanel<kLane>(a[m][u], w, x[m]);
      }
    });
  }
#pragma GCC unroll 8
  for (int m = 0; m < kM; ++m) {
#pragma GCC unroll 4
    for (int u = 0; u < 4; ++u) {
      float* sum = out + m * 32 + u * 4;
      vst1q_f32(sum, AddGroup<Format>(a[m][u], scale[u], vld1q_f32(sum)));
    }
  }
}

// All inputs of the task over one decoded group.
template <typename Format, typename Math>
void PanelInputs(const TileTask& task, int64_t group, const uint32_t* panel) {
  V scale[8];
  for (int u = 0; u < 8; ++u) scale[u] = GroupScale<Format>(task.scales, group, u);
  for (int m = 0; m < task.num_m;) {
    const int left = task.num_m - m;
    const int count = left >= 4 ? 4 : left;
    int64_t slot[4];
    for (int i = 0; i < count; ++i) slot[i] = group * task.group_rows + task.row_idx[m + i];
    for (int half = 0; half < 2; ++half) {
      const uint32_t* p = panel + half * 16;
      float* o = task.out + m * 32 + half * 16;
      const V* s = scale + half * 4;
      switch (count) {
        case 4:
          PanelBlock<Format, Math, 4>(task, p, slot, s, o);
          break;
        case 3:
          PanelBlock<Format, Math, 3>(task, p, slot, s, o);
          break;
        case 2:
          PanelBlock<Format, Math, 2>(task, p, slot, s, o);
          break;
        default:
          PanelBlock<Format, Math, 1>(task, p, slot, s, o);
          break;
      }
    }
    m += count;
  }
}

template <typename Format, typename Math>
void ManyInputs(const TileTask& task) {
  constexpr int kPairs = Format::kStepK / 2;
  constexpr int kRows = Math::kPanelRowsPerPair;
  alignas(64) uint32_t panel[Math::kPanelVectors * 32];
  for (int i = 0; i < task.num_m * 8; ++i) vst1q_f32(task.out + i * 4, vdupq_n_f32(0));
  for (int64_t group = 0; group < task.num_groups; ++group) {
    const uint8_t* p = task.weights + group * Format::kGroupBytes;
    for (int step = 0; step < 32 / Format::kStepK; ++step, p += 128) {
      __builtin_prefetch(p + task.prefetch_bytes);
      __builtin_prefetch(p + task.prefetch_bytes + 64);
      for (int u = 0; u < 8; ++u) {
        Pairs w[kPairs];
        Format::Decode(p + u * 16, w);
#pragma GCC unroll 4
        for (int i = 0; i < kPairs; ++i) Math::Store(w[i], panel + (step * kPairs + i) * kRows * 32 + u * 4, 32);
      }
    }
    PanelInputs<Format, Math>(task, group, panel);
  }
}

template <typename Format, typename Math>
void Tile(const TileTask& task) {
  switch (task.num_m) {
    case 1:
      return FewInputs<Format, Math, 1, 8>(task);
    case 2:
      return FewInputs<Format, Math, 2, 4>(task);
    case 3:
      return FewInputs<Format, Math, 3, 4>(task);
    case 4:
      return FewInputs<Format, Math, 4, 4>(task);
    default:
      return ManyInputs<Format, Math>(task);
  }
}
