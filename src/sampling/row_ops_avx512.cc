// SPDX-License-Identifier: Apache-2.0
// Compiled for AVX-512 F, VL, DQ, BW with 512-bit vectors (CMakeLists.txt); used only where the machine has them.
#define DI_SAMPLING_ISA avx512
#include "sampling/row_ops-inl.h"

namespace deepinfer::sampling {
extern const RowOps kRowOpsAvx512;
const RowOps kRowOpsAvx512 = avx512::MakeRowOps("avx512");
}  // namespace deepinfer::sampling
