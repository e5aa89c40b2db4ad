// SPDX-License-Identifier: Apache-2.0
//
// Dispatch of the index scores; plain declarations for files compiled for other instruction sets.
#pragma once

#include <cstdint>

#include "backends/cpu/kernels/index.h"

namespace deepinfer::cpu {

#if defined(__x86_64__)
void IndexScoreFp4Avx2(const IndexScorer::View& q, const uint8_t* data, const uint8_t* scales, int num_keys, float* scores);
void IndexScoreFp4Avx512(const IndexScorer::View& q, const uint8_t* data, const uint8_t* scales, int num_keys, float* scores);
void BlockMaxima8Avx2(const float* scores, int num_blocks, float* maxima);
void IndexScoreFloatAvx2(const IndexScorer::View& q, const float* keys, int num_keys, float* scores);
#elif defined(__aarch64__)
void IndexScoreFp4Neon(const IndexScorer::View& q, const uint8_t* data, const uint8_t* scales, int num_keys, float* scores);
void IndexScoreFp4NeonBf16(const IndexScorer::View& q, const uint8_t* data, const uint8_t* scales, int num_keys, float* scores);
void IndexScoreFloatNeon(const IndexScorer::View& q, const float* keys, int num_keys, float* scores);
#endif

inline constexpr int kMaxIndexHeads = 256;
inline constexpr int kMaxIndexDim = 512;

}  // namespace deepinfer::cpu
