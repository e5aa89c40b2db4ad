// SPDX-License-Identifier: Apache-2.0
//
// Included by row_ops.cc, row_ops_avx2.cc and row_ops_avx512.cc, each inside its own anonymous namespace. Element-wise loops
// are left to the compiler's vectoriser; reductions are written over two accumulators of eight lanes.
// No include guard: one inclusion per translation unit.

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

#if defined(__AVX2__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#include "backends/cpu/row_ops.h"

namespace deepinfer::cpu {
namespace {

#if defined(__aarch64__)
// GCC keeps vectors wider than a register in memory; two halves stay in registers.
typedef float F4 __attribute__((vector_size(16)));
typedef float F4u __attribute__((vector_size(16), aligned(4), may_alias));
struct F8 {
  F4 low, high;
  float operator[](int i) const { return i < 4 ? low[i] : high[i - 4]; }
};
inline F8 operator+(const F8& a, const F8& b) { return {a.low + b.low, a.high + b.high}; }
inline F8 operator+(const F8& a, float b) { return {a.low + b, a.high + b}; }
inline F8 operator*(const F8& a, const F8& b) { return {a.low * b.low, a.high * b.high}; }
inline void operator+=(F8& a, const F8& b) { a = a + b; }
inline void operator/=(F8& a, const F8& b) { a = {a.low / b.low, a.high / b.high}; }
inline F8 Load(const float* x) { return {*reinterpret_cast<const F4u*>(x), *reinterpret_cast<const F4u*>(x + 4)}; }
inline void SetLane(F8& v, int i, float x) {
  if (i < 4) {
    v.low[i] = x;
  } else {
    v.high[i - 4] = x;
  }
}
#else
typedef float F8 __attribute__((vector_size(32)));
typedef float F8u __attribute__((vector_size(32), aligned(4), may_alias));
inline F8 Load(const float* x) { return *reinterpret_cast<const F8u*>(x); }
inline void SetLane(F8& v, int i, float x) { v[i] = x; }
#endif

// The fixed tree that ends every reduction.
inline float Fold(const F8& a, const F8& b) {
  const F8 s = a + b;
  return ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7]));
}

template <typename Term>
inline float Reduce(int64_t n, Term term) {
  F8 a = {}, b = {};
  for (int64_t i = 0; i + 16 <= n; i += 16) {
    a += term(i);
    b += term(i + 8);
  }
  return Fold(a, b);
}

// A tail shorter than 16 is added one by one after the fold.
inline float SumSquares(const float* x, int64_t n) {
  float sum = Reduce(n, [x](int64_t i) { const F8 v = Load(x + i); return v * v; });
  for (int64_t i = n & ~int64_t{15}; i < n; ++i) sum += x[i] * x[i];
  return sum;
}

inline float Dot(const float* x, const float* y, int64_t n) {
  float sum = Reduce(n, [x, y](int64_t i) { return Load(x + i) * Load(y + i); });
  for (int64_t i = n & ~int64_t{15}; i < n; ++i) sum += x[i] * y[i];
  return sum;
}

inline float Dot3(const float* x, const float* w, const float* y, int64_t n) {
  float sum = Reduce(n, [x, w, y](int64_t i) { return Load(x + i) * Load(w + i) * Load(y + i); });
  for (int64_t i = n & ~int64_t{15}; i < n; ++i) sum += x[i] * w[i] * y[i];
  return sum;
}

