// SPDX-License-Identifier: Apache-2.0
//
// Where stored values stop being numbers.
#pragma once

#include <cstdint>

#include "core/dtypes.h"

namespace deepinfer {

// Index of the first of the elements in `bytes` that is NaN or infinite, or -1. FP4 and integer codes are always finite. Reads
// at the speed of memory.
int64_t FirstNonFinite(DType dtype, const uint8_t* bytes, int64_t num_bytes);

}  // namespace deepinfer
