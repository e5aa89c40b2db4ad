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

}  // namespace

#if defined(__x86_64__)
void AttendAvx2(const AttendTask& task);
void AttendAvx512(const AttendTask& task);
#endif

void Attend(const AttendTask& task) {
  DI_DCHECK(task.list.dim % kPanelLanes == 0) << "head_dim " << task.list.dim;
#if defined(__x86_64__)
  switch (ActiveCpuIsa()) {
    case CpuIsa::kAvx512:
      return AttendAvx512(task);
    case CpuIsa::kAvx2:
      return AttendAvx2(task);
    case CpuIsa::kScalar:
      break;
  }
#endif
  AttendKernel(task);
}

float AttentionExp(float x) { return Exp8(x - F8{})[0]; }

}  // namespace deepinfer::cpu
