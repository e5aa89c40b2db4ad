// SPDX-License-Identifier: Apache-2.0
#define DI_SAMPLING_ISA scalar
#include "sampling/row_ops-inl.h"

namespace deepinfer::sampling {
extern const RowOps kRowOpsScalar;
const RowOps kRowOpsScalar = scalar::MakeRowOps("scalar");
}  // namespace deepinfer::sampling
