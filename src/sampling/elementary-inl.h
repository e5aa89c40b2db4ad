// SPDX-License-Identifier: Apache-2.0
//
// The project's own float32 exp, log and log1p. Every decision of the sampler goes through them, so their bits must be the
// same everywhere: each operation is a single IEEE operation (std::fma is one), in the order written here. The file is
// included once per instruction set with DI_SAMPLING_ISA naming the namespace; branch-free, so loops over it vectorise.
// Largest errors over all float32 inputs (tests/sampling/elementary_test.cc): see the functions. The coefficients come from
// fit_elementary.py.
// NOLINTBEGIN(build/header_guard): included several times on purpose.

#include <bit>
#include <cmath>
#include <cstdint>

namespace deepinfer::sampling::DI_SAMPLING_ISA {

// e^x, at most 1.02 ulp (subnormal results included). x <= -104 gives 0, x > 88.72 gives infinity. NaN gives NaN.
static inline float Exp(float x) {
  const float clamped = x < -104.0f ? -104.0f : (x > 89.0f ? 89.0f : x);
  // n = round(x / ln 2): adding 1.5 * 2^23 leaves the rounded integer in the low bits.
  const float shifted = std::fma(clamped, 0x1.715476p+0f, 0x1.8p+23f);
  const float n = shifted - 0x1.8p+23f;
  const int32_t k = std::bit_cast<int32_t>(shifted) - 0x4b400000;
  float r = std::fma(n, -0x1.62e400p-1f, clamped);
  r = std::fma(n, -0x1.7f7d1cp-20f, r);
  float p = 0x1.6ac74ep-10f;
  p = std::fma(p, r, 0x1.123de0p-7f);
  p = std::fma(p, r, 0x1.555858p-5f);
  p = std::fma(p, r, 0x1.55548cp-3f);
  p = std::fma(p, r, 0x1.fffffcp-2f);
  const float y = std::fma(p * r, r, r) + 1.0f;
  // Two exact-or-once-rounded multiplications reach subnormal results.
  const int32_t half = k >> 1;
  const float scale0 = std::bit_cast<float>((half + 127) << 23);
  const float scale1 = std::bit_cast<float>((k - half + 127) << 23);
  return y * scale0 * scale1;
}

// Natural logarithm of a normal x > 0, at most 1.11 ulp.
static inline float LogNormal(float x) {
  const int32_t bits = std::bit_cast<int32_t>(x);
  const int32_t k = (bits - 0x3f3504f3) >> 23;  // x = 2^k * m, sqrt(1/2) <= m < sqrt(2)
  const float f = std::bit_cast<float>(bits - static_cast<int32_t>(static_cast<uint32_t>(k) << 23)) - 1.0f;
  const float kf = static_cast<float>(k);
  const float z = f * f;
  float p = 0x1.95e2c4p-5f;
  p = std::fma(p, f, -0x1.b83926p-4f);
  p = std::fma(p, f, 0x1.efd2dcp-4f);
  p = std::fma(p, f, -0x1.0106e2p-3f);
  p = std::fma(p, f, 0x1.230418p-3f);
  p = std::fma(p, f, -0x1.552f10p-3f);
  p = std::fma(p, f, 0x1.99a542p-3f);
  p = std::fma(p, f, -0x1.000070p-2f);
  p = std::fma(p, f, 0x1.555548p-2f);
  float y = std::fma(kf, 0x1.7f7d1cp-20f, f * z * p);
  y = std::fma(-0.5f, z, y);
  return std::fma(kf, 0x1.62e400p-1f, f + y);
}

// log(1 + y) for -0.5 <= y <= 0, at most 1.6 ulp: the logarithm of the rounded sum plus the rounding error over the sum.
static inline float Log1pSmall(float y) {
  const float u = 1.0f + y;
  const float lost = y - (u - 1.0f);
  return LogNormal(u) + lost / u;
}

// -log(u) of a 32-bit word, u = (2 * word + 1) * 2^-33, without losing the end near u = 1.
static inline float Exponential(uint32_t word) {
  const bool is_low = word < 0x80000000u;
  const uint32_t folded = is_low ? word : ~word;
  // 2 * folded + 1 needs 32 bits; its conversion rounds once.
  const float x = static_cast<float>(2 * folded + 1) * 0x1p-33f;
  const float from_log = -LogNormal(x);
  const float from_log1p = -Log1pSmall(-x);
  return is_low ? from_log : from_log1p;
}

// trunc(p * 2^31) for 0 <= p < 2.
static inline uint32_t FixedPoint(float p) {
  const float scaled = p * 0x1p31f;
  const bool is_high = scaled >= 0x1p31f;
  const int32_t low = static_cast<int32_t>(is_high ? scaled - 0x1p31f : scaled);
  return static_cast<uint32_t>(low) ^ (is_high ? 0x80000000u : 0u);
}

}  // namespace deepinfer::sampling::DI_SAMPLING_ISA
// NOLINTEND
