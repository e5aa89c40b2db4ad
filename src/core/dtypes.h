// SPDX-License-Identifier: Apache-2.0
//
// The number formats of the checkpoint and the caches, one value at a time: bf16, FP8 e4m3 (e4m3fn), ue8m0 scales and
// FP4 e2m1. These scalar functions are the definition; vector code is tested against them bit for bit. Encoders round to
// nearest, ties to even, and saturate. Source: docs of the formats in checkpoint.md section 4 of the specification, OCP MX.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <optional>
#include <string_view>

namespace deepinfer {

enum class DType { kF32, kBf16, kF16, kF8E4M3, kF8E8M0, kI8, kU8, kI16, kI32, kI64, kBool };

// Bytes of one element as stored (packed FP4 is declared I8 by the checkpoint: one byte = two values).
int64_t DTypeBytes(DType dtype);
// The safetensors spelling: "F32", "BF16", "F8_E4M3", ...
std::string_view DTypeName(DType dtype);
// The inverse of DTypeName; nothing for a spelling the checkpoint rules do not accept ("F64", "f32").
std::optional<DType> ParseDType(std::string_view name);

inline float Bf16ToFloat(uint16_t bits) { return std::bit_cast<float>(uint32_t{bits} << 16); }

// Round to nearest even; NaN stays NaN (quiet), infinities pass through.
inline uint16_t FloatToBf16(float value) {
  uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((bits >> 16) | 0x40u);
  bits += 0x7fffu + ((bits >> 16) & 1u);
  return static_cast<uint16_t>(bits >> 16);
}

inline float RoundToBf16(float value) { return Bf16ToFloat(FloatToBf16(value)); }

// 2^(b-127); b = 0 gives the subnormal 2^-127; b = 255 is NaN (loaders reject it).
inline float E8M0ToFloat(uint8_t b) {
  if (b == 0) return std::bit_cast<float>(uint32_t{0x00400000u});
  if (b == 255) return std::bit_cast<float>(uint32_t{0x7fc00000u});
  return std::bit_cast<float>(uint32_t{b} << 23);
}

// 1-4-3, bias 7, no infinity, NaN = S.1111.111.
inline float E4M3ToFloat(uint8_t b) {
  const uint32_t sign = uint32_t{b & 0x80u} << 24;
  const uint32_t exponent = (b >> 3) & 15u;
  const uint32_t mantissa = b & 7u;
  if (exponent == 15 && mantissa == 7) return std::bit_cast<float>(sign | 0x7fc00000u);
  if (exponent == 0) {
    const float magnitude = static_cast<float>(mantissa) * 0.001953125f;  // 2^-9
    return std::bit_cast<float>(std::bit_cast<uint32_t>(magnitude) | sign);
  }
  return std::bit_cast<float>(sign | ((exponent + 120u) << 23) | (mantissa << 20));
}

// Saturates at +-448. NaN gives the NaN code.
inline uint8_t FloatToE4M3(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint8_t sign = static_cast<uint8_t>((bits >> 24) & 0x80u);
  const uint32_t magnitude_bits = bits & 0x7fffffffu;
  if (magnitude_bits > 0x7f800000u) return static_cast<uint8_t>(sign | 0x7fu);
  const float magnitude = std::bit_cast<float>(magnitude_bits);
  if (magnitude >= 448.0f) return static_cast<uint8_t>(sign | 0x7eu);
  if (magnitude < 0.015625f) {  // below 2^-6: the subnormal grid with step 2^-9
    // Adding 1.5 * 2^14 makes the FPU round to a multiple of 2^-9 in the current (nearest even) mode.
    const float shifted = magnitude + 24576.0f;
    const float rounded = shifted - 24576.0f;
    return static_cast<uint8_t>(sign | static_cast<uint8_t>(rounded * 512.0f));
  }
  uint32_t rounded = magnitude_bits + 0x7ffffu + ((magnitude_bits >> 20) & 1u);
  const uint32_t exponent = (rounded >> 23) - 120u;
  const uint32_t mantissa = (rounded >> 20) & 7u;
  return static_cast<uint8_t>(sign | (exponent << 3) | mantissa);
}

inline constexpr float kE2M1Values[16] = {0.0f,  0.5f,  1.0f,  1.5f,  2.0f,  3.0f,  4.0f,  6.0f,
                                          -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f};

inline float E2M1ToFloat(uint8_t code) { return kE2M1Values[code & 15u]; }

// Nearest of 0, .5, 1, 1.5, 2, 3, 4, 6, ties to the even code, saturating; the sign bit is kept (-0 too).
inline uint8_t FloatToE2M1(float value) {
  const float a = std::fabs(value);
  const int code = (a > 0.25f) + (a >= 0.75f) + (a > 1.25f) + (a >= 1.75f) + (a > 2.5f) + (a >= 3.5f) + (a > 5.0f);
  return static_cast<uint8_t>(code | (std::signbit(value) ? 8 : 0));
}

// Exponent e of the smallest power of two 2^e >= x, for a positive normal x.
inline int CeilLog2(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  return static_cast<int>((bits - 1u) >> 23) + 1 - 127;
}

}  // namespace deepinfer
