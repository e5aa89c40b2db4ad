// SPDX-License-Identifier: Apache-2.0
#if defined(__x86_64__)
#include "backends/cpu/row_ops-inl.h"

namespace deepinfer::cpu {

const RowOps& RowOpsAvx2();
const RowOps& RowOpsAvx2() { return kRowOps; }

}  // namespace deepinfer::cpu
#endif
