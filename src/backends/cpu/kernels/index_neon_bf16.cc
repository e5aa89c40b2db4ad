// SPDX-License-Identifier: Apache-2.0
#if defined(__aarch64__)
#include <arm_neon.h>

#include "backends/cpu/kernels/index_kernels.h"

namespace deepinfer::cpu {
namespace {

#include "backends/cpu/kernels/index_neon-inl.h"

}  // namespace

void IndexScoreFp4NeonBf16(const IndexScorer::View& q, const uint8_t* data, const uint8_t* scales, int num_keys, float* scores) {
  ScoreFp4(q, data, scales, num_keys, scores);
}

}  // namespace deepinfer::cpu
#endif