// Four outputs share the loads of x; each output has the lane structure of Dot.
void Dots(const float* x, const float* fn, int64_t n, int num_outputs, float* out) {
  int o = 0;
  for (; o + 4 <= num_outputs; o += 4) {
    const float* f0 = fn + (o + 0) * n;
    const float* f1 = fn + (o + 1) * n;
    const float* f2 = fn + (o + 2) * n;
    const float* f3 = fn + (o + 3) * n;
    F8 a0 = {}, a1 = {}, a2 = {}, a3 = {}, b0 = {}, b1 = {}, b2 = {}, b3 = {};
    for (int64_t i = 0; i + 16 <= n; i += 16) {
      const F8 xa = Load(x + i), xb = Load(x + i + 8);
      a0 += xa * Load(f0 + i);
      b0 += xb * Load(f0 + i + 8);
      a1 += xa * Load(f1 + i);
      b1 += xb * Load(f1 + i + 8);
      a2 += xa * Load(f2 + i);
      b2 += xb * Load(f2 + i + 8);
      a3 += xa * Load(f3 + i);
      b3 += xb * Load(f3 + i + 8);
    }
    out[o] = Fold(a0, b0);
    out[o + 1] = Fold(a1, b1);
    out[o + 2] = Fold(a2, b2);
    out[o + 3] = Fold(a3, b3);
    for (int64_t i = n & ~int64_t{15}; i < n; ++i) {
      out[o] += x[i] * f0[i];
      out[o + 1] += x[i] * f1[i];
      out[o + 2] += x[i] * f2[i];
      out[o + 3] += x[i] * f3[i];
    }
  }
  for (; o < num_outputs; ++o) out[o] = Dot(x, fn + o * n, n);
}

// One matrix of m x m.
inline void SinkhornOne(float* c, int m, int iters, float eps) {
  float sums[8];
  const auto columns = [&] {
    for (int k = 0; k < m; ++k) sums[k] = c[k];
    for (int j = 1; j < m; ++j)
      for (int k = 0; k < m; ++k) sums[k] += c[j * m + k];
    for (int k = 0; k < m; ++k) sums[k] += eps;
    for (int j = 0; j < m; ++j)
      for (int k = 0; k < m; ++k) c[j * m + k] /= sums[k];
  };
  columns();
  for (int i = 1; i < iters; ++i) {
    for (int j = 0; j < m; ++j) {
      float sum = c[j * m];
      for (int k = 1; k < m; ++k) sum += c[j * m + k];
      sum += eps;
      for (int k = 0; k < m; ++k) c[j * m + k] /= sum;
    }
    columns();
  }
}

#if !defined(__aarch64__)
typedef float F4 __attribute__((vector_size(16)));
typedef float F4u __attribute__((vector_size(16), aligned(4), may_alias));
#endif

// 4 x 4: a vector is a row.
inline void SinkhornOne4(float* c, int iters, float eps) {
  F4 r[4];
  for (int j = 0; j < 4; ++j) r[j] = *reinterpret_cast<const F4u*>(c + 4 * j);
  const auto columns = [&] {
    const F4 sums = (((r[0] + r[1]) + r[2]) + r[3]) + eps;
    for (int j = 0; j < 4; ++j) r[j] /= sums;
  };
  columns();
  for (int i = 1; i < iters; ++i) {
    for (int j = 0; j < 4; ++j) r[j] /= (((r[j][0] + r[j][1]) + r[j][2]) + r[j][3]) + eps;
    columns();
  }
  for (int j = 0; j < 4; ++j) *reinterpret_cast<F4u*>(c + 4 * j) = r[j];
}

// Eight matrices of 4 x 4: a vector is one element of all.
inline void SinkhornEight4(float* matrices, int iters, float eps) {
  F8 c[16];
  for (int e = 0; e < 16; ++e)
    for (int i = 0; i < 8; ++i) SetLane(c[e], i, matrices[i * 16 + e]);
  const auto normalise = [&](int e0, int step) {
    const F8 sum = (((c[e0] + c[e0 + step]) + c[e0 + 2 * step]) + c[e0 + 3 * step]) + eps;
    for (int k = 0; k < 4; ++k) c[e0 + k * step] /= sum;
  };
  for (int k = 0; k < 4; ++k) normalise(k, 4);
  for (int i = 1; i < iters; ++i) {
    for (int j = 0; j < 4; ++j) normalise(4 * j, 1);
    for (int k = 0; k < 4; ++k) normalise(k, 4);
  }
  for (int e = 0; e < 16; ++e)
    for (int i = 0; i < 8; ++i) matrices[i * 16 + e] = c[e][i];
}

