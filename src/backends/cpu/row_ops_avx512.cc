// SPDX-License-Identifier: Apache-2.0
#if defined(__x86_64__)
#include "backends/cpu/row_ops-inl.h"

namespace deepinfer::cpu {

const RowOps& RowOpsAvx512();
const RowOps& RowOpsAvx512() { return kRowOps; }

}  // namespace deepinfer::cpu
#endif
