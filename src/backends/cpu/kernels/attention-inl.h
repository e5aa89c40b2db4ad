// SPDX-License-Identifier: Apache-2.0
//
// The attention kernel over compiler vector types, included by attention_scalar.cc, attention_avx2.cc and
// attention_avx512.cc inside their own anonymous namespaces after they have defined
//   kLanes (8 or 16), kPvHeads, and DI_FMA(a, b, c) on vectors of kLanes floats.
// No include guard: one inclusion per translation unit. No inline functions of other headers are used here, so that no
// copy compiled for a newer processor can be linked into the common code.

typedef float Vec __attribute__((vector_size(kLanes * 4)));
typedef float VecU __attribute__((vector_size(kLanes * 4), aligned(4), may_alias));
typedef float F8 __attribute__((vector_size(32)));
typedef int32_t I8 __attribute__((vector_size(32)));
typedef float F8u __attribute__((vector_size(32), aligned(4), may_alias));

#define DI_INLINE __attribute__((always_inline)) inline

DI_INLINE Vec LoadVec(const float* p) { return *reinterpret_cast<const VecU*>(p); }
DI_INLINE void StoreVec(float* p, Vec v) { *reinterpret_cast<VecU*>(p) = v; }
DI_INLINE Vec Splat(float x) { return x - Vec{}; }

DI_INLINE float Fold8(F8 s) { return ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7])); }
DI_INLINE float FoldVec(Vec v) {
  if constexpr (kLanes == 8) {
    F8 s;
    __builtin_memcpy(&s, &v, sizeof(s));
    return Fold8(s);
  } else {
    F8 halves[2];
    __builtin_memcpy(halves, &v, sizeof(halves));
    return Fold8(halves[0] + halves[1]);
  }
}

// exp of eight values: x = n ln 2 + r with |r| <= ln 2 / 2, a polynomial in r, then the exponent. Below -87.3 the result is
// 0, above 88.7 infinity. ln 2 is split so that n times its high part is exact. Coefficients: minimax of (exp(r) - 1 - r) / r^2.
DI_INLINE F8 Exp8(F8 x) {
  const F8 lowest = -87.33654f - F8{};
  const F8 highest = 88.72283f - F8{};
  const I8 is_tiny = x < lowest;
  const I8 is_huge = x > highest;
  const F8 zero = F8{};
  x = is_tiny ? zero : x;
  x = is_huge ? zero : x;
  const F8 shift = 12582912.0f - F8{};  // 1.5 * 2^23: rounds to an integer
  const F8 n = (x * 1.44269504f + shift) - shift;
  const F8 r = (x - n * 0.693359375f) - n * -2.12194440e-4f;
  F8 p = r * 1.9875691500e-4f + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = (p * (r * r) + r) + 1.0f;
  // 2^n in two steps: n may be 128 for results just below overflow.
  const I8 ni = __builtin_convertvector(n, I8);
  const I8 half = ni >> 1;
  const I8 first = (half + 127) << 23;
  const I8 second = (ni - half + 127) << 23;
  F8 a, b;
  __builtin_memcpy(&a, &first, sizeof(a));
  __builtin_memcpy(&b, &second, sizeof(b));
  p = (p * a) * b;
  p = is_tiny ? zero : p;
  p = is_huge ? __builtin_inff() - zero : p;
  return p;
}

DI_INLINE F8 RoundBf16x8(F8 x) {
  I8 bits;
  __builtin_memcpy(&bits, &x, sizeof(bits));
  // Weights and results are finite or infinite here; rounding leaves infinity alone.
  typedef uint32_t U8 __attribute__((vector_size(32)));
  U8 u = reinterpret_cast<U8>(bits);
  u = (u + 0x7fffu + ((u >> 16) & 1u)) & 0xffff0000u;
  F8 r;
  __builtin_memcpy(&r, &u, sizeof(r));
  const I8 is_nan = x != x;
  return is_nan ? x : r;
}