void Sinkhorn(float* matrices, int64_t rows, int m, int iters, float eps) {
  int64_t t = 0;
  if (m == 4) {
    for (; t + 8 <= rows; t += 8) SinkhornEight4(matrices + t * 16, iters, eps);
    for (; t < rows; ++t) SinkhornOne4(matrices + t * 16, iters, eps);
  }
  for (; t < rows; ++t) SinkhornOne(matrices + t * m * m, m, iters, eps);
}

// Branch-free bf16 rounding of finite values; infinities and quiet NaNs survive too.
template <bool kRound>
inline float Round(float v) {
  if constexpr (!kRound) return v;
  uint32_t bits = std::bit_cast<uint32_t>(v);
  bits += 0x7fffu + ((bits >> 16) & 1u);
  return std::bit_cast<float>(bits & 0xffff0000u);
}

// Rounds to a format with `kMantissa` bits, smallest normal 2^kMinExponent and largest value kMax; ties to even.
template <int kMantissa, int kMinExponent>
inline float RoundMini(float v, float max) {
  constexpr uint32_t kDrop = 23 - kMantissa;
  constexpr uint32_t kMinNormal = static_cast<uint32_t>(127 + kMinExponent) << 23;
  // Adding this makes the FPU round to a multiple of the subnormal step.
  const float magic = std::bit_cast<float>((static_cast<uint32_t>(127 + kMinExponent - kMantissa + 23) << 23) | 0x400000u);
  const uint32_t bits = std::bit_cast<uint32_t>(v);
  const uint32_t sign = bits & 0x80000000u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  const uint32_t normal =
      (magnitude + ((1u << (kDrop - 1)) - 1u) + ((magnitude >> kDrop) & 1u)) & ~((1u << kDrop) - 1u);
  const float small = (std::bit_cast<float>(magnitude) + magic) - magic;
  const uint32_t rounded = magnitude < kMinNormal ? std::bit_cast<uint32_t>(small) : normal;
  const uint32_t limit = std::bit_cast<uint32_t>(max);
  return std::bit_cast<float>((rounded < limit ? rounded : limit) | sign);
}

inline float RoundE4M3(float v) { return RoundMini<3, -6>(v, 448.0f); }
inline float RoundE2M1(float v) { return RoundMini<1, 0>(v, 6.0f); }

template <int kGroup>
inline float AbsMax(const float* x) {
  int32_t max = 0;
  for (int i = 0; i < kGroup; ++i) {
    const int32_t m = std::bit_cast<int32_t>(x[i]) & 0x7fffffff;
    max = m > max ? m : max;
  }
  return std::bit_cast<float>(max);
}

// Copies of core/dtypes.h with internal linkage: an inline function compiled here for a newer instruction set must not
// become the one that the linker keeps for everybody.
inline int CeilLog2Of(float x) { return static_cast<int>((std::bit_cast<uint32_t>(x) - 1u) >> 23) + 1 - 127; }

inline float ScaleOf(uint8_t b) {
  return std::bit_cast<float>(b == 0 ? 0x00400000u : (b == 255 ? 0x7fc00000u : uint32_t{b} << 23));
}

inline float Pow2(int e) { return std::bit_cast<float>(static_cast<uint32_t>(e + 127) << 23); }

void FakeFp8(const float* x, int64_t n, float* out) {
  for (int64_t b = 0; b < n; b += 32) {
    const float amax = AbsMax<32>(x + b);
    const int e = CeilLog2Of((amax < 1e-4f ? 1e-4f : amax) * (1.0f / 448.0f));
    const float inverse = Pow2(-e), s = Pow2(e);
    for (int i = 0; i < 32; ++i) out[b + i] = RoundE4M3(x[b + i] * inverse) * s;
  }
}

