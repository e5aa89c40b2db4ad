// SPDX-License-Identifier: Apache-2.0
//
// Questions that the measurements of drafts ask: drafts of random text are worth nothing, so random prompts say nothing.
#pragma once

#include <cstdint>
#include <vector>

#include "core/status.h"
#include "engine/load.h"

namespace deepinfer::cli {

// Prompts of short conversations in the model's chat form, thinking off; the first `count` of an endless list.
Result<std::vector<std::vector<int32_t>>> DraftQuestions(const engine::Engine& engine, int64_t count);

}  // namespace deepinfer::cli
