// SPDX-License-Identifier: Apache-2.0
#include "backends/cpu/row_ops.h"

#include "backends/cpu/row_ops-inl.h"

namespace deepinfer::cpu {

const RowOps& RowOpsAvx2();
const RowOps& RowOpsAvx512();

const RowOps& RowOpsFor(Isa isa) {
#if defined(__x86_64__)
  if (isa == Isa::kAvx512) return RowOpsAvx512();
  if (isa == Isa::kAvx2) return RowOpsAvx2();
#endif
  (void)isa;
  return kRowOps;
}

Isa DetectIsa() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
      __builtin_cpu_supports("avx512dq"))
    return Isa::kAvx512;
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return Isa::kAvx2;
#endif
  return Isa::kScalar;
}

}  // namespace deepinfer::cpu