void FakeFp4Pow2(const float* x, int64_t n, float* out) {
  constexpr float kFloor = 0x1.8p-124f;  // 6 * 2^-126
  for (int64_t b = 0; b < n; b += 32) {
    const float amax = AbsMax<32>(x + b);
    const int e = CeilLog2Of((amax < kFloor ? kFloor : amax) * (1.0f / 6.0f));
    const float inverse = Pow2(-e), s = Pow2(e);
    for (int i = 0; i < 32; ++i) out[b + i] = RoundE2M1(x[b + i] * inverse) * s;
  }
}

inline float Fp4Scale(float amax) {
  constexpr float kFloor = 0x1.8p-7f;  // 6 * 2^-9
  return RoundE4M3((amax < kFloor ? kFloor : amax) / 6.0f);
}

void FakeFp4E4M3(const float* x, int64_t n, float* out) {
  for (int64_t b = 0; b < n; b += 16) {
    const float s = Fp4Scale(AbsMax<16>(x + b));
    for (int i = 0; i < 16; ++i) out[b + i] = RoundE2M1(x[b + i] / s) * s;
  }
}

template <bool kRound>
void RmsNormT(const float* x, const float* w, int64_t n, float eps, float* out) {
  const float r = 1.0f / std::sqrt(SumSquares(x, n) / static_cast<float>(n) + eps);
  for (int64_t i = 0; i < n; ++i) out[i] = Round<kRound>(w[i] * (x[i] * r));
}
void RmsNorm(const float* x, const float* w, int64_t n, float eps, bool round, float* out) {
  round ? RmsNormT<true>(x, w, n, eps, out) : RmsNormT<false>(x, w, n, eps, out);
}

void RoundRow(const float* x, int64_t n, float* out) {
  for (int64_t i = 0; i < n; ++i) out[i] = Round<true>(x[i]);
}

void ScaleRow(float* x, int64_t n, float factor, bool round) {
  if (round) {
    for (int64_t i = 0; i < n; ++i) x[i] = Round<true>(x[i] * factor);
  } else {
    for (int64_t i = 0; i < n; ++i) x[i] *= factor;
  }
}

template <bool kRound>
void CollapseT(const float* trunk, const float* pre, int streams, int64_t n, float* __restrict out) {
  if (streams == 4) {
    const float p0 = pre[0], p1 = pre[1], p2 = pre[2], p3 = pre[3];
    for (int64_t c = 0; c < n; ++c)
      out[c] = Round<kRound>(((p0 * trunk[c] + p1 * trunk[n + c]) + p2 * trunk[2 * n + c]) + p3 * trunk[3 * n + c]);
    return;
  }
  for (int64_t c = 0; c < n; ++c) {
    float sum = pre[0] * trunk[c];
    for (int j = 1; j < streams; ++j) sum += pre[j] * trunk[j * n + c];
    out[c] = Round<kRound>(sum);
  }
}
void Collapse(const float* trunk, const float* pre, int streams, int64_t n, bool round, float* out) {
  round ? CollapseT<true>(trunk, pre, streams, n, out) : CollapseT<false>(trunk, pre, streams, n, out);
}

