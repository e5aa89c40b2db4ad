// SPDX-License-Identifier: Apache-2.0
#include "backends/cpu/row_ops.h"

#include "backends/cpu/row_ops-inl.h"

namespace deepinfer::cpu {

const RowOps& RowOpsAvx2();
const RowOps& RowOpsAvx512();

const RowOps& RowOpsFor(CpuIsa isa) {
#if defined(__x86_64__)
  if (isa == CpuIsa::kAvx512 || isa == CpuIsa::kAmx) return RowOpsAvx512();
  if (isa == CpuIsa::kAvx2) return RowOpsAvx2();
#endif
  (void)isa;
  return kRowOps;
}

}  // namespace deepinfer::cpu
