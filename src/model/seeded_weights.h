// SPDX-License-Identifier: Apache-2.0
//
// Seeded random weights in the storage formats of the checkpoint. A value depends on the seed, the
// tensor's name and its index only, so tensors can be filled in parallel and in pieces. Deviations
// follow the usual 1/sqrt(fan_in), so that activations of a network of such weights stay in range;
// scales vary from group to group, so that kernels are tested.
#pragma once

#include <cstdint>
#include <span>

#include "model/inventory.h"

namespace deepinfer::model {

// Fills bytes [begin, begin + out.size()) of the tensor; both are multiples of the element size.
void FillSeeded(const RequiredTensor& tensor, uint64_t seed, int64_t begin, std::span<uint8_t> out);

}  // namespace deepinfer::model
