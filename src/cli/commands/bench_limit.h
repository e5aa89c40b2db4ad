// SPDX-License-Identifier: Apache-2.0
//
// Decode steps of a GPU beside what its memory allows, and what the same share of the limit would give with all layers of the
// released model.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/json.h"
#include "engine/load.h"

namespace deepinfer::cli {

// Null where the device works in the machine's own memory (bench steps has the limits of that). The rate is that of copies inside
// the GPU's memory, bytes read and bytes written, measured now. Experts of a step: as many as uniform routing meets.
Json DecodeLimit(engine::Engine& engine, int64_t batch, int64_t context, double step_s);
std::vector<std::string> DecodeLimitLines(const Json& limit);

}  // namespace deepinfer::cli
