// SPDX-License-Identifier: Apache-2.0
//
// What the commands that look inside the model share: the engine loaded as the options say, and token ids checked against
// its vocabulary.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "cli/command.h"
#include "cli/engine_options.h"
#include "engine/load.h"

namespace deepinfer::cli {

// `adjust` (optional) changes what the options say, last.
Result<std::unique_ptr<engine::Engine>> LoadEngineFor(const Invocation& invocation, bool with_draft,
                                                      Defaults defaults = Defaults::kReference,
                                                      const std::function<void(engine::LoadOptions&)>& adjust = {});

// The token ids of --ids; an error when there are none or one is outside the vocabulary.
Result<std::vector<int32_t>> IdsOption(const Invocation& invocation, const model::ModelConfig& config);

Status CheckIds(std::span<const int32_t> ids, const model::ModelConfig& config);

}  // namespace deepinfer::cli
