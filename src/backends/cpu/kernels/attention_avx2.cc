// SPDX-License-Identifier: Apache-2.0
#include <immintrin.h>

#include "backends/cpu/kernels/attention.h"

namespace deepinfer::cpu {
namespace {

constexpr int kLanes = 8;
constexpr int kPvHeads = 6;
#define DI_FMA(a, b, c) _mm256_fmadd_ps(a, b, c)

#include "backends/cpu/kernels/attention-inl.h"

void ScoreRange(const AttendTask& task, int first, int last) { ScoresOfKeys(task, first, last); }
void WeightRange(const AttendTask& task, int first, int last) { WeightsOfHeads(task, first, last); }
void ValueRange(const AttendTask& task, int first, int last) { ValuesOfChannels(task, first, last); }

}  // namespace

const AttendKernels kAttendAvx2 = {ScoreRange, WeightRange, ValueRange};

}  // namespace deepinfer::cpu
