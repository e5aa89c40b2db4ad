// SPDX-License-Identifier: Apache-2.0
//
// Packed weights on the device: their geometry as constants, and the registers of a 16 x 32 piece for the tensor cores. Every
// weight, scale included, is exact in bf16: a value of FP4 or FP8 has at most four significant bits and a power of two.
#pragma once

#include "backends/cuda/kernels/ptx.cuh"
#include "backends/cuda/kernels/weights.h"

namespace deepinfer::cuda {

constexpr int kPackWarps = 16;

template <PackedKind kKind_, int kSlices_, int kGroups_, int kChunk_>
struct Geometry {
  static constexpr PackedKind kKind = kKind_;
  static constexpr int kSlices = kSlices_;
  static constexpr int kGroups = kGroups_;
  static constexpr int kChunk = kChunk_;
  static constexpr int kRowTiles = kPackWarps / kSlices;
  static constexpr int kChunks = kGroups / kChunk;
  static constexpr int kSegmentCols = kSlices * kGroups * 32;
  static constexpr int kScaleWords = (kChunk + 1) / 2;  // FP4: a lane's words of scales
  static constexpr int kGroupBytes = kKind == PackedKind::kFp8 ? 512 : kKind == PackedKind::kFp4 ? 256 : 1024;
  static constexpr int kScaleBytes = kKind == PackedKind::kFp8 ? 16 : kKind == PackedKind::kFp4 ? 32 * kScaleWords : 0;
  static constexpr int kChunkBytes = kChunk * kGroupBytes + kScaleBytes;
  static constexpr int64_t kUnitBytes = int64_t{kPackWarps} * kChunks * kChunkBytes;
  static_assert(kGroups % kChunk == 0 && kPackWarps % kSlices == 0 && kChunkBytes % 16 == 0);
  static_assert(kKind != PackedKind::kFp8 || kChunk <= 8);
};

// e2m1 pairs: in each half of a word four codes lie so that three of them need at most one shift (weights.cu).
__device__ __forceinline__ void DecodeFp4(uint32_t w, uint32_t scale, uint32_t& p0, uint32_t& p1, uint32_t& p2, uint32_t& p3) {
  constexpr uint32_t kMask = 0x81C081C0u;
  p0 = MulBf16x2(w & kMask, scale);
  p1 = MulBf16x2((w << 3) & kMask, scale);
  p2 = MulBf16x2((w << 6) & kMask, scale);
  p3 = MulBf16x2(((w << 1) & 0x80008000u) | ((w >> 5) & 0x01000100u) | ((w >> 4) & 0x00C000C0u), scale);
}

// e4m3 pairs: two codes in each half.
__device__ __forceinline__ void DecodeFp8(uint32_t w, uint32_t scale, uint32_t& p0, uint32_t& p1) {
  p0 = MulBf16x2(w & 0x87F087F0u, scale);
  p1 = MulBf16x2(((w << 4) & 0x80F080F0u) | ((w >> 4) & 0x07000700u), scale);
}

// Byte `i` of a word of scales as a pair of bf16 powers of two.
__device__ __forceinline__ uint32_t ScalePair(uint32_t word, int i) {
  return __byte_perm(word, 0, static_cast<uint32_t>(0x4040 + 0x0101 * i)) << 7;
}

// Operand registers of the two 16 x 16 steps of one group: the `at`-th of `codes`, with the scales of group `group` of the chunk.
template <typename G>
__device__ __forceinline__ void DecodeGroup(const uint8_t* codes, int at, const uint8_t* scales, int group, int lane,
                                            uint32_t (&a)[2][4]) {
  if constexpr (G::kKind == PackedKind::kFp4) {
    const uint2 w = *reinterpret_cast<const uint2*>(codes + at * 256 + lane * 8);
    const uint32_t sc = *reinterpret_cast<const uint32_t*>(scales + ((lane >> 2) * G::kScaleWords + group / 2) * 4);
    DecodeFp4(w.x, ScalePair(sc, 2 * (group & 1)), a[0][0], a[0][2], a[1][0], a[1][2]);
    DecodeFp4(w.y, ScalePair(sc, 2 * (group & 1) + 1), a[0][1], a[0][3], a[1][1], a[1][3]);
  } else if constexpr (G::kKind == PackedKind::kFp8) {
    const uint4 w = *reinterpret_cast<const uint4*>(codes + at * 512 + lane * 16);
    const uint32_t sc = *reinterpret_cast<const uint32_t*>(scales + group / 2 * 4);
    const uint32_t s0 = ScalePair(sc, 2 * (group & 1)), s1 = ScalePair(sc, 2 * (group & 1) + 1);
    DecodeFp8(w.x, s0, a[0][0], a[0][2]);
    DecodeFp8(w.y, s1, a[0][1], a[0][3]);
    DecodeFp8(w.z, s0, a[1][0], a[1][2]);
    DecodeFp8(w.w, s1, a[1][1], a[1][3]);
  } else {
    const uint4 s0 = *reinterpret_cast<const uint4*>(codes + at * 1024 + lane * 16);
    const uint4 s1 = *reinterpret_cast<const uint4*>(codes + at * 1024 + 512 + lane * 16);
    a[0][0] = s0.x, a[0][1] = s0.y, a[0][2] = s0.z, a[0][3] = s0.w;
    a[1][0] = s1.x, a[1][1] = s1.y, a[1][2] = s1.z, a[1][3] = s1.w;
  }
}

}  // namespace deepinfer::cuda
