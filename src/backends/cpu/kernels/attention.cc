// SPDX-License-Identifier: Apache-2.0
//
// Dispatch, and the kernel for any processor.
#include "backends/cpu/kernels/attention.h"

#include "core/check.h"
#include "core/cpu_features.h"

namespace deepinfer::cpu {
namespace {

constexpr int kLanes = 8;
constexpr int kPvHeads = 4;
#define DI_FMA(a, b, c) ((a) * (b) + (c))

#include "backends/cpu/kernels/attention-inl.h"

void ScoreRange(const AttendTask& task, int first, int last) { ScoresOfKeys(task, first, last); }
void WeightRange(const AttendTask& task, int first, int last) { WeightsOfHeads(task, first, last); }
void ValueRange(const AttendTask& task, int first, int last) { ValuesOfChannels(task, first, last); }

constexpr AttendKernels kAttendScalar = {ScoreRange, WeightRange, ValueRange};

}  // namespace

const AttendKernels& ActiveAttendKernels() {
#if defined(__x86_64__)
  switch (ActiveCpuIsa()) {
    case CpuIsa::kAvx512:
    case CpuIsa::kAmx:
      return kAttendAvx512;
    case CpuIsa::kAvx2:
      return kAttendAvx2;
    default:
      break;
  }
#elif defined(__aarch64__)
  if (ActiveCpuIsa() >= CpuIsa::kNeon) return kAttendNeon;
#endif
  return kAttendScalar;
}

float AttentionExp(float x) { return Exp8(x - F8{})[0]; }

}  // namespace deepinfer::cpu
