// SPDX-License-Identifier: Apache-2.0
//
// Group quantisers of activations and caches, one group at a time (model.md 3 and 6.2 of the
// specification): FP8 with a power-of-two scale per 32, FP4 with a power-of-two scale per 32 (index
// keys and queries), FP4 with an e4m3 scale per 16 (compressed keys). These scalar functions are
// the definition; vector code is tested against them bit for bit, and they against
// tests/golden/model/formats.safetensors.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>

#include "core/dtypes.h"

namespace deepinfer {

inline float MaxAbs(std::span<const float> x) {
  float amax = 0;
  for (const float v : x) amax = std::max(amax, std::fabs(v));
  return amax;
}

// The ue8m0 byte of the smallest power of two >= max(|x|, 1e-4) / 448; the quotient is a product
// with float32(1/448).
inline uint8_t Fp8GroupScale(std::span<const float> x) {
  const float amax = std::max(MaxAbs(x), 1e-4f);
  return static_cast<uint8_t>(CeilLog2(amax * (1.0f / 448.0f)) + 127);
}

// codes[i] = e4m3(x[i] / scale). Returns the scale byte.
inline uint8_t QuantizeFp8Group(std::span<const float> x, uint8_t* codes) {
  const uint8_t scale = Fp8GroupScale(x);
  const float s = E8M0ToFloat(scale);
  for (size_t i = 0; i < x.size(); ++i) codes[i] = FloatToE4M3(x[i] / s);
  return scale;
}

// The ue8m0 byte of the smallest power of two >= max(|x|, 6 * 2^-126) / 6, by float32(1/6).
inline uint8_t Fp4GroupScale(std::span<const float> x) {
  const float amax = std::max(MaxAbs(x), 0x1.8p-124f);
  return static_cast<uint8_t>(CeilLog2(amax * (1.0f / 6.0f)) + 127);
}

// One e2m1 code per byte in codes[i] (not packed). Returns the scale byte.
inline uint8_t QuantizeFp4Group(std::span<const float> x, uint8_t* codes) {
  const uint8_t scale = Fp4GroupScale(x);
  const float s = E8M0ToFloat(scale);
  for (size_t i = 0; i < x.size(); ++i) codes[i] = FloatToE2M1(x[i] / s);
  return scale;
}

// The e4m3 code of max(|x|, 6 * 2^-9) / 6 (a true division), for groups of 16.
inline uint8_t Fp4GroupScaleE4M3(std::span<const float> x) {
  return FloatToE4M3(std::max(MaxAbs(x), 0x1.8p-7f) / 6.0f);
}

// As QuantizeFp4Group with the e4m3 scale: codes[i] = e2m1(x[i] / scale).
inline uint8_t QuantizeFp4GroupE4M3(std::span<const float> x, uint8_t* codes) {
  const uint8_t scale = Fp4GroupScaleE4M3(x);
  const float s = E4M3ToFloat(scale);
  for (size_t i = 0; i < x.size(); ++i) codes[i] = FloatToE2M1(x[i] / s);
  return scale;
}

// Element 2j in the low nibble of byte j, element 2j + 1 in the high one. num_codes is even.
inline void PackNibbles(const uint8_t* codes, int64_t num_codes, uint8_t* packed) {
  for (int64_t j = 0; j < num_codes / 2; ++j)
    packed[j] = static_cast<uint8_t>(codes[2 * j] | (codes[2 * j + 1] << 4));
}

}  // namespace deepinfer