template <bool kRound>
void ExpandT(const float* __restrict y, const float* post, const float* comb, int streams, int64_t n, float* trunk) {
  if (streams == 4) {
    float* __restrict t0 = trunk;
    float* __restrict t1 = trunk + n;
    float* __restrict t2 = trunk + 2 * n;
    float* __restrict t3 = trunk + 3 * n;
    float m[16], q[4];
    std::memcpy(m, comb, sizeof(m));
    std::memcpy(q, post, sizeof(q));
    for (int64_t c = 0; c < n; ++c) {
      const float a = t0[c], b = t1[c], d = t2[c], e = t3[c], v = y[c];
      t0[c] = Round<kRound>(q[0] * v + (((m[0] * a + m[4] * b) + m[8] * d) + m[12] * e));
      t1[c] = Round<kRound>(q[1] * v + (((m[1] * a + m[5] * b) + m[9] * d) + m[13] * e));
      t2[c] = Round<kRound>(q[2] * v + (((m[2] * a + m[6] * b) + m[10] * d) + m[14] * e));
      t3[c] = Round<kRound>(q[3] * v + (((m[3] * a + m[7] * b) + m[11] * d) + m[15] * e));
    }
    return;
  }
  float old[8];
  for (int64_t c = 0; c < n; ++c) {
    for (int j = 0; j < streams; ++j) old[j] = trunk[j * n + c];
    for (int k = 0; k < streams; ++k) {
      float sum = comb[k] * old[0];
      for (int j = 1; j < streams; ++j) sum += comb[j * streams + k] * old[j];
      trunk[k * n + c] = Round<kRound>(post[k] * y[c] + sum);
    }
  }
}
void Expand(const float* y, const float* post, const float* comb, int streams, int64_t n, bool round, float* trunk) {
  round ? ExpandT<true>(y, post, comb, streams, n, trunk) : ExpandT<false>(y, post, comb, streams, n, trunk);
}

void StreamMean(const float* trunk, int streams, int64_t n, bool round, float* out) {
  const float m = static_cast<float>(streams);
  for (int64_t c = 0; c < n; ++c) {
    float sum = trunk[c];
    for (int j = 1; j < streams; ++j) sum += trunk[j * n + c];
    out[c] = round ? Round<true>(sum / m) : sum / m;
  }
}

void AddScaled(const float* __restrict value, float gate, int64_t n, bool round, float* __restrict x) {
  if (round) {
    for (int64_t i = 0; i < n; ++i) x[i] = Round<true>(x[i] + gate * value[i]);
  } else {
    for (int64_t i = 0; i < n; ++i) x[i] = x[i] + gate * value[i];
  }
}

void Add(const float* __restrict x, int64_t n, float* __restrict sum) {
  for (int64_t i = 0; i < n; ++i) sum[i] += x[i];
}

template <bool kRound>
void RotateT(float* x, int64_t n, const float* cos, const float* sin, float sign) {
  for (int64_t i = 0; i < n / 2; ++i) {
    const float a = x[2 * i], b = x[2 * i + 1], c = cos[i], s = sign * sin[i];
    x[2 * i] = Round<kRound>(a * c - b * s);
    x[2 * i + 1] = Round<kRound>(a * s + b * c);
  }
}
void Rotate(float* x, int64_t n, const float* cos, const float* sin, bool inverse, bool round) {
  const float sign = inverse ? -1.0f : 1.0f;
  round ? RotateT<true>(x, n, cos, sin, sign) : RotateT<false>(x, n, cos, sin, sign);
}

void Swiglu(const float* gate, const float* up, int64_t n, float limit, float weight, bool round, float* out) {
  for (int64_t i = 0; i < n; ++i) {
    float g = gate[i], u = up[i];
    if (limit > 0) {
      g = g < limit ? g : limit;
      u = u < -limit ? -limit : (u > limit ? limit : u);
    }
    const float y = weight * (g / (1.0f + std::exp(-g)) * u);
    out[i] = round ? Round<true>(y) : y;
  }
}

inline float DecodeE4M3(uint32_t b) {
  const uint32_t magnitude = b & 0x7fu;
  const float normal = std::bit_cast<float>((magnitude << 20) + (120u << 23));
  const float small = static_cast<float>(static_cast<int32_t>(magnitude)) * 0x1p-9f;
  const float v = magnitude < 8 ? small : normal;
  return std::bit_cast<float>(std::bit_cast<uint32_t>(v) | ((b & 0x80u) << 24));
}

