// SPDX-License-Identifier: Apache-2.0
//
// Checks of SamplingParams and the derived values the sampler works with.
#pragma once

#include <cstdint>

#include "core/status.h"
#include "deepinfer/sampling_params.h"

namespace deepinfer::sampling {

// The first bad field as kInvalidArgument with `field` set; the message names field, value and range. vocab_size 0: ids
// are checked for their sign only (before a model is known).
Status ValidateSamplingParams(const SamplingParams& params, int vocab_size = 0);

// After validation: max_tokens 0 -> 1; greedy -> temperature 0, top_p 1, top_k off, min_p 0; biases clamped.
SamplingParams Normalized(SamplingParams params);

}  // namespace deepinfer::sampling