// Scores of H heads and keys [3 * block, 3 * block + 3).
template <int H>
DI_INLINE void ScoreBlock(const float* query, int64_t dim, const float* const* keys, int64_t key, float scale, float* scores,
                          int64_t score_stride) {
  const float* const key0 = keys[key];
  const float* const key1 = keys[key + 1];
  const float* const key2 = keys[key + 2];
  Vec acc[H][3];
#pragma GCC unroll 4
  for (int h = 0; h < H; ++h) acc[h][0] = acc[h][1] = acc[h][2] = Vec{};
  for (int64_t c = 0; c < dim; c += kLanes) {
    const Vec k0 = LoadVec(key0 + c);
    const Vec k1 = LoadVec(key1 + c);
    const Vec k2 = LoadVec(key2 + c);
#pragma GCC unroll 4
    for (int h = 0; h < H; ++h) {
      const Vec q = LoadVec(query + h * dim + c);
      acc[h][0] = DI_FMA(q, k0, acc[h][0]);
      acc[h][1] = DI_FMA(q, k1, acc[h][1]);
      acc[h][2] = DI_FMA(q, k2, acc[h][2]);
    }
  }
#pragma GCC unroll 4
  for (int h = 0; h < H; ++h) {
#pragma GCC unroll 3
    for (int i = 0; i < 3; ++i) scores[h * score_stride + key + i] = FoldVec(acc[h][i]) * scale;
  }
}

// 16 channels of H heads: sum over `count` keys of a panel, ascending, of weight * key, on top of what is in `out` unless they
// are the first. Divided by the denominators after the last.
template <int H>
DI_INLINE void ValueBlock(const float* weights, int64_t weight_stride, const float* panel, int64_t count, bool is_first, bool is_last,
                          const float* denominator, float* out, int64_t dim) {
  constexpr int kVecs = 16 / kLanes;
  Vec acc[H][kVecs];
#pragma GCC unroll 8
  for (int h = 0; h < H; ++h) {
#pragma GCC unroll 2
    for (int v = 0; v < kVecs; ++v) acc[h][v] = is_first ? Vec{} : LoadVec(out + h * dim + v * kLanes);
  }
  for (int64_t i = 0; i < count; ++i) {
    Vec k[kVecs];
#pragma GCC unroll 2
    for (int v = 0; v < kVecs; ++v) k[v] = LoadVec(panel + i * 16 + v * kLanes);
#pragma GCC unroll 8
    for (int h = 0; h < H; ++h) {
      const Vec w = Splat(weights[h * weight_stride + i]);
#pragma GCC unroll 2
      for (int v = 0; v < kVecs; ++v) acc[h][v] = DI_FMA(w, k[v], acc[h][v]);
    }
  }
#pragma GCC unroll 8
  for (int h = 0; h < H; ++h) {
#pragma GCC unroll 2
    for (int v = 0; v < kVecs; ++v) StoreVec(out + h * dim + v * kLanes, is_last ? acc[h][v] / Splat(denominator[h]) : acc[h][v]);
  }
}

template <int H>
void ScoreHeads(const float* query, int64_t dim, const float* const* keys, int64_t key_begin, int64_t key_end, float scale,
                float* scores, int64_t score_stride) {
  for (int64_t key = key_begin; key < key_end; key += 3) {
    ScoreBlock<H>(query, dim, keys, key, scale, scores, score_stride);
  }
}