inline float DecodeE2M1(uint32_t c) {
  const uint32_t magnitude = c & 7u;
  const float normal = std::bit_cast<float>((magnitude << 22) + (126u << 23));
  const float small = static_cast<float>(static_cast<int32_t>(magnitude)) * 0.5f;
  const float v = magnitude < 2 ? small : normal;
  return std::bit_cast<float>(std::bit_cast<uint32_t>(v) | ((c & 8u) << 28));
}

// Codes of values that lie on the grid.
inline uint32_t CodeE4M3(float v) {
  const uint32_t bits = std::bit_cast<uint32_t>(v);
  const uint32_t magnitude = bits & 0x7fffffffu;
  const uint32_t normal = (magnitude - (120u << 23)) >> 20;
  const uint32_t small = static_cast<uint32_t>(static_cast<int32_t>(std::bit_cast<float>(magnitude) * 512.0f));
  return (magnitude < 0x3c800000u ? small : normal) | ((bits >> 24) & 0x80u);
}

inline uint32_t CodeE2M1(float v) {
  const uint32_t bits = std::bit_cast<uint32_t>(v);
  const uint32_t magnitude = bits & 0x7fffffffu;
  const uint32_t normal = (magnitude - (126u << 23)) >> 22;
  const uint32_t small = static_cast<uint32_t>(static_cast<int32_t>(std::bit_cast<float>(magnitude) * 2.0f));
  return (magnitude < 0x3f800000u ? small : normal) | ((bits >> 28) & 8u);
}

