// SPDX-License-Identifier: Apache-2.0
#include <immintrin.h>

#include "backends/cpu/kernels/attention.h"

namespace deepinfer::cpu {
namespace {

constexpr int kLanes = 8;
constexpr int kPvHeads = 4;
#define DI_FMA(a, b, c) _mm256_fmadd_ps(a, b, c)

#include "backends/cpu/kernels/attention-inl.h"

}  // namespace

void AttendAvx2(const AttendTask& task);
void AttendAvx2(const AttendTask& task) { AttendKernel(task); }

}  // namespace deepinfer::cpu
