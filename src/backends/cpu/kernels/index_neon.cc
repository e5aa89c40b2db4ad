// SPDX-License-Identifier: Apache-2.0
#if defined(__aarch64__)
#include <arm_neon.h>

#include "backends/cpu/kernels/index_kernels.h"

namespace deepinfer::cpu {
namespace {

#include "backends/cpu/kernels/index_neon-inl.h"

template <int kKeys>
DI_INLINE void ScoreFloatKeys(const IndexScorer::View& q, const float* keys, float* scores) {
  float32x4_t lanes[kKeys][2];
#pragma GCC unroll 4
  for (int i = 0; i < kKeys; ++i) lanes[i][0] = lanes[i][1] = vdupq_n_f32(0);
  for (int h = 0; h < q.padded_heads; h += 8) {
    float32x4_t dot[kKeys][2];
#pragma GCC unroll 4
    for (int i = 0; i < kKeys; ++i) dot[i][0] = dot[i][1] = vdupq_n_f32(0);
    for (int d = 0; d < q.dim; ++d) {
      const float* query = q.values + int64_t{d} * q.padded_heads + h;
      const float32x4_t q0 = vld1q_f32(query), q1 = vld1q_f32(query + 4);
#pragma GCC unroll 4
      for (int i = 0; i < kKeys; ++i) {
        const float key = keys[i * q.dim + d];
        dot[i][0] = vaddq_f32(dot[i][0], vmulq_n_f32(q0, key));
        dot[i][1] = vaddq_f32(dot[i][1], vmulq_n_f32(q1, key));
      }
    }
    AddWeightedHeads<kKeys>(q.weights + h, dot, lanes);
  }
  for (int i = 0; i < kKeys; ++i) scores[i] = Fold(lanes[i][0], lanes[i][1]);
}

}  // namespace

void IndexScoreFp4Neon(const IndexScorer::View& q, const uint8_t* data, const uint8_t* scales, int num_keys, float* scores) {
  ScoreFp4(q, data, scales, num_keys, scores);
}

void IndexScoreFloatNeon(const IndexScorer::View& q, const float* keys, int num_keys, float* scores) {
  int i = 0;
  for (; i + 4 <= num_keys; i += 4) ScoreFloatKeys<4>(q, keys + int64_t{i} * q.dim, scores + i);
  for (; i < num_keys; ++i) ScoreFloatKeys<1>(q, keys + int64_t{i} * q.dim, scores + i);
}

}  // namespace deepinfer::cpu
#endif