// Runs of 16 values. The vectorised forms give the bits of the plain ones (RowOps.DecodesEveryCode).
#if defined(__AVX2__)
inline void DecodeE4M3Run(const uint8_t* data, float s, float* out) {
  // The seven bits as exponent and mantissa of a float32 too small by 2^120; subnormal codes are subnormals there, too. Two
  // products, because 2^120 times the scale may overflow; the first is exact.
  const __m256i mask = _mm256_set1_epi32(static_cast<int>(0x87f00000u));
  const __m256 scale = _mm256_set1_ps(s);
  for (int i = 0; i < 16; i += 8) {
    const __m256i wide = _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(data + i)));
    const __m256i bits = _mm256_and_si256(_mm256_slli_epi32(wide, 20), mask);
    _mm256_storeu_ps(out + i, _mm256_mul_ps(_mm256_mul_ps(_mm256_castsi256_ps(bits), _mm256_set1_ps(0x1p120f)), scale));
  }
}
inline __m256 DecodeE2M1x8(__m128i codes, __m256 scale) {
  // Values come from a table of eight floats by the low three bits; bit 3 is the sign.
  const __m256i c = _mm256_cvtepu8_epi32(codes);
  const __m256 table = _mm256_setr_ps(0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f);
  const __m256 value = _mm256_permutevar8x32_ps(table, c);
  const __m256i sign = _mm256_slli_epi32(_mm256_srli_epi32(c, 3), 31);
  return _mm256_mul_ps(_mm256_or_ps(value, _mm256_castsi256_ps(sign)), scale);
}
inline void DecodeE2M1Run(const uint8_t* data, float s, float* out) {
  const __m128i pairs = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(data));
  const __m128i mask = _mm_set1_epi8(15);
  const __m128i codes = _mm_unpacklo_epi8(_mm_and_si128(pairs, mask), _mm_and_si128(_mm_srli_epi16(pairs, 4), mask));
  const __m256 scale = _mm256_set1_ps(s);
  _mm256_storeu_ps(out, DecodeE2M1x8(codes, scale));
  _mm256_storeu_ps(out + 8, DecodeE2M1x8(_mm_unpackhi_epi64(codes, codes), scale));
}
#elif defined(__aarch64__)
inline void DecodeE4M3Run(const uint8_t* data, float s, float* out) {
  // As above: exponent and mantissa of a float32 too small by 2^120, exactly corrected before the scale.
  const int8x16_t codes = vld1q_s8(reinterpret_cast<const int8_t*>(data));
  const int16x8_t words[2] = {vmovl_s8(vget_low_s8(codes)), vmovl_high_s8(codes)};
  const uint32x4_t mask = vdupq_n_u32(0x87f00000u);
  for (int i = 0; i < 16; i += 4) {
    const int16x8_t word = words[i / 8];
    const int32x4_t wide = i % 8 == 0 ? vmovl_s16(vget_low_s16(word)) : vmovl_high_s16(word);
    const float32x4_t v = vreinterpretq_f32_u32(vandq_u32(vreinterpretq_u32_s32(vshlq_n_s32(wide, 20)), mask));
    vst1q_f32(out + i, vmulq_n_f32(vmulq_n_f32(v, 0x1p120f), s));
  }
}
inline void DecodeE2M1Run(const uint8_t* data, float s, float* out) {
  // The upper half of the float32 of each code; the lower half is zero.
  const uint8x16_t low_table = {0, 0, 0x80, 0xc0, 0, 0x40, 0x80, 0xc0, 0, 0, 0x80, 0xc0, 0, 0x40, 0x80, 0xc0};
  const uint8x16_t high_table = {0, 0x3f, 0x3f, 0x3f, 0x40, 0x40, 0x40, 0x40, 0x80, 0xbf, 0xbf, 0xbf, 0xc0, 0xc0, 0xc0, 0xc0};
  const uint8x8_t bytes = vld1_u8(data);
  const uint8x16_t codes = vcombine_u8(vzip1_u8(vand_u8(bytes, vdup_n_u8(15)), vshr_n_u8(bytes, 4)),
                                       vzip2_u8(vand_u8(bytes, vdup_n_u8(15)), vshr_n_u8(bytes, 4)));
  const uint8x16_t low = vqtbl1q_u8(low_table, codes);
  const uint8x16_t high = vqtbl1q_u8(high_table, codes);
  const uint16x8_t words[2] = {vreinterpretq_u16_u8(vzip1q_u8(low, high)), vreinterpretq_u16_u8(vzip2q_u8(low, high))};
  for (int i = 0; i < 2; ++i) {
    const float32x4_t first = vreinterpretq_f32_u32(vshll_n_u16(vget_low_u16(words[i]), 16));
    const float32x4_t second = vreinterpretq_f32_u32(vshll_high_n_u16(words[i], 16));
    vst1q_f32(out + i * 8, vmulq_n_f32(first, s));
    vst1q_f32(out + i * 8 + 4, vmulq_n_f32(second, s));
  }
}
#else
inline void DecodeE4M3Run(const uint8_t* data, float s, float* out) {
  for (int i = 0; i < 16; ++i) out[i] = DecodeE4M3(data[i]) * s;
}
inline void DecodeE2M1Run(const uint8_t* data, float s, float* out) {
  for (int i = 0; i < 8; ++i) {
    out[2 * i] = DecodeE2M1(data[i] & 15u) * s;
    out[2 * i + 1] = DecodeE2M1(data[i] >> 4) * s;
  }
}
#endif

void DecodeKey(device::KeyFormat format, const uint8_t* data, const uint8_t* scale, int64_t n, float* __restrict out) {
  switch (format) {
    case device::KeyFormat::kFloat:
      std::memcpy(out, data, static_cast<size_t>(n) * sizeof(float));
      return;
    case device::KeyFormat::kMxFp8:
      for (int64_t r = 0; r < n; r += 16) DecodeE4M3Run(data + r, ScaleOf(scale[r / 32]), out + r);
      return;
    case device::KeyFormat::kFp4E4m3:
      for (int64_t r = 0; r < n; r += 16) DecodeE2M1Run(data + r / 2, DecodeE4M3(scale[r / 16]), out + r);
      return;
    case device::KeyFormat::kFp4Pow2:
      for (int64_t r = 0; r < n; r += 16) DecodeE2M1Run(data + r / 2, ScaleOf(scale[r / 32]), out + r);
      return;
  }
}