// Scores of all heads and keys [first, last); first is a multiple of 3, and so is last unless it is num_keys.
DI_INLINE void ScoresOfKeys(const AttendTask& task, int64_t first, int64_t last) {
  const int64_t dim = task.list.dim;
  const int heads = task.num_heads;
  const int64_t padded = (last + 2) / 3 * 3;
  // A block of 12 keys stays in the first-level cache while all heads pass over it.
  for (int64_t key = first; key < padded; key += 12) {
    const int64_t end = key + 12 < padded ? key + 12 : padded;
    int h = 0;
    for (; h + 4 <= heads; h += 4) {
      ScoreHeads<4>(task.query + h * dim, dim, task.list.keys, key, end, task.scale, task.scores + h * task.score_stride,
                    task.score_stride);
    }
    for (; h < heads; ++h) {
      ScoreHeads<1>(task.query + h * dim, dim, task.list.keys, key, end, task.scale, task.scores + h * task.score_stride,
                    task.score_stride);
    }
  }
}

// Turns the scores of heads [first, last) into weights and sets their denominators.
DI_INLINE void WeightsOfHeads(const AttendTask& task, int first, int last) {
  const int64_t n = task.list.num_keys;
  for (int h = first; h < last; ++h) {
    float* z = task.scores + h * task.score_stride;
    float top = -1e30f;
    for (int64_t i = 0; i < n; ++i) top = z[i] > top ? z[i] : top;
    // Padding up to eight keys weighs nothing.
    const int64_t n8 = (n + 7) / 8 * 8;
    for (int64_t i = n; i < n8; ++i) z[i] = -1e38f;
    F8 sum = F8{};
    for (int64_t i = 0; i < n8; i += 8) {
      F8 p = Exp8(*reinterpret_cast<const F8u*>(z + i) - top);
      sum += p;
      if (task.round_bf16) p = RoundBf16x8(p);
      *reinterpret_cast<F8u*>(z + i) = p;
    }
    task.denominators[h] = Fold8(sum) + Exp8((task.sink[h] - top) - F8{})[0];
  }
}

// Channels [first, last) of all heads; both are multiples of 16.
DI_INLINE void ValuesOfChannels(const AttendTask& task, int64_t first, int64_t last) {
  const int64_t dim = task.list.dim;
  const int64_t n = task.list.num_keys;
  const int64_t stride = task.score_stride;
  const int heads = task.num_heads;
  const float* const* keys = task.list.keys;
  if (n == 0) {
    for (int h = 0; h < heads; ++h) {
      for (int64_t c = first; c < last; ++c) task.out[h * dim + c] = 0.0f;
    }
    return;
  }
  // The channels of so many keys, one after another: they stay in the first-level cache and in few pages while all heads pass
  // over them.
  constexpr int64_t kPanelKeys = 256;
  alignas(64) float panel[kPanelKeys * 16];
  for (int64_t c = first; c < last; c += 16) {
    int h = 0;
    for (int64_t begin = 0; begin < n; begin += kPanelKeys) {
      const int64_t count = begin + kPanelKeys < n ? kPanelKeys : n - begin;
      const bool is_first = begin == 0, is_last = begin + count == n;
      for (int64_t i = 0; i < count; ++i) {
#pragma GCC unroll 2
        for (int v = 0; v < 16; v += kLanes) StoreVec(panel + i * 16 + v, LoadVec(keys[begin + i] + c + v));
      }
      const auto add = [&]<int H>() __attribute__((always_inline)) {
        ValueBlock<H>(task.scores + h * stride + begin, stride, panel, count, is_first, is_last, task.denominators + h, task.out + c + h * dim, dim);
      };
      for (h = 0; h + kPvHeads <= heads; h += kPvHeads) add.template operator()<kPvHeads>();
      for (; h + 2 <= heads; h += 2) add.template operator()<2>();
      for (; h < heads; ++h) add.template operator()<1>();
    }
    if (!task.round_bf16) continue;
    for (h = 0; h < heads; ++h) {
      float* row = task.out + c + h * dim;
      *reinterpret_cast<F8u*>(row) = RoundBf16x8(*reinterpret_cast<const F8u*>(row));
      *reinterpret_cast<F8u*>(row + 8) = RoundBf16x8(*reinterpret_cast<const F8u*>(row + 8));
    }
  }
}
