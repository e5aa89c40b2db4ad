// SPDX-License-Identifier: Apache-2.0
//
// Inverse frequencies of the rotary embedding: the plain table (ratio-0 layers, draft head) and the YaRN table (all vectors
// of layers with a compress ratio). Where the configuration is the released one the canonical bit patterns are returned.
#pragma once

#include <vector>

#include "model/config.h"

namespace deepinfer::model {

// qk_rope_head_dim / 2 float32 values each (model.md 6.1 of the specification).
std::vector<float> PlainInverseFrequencies(const ModelConfig& config);
std::vector<float> YarnInverseFrequencies(const ModelConfig& config);

}  // namespace deepinfer::model