// The power-of-two formats take values that already lie on their grid: finding the scale again from the largest magnitude
// loses nothing, a smaller scale than the first rounding used still holds every value. With an e4m3 scale that is not so
// (in its subnormal range a second scale can be too small for the largest value), so kFp4E4m3 takes the values before
// rounding and stores what fake_fp4_e4m3 gives for them.
void EncodeKey(device::KeyFormat format, const float* x, int64_t n, uint8_t* data, uint8_t* scale) {
  switch (format) {
    case device::KeyFormat::kFloat:
      std::memcpy(data, x, static_cast<size_t>(n) * sizeof(float));
      return;
    case device::KeyFormat::kMxFp8:
      for (int64_t b = 0; b < n; b += 32) {
        const float amax = AbsMax<32>(x + b);
        const int e = CeilLog2Of((amax < 1e-4f ? 1e-4f : amax) * (1.0f / 448.0f));
        scale[b / 32] = static_cast<uint8_t>(e + 127);
        const float inverse = Pow2(-e);
        for (int i = 0; i < 32; ++i) {
          data[b + i] = static_cast<uint8_t>(CodeE4M3(x[b + i] * inverse));
        }
      }
      return;
    case device::KeyFormat::kFp4E4m3:
      for (int64_t b = 0; b < n; b += 16) {
        const float s = Fp4Scale(AbsMax<16>(x + b));
        scale[b / 16] = static_cast<uint8_t>(CodeE4M3(s));
        for (int i = 0; i < 8; ++i)
          data[b / 2 + i] = static_cast<uint8_t>(CodeE2M1(RoundE2M1(x[b + 2 * i] / s)) |
                                                 (CodeE2M1(RoundE2M1(x[b + 2 * i + 1] / s)) << 4));
      }
      return;
    case device::KeyFormat::kFp4Pow2:
      for (int64_t b = 0; b < n; b += 32) {
        constexpr float kFloor = 0x1.8p-124f;
        const float amax = AbsMax<32>(x + b);
        const int e = CeilLog2Of((amax < kFloor ? kFloor : amax) * (1.0f / 6.0f));
        scale[b / 32] = static_cast<uint8_t>(e + 127);
        const float inverse = Pow2(-e);
        for (int i = 0; i < 16; ++i)
          data[b / 2 + i] = static_cast<uint8_t>(CodeE2M1(x[b + 2 * i] * inverse) |
                                                 (CodeE2M1(x[b + 2 * i + 1] * inverse) << 4));
      }
      return;
  }
}

void DecodeBf16(const uint8_t* x, int64_t n, float* out) {
  for (int64_t i = 0; i < n; ++i) {
    uint16_t bits;
    std::memcpy(&bits, x + 2 * i, sizeof(bits));
    out[i] = std::bit_cast<float>(uint32_t{bits} << 16);
  }
}

constexpr RowOps kRowOps = {
    .rms_norm = RmsNorm,
    .fake_fp8 = FakeFp8,
    .fake_fp4_pow2 = FakeFp4Pow2,
    .fake_fp4_e4m3 = FakeFp4E4M3,
    .round_bf16 = RoundRow,
    .scale = ScaleRow,
    .collapse = Collapse,
    .expand = Expand,
    .stream_mean = StreamMean,
    .sum_squares = SumSquares,
    .dot = Dot,
    .dot3 = Dot3,
    .dots = Dots,
    .sinkhorn = Sinkhorn,
    .add_scaled = AddScaled,
    .add = Add,
    .rotate = Rotate,
    .swiglu = Swiglu,
    .decode_key = DecodeKey,
    .encode_key = EncodeKey,
    .decode_bf16 = DecodeBf16,
};

}  // namespace
}  // namespace deepinfer::cpu
