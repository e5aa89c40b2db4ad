// SPDX-License-Identifier: Apache-2.0
// Compiled with -mavx2 -mfma (CMakeLists.txt); used only where the machine has both.
#define DI_SAMPLING_ISA avx2
#include "sampling/row_ops-inl.h"

namespace deepinfer::sampling {
extern const RowOps kRowOpsAvx2;
const RowOps kRowOpsAvx2 = avx2::MakeRowOps("avx2");
}  // namespace deepinfer::sampling
