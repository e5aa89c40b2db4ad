// SPDX-License-Identifier: Apache-2.0
//
// From settings to the engine: the program's Config (flags, file, environment) to EngineOptions, and EngineOptions to the
// limits and scheduler options of a model (specification, engine 4 and 5). Pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "constrain/compile_service.h"
#include "core/config.h"
#include "core/status.h"
#include "deepinfer/engine_options.h"
#include "engine/scheduler.h"

namespace deepinfer::engine {

// kReference: no prefix cache, no decoder replay, the numbers of the reference; of the library and the commands that compare.
// kProduction: what a server does.
enum class Defaults { kReference, kProduction };

// Sets what `config` says; what it leaves unset becomes the default of `defaults`. The model's name is not touched.
void ApplyConfig(const Config& config, Defaults defaults, EngineOptions& options);

// Drafts per step; `draft_block`: what the checkpoint's draft head makes, 0 = it has none. Errors name num_drafts.
Result<int> NumDrafts(const EngineOptions& options, int draft_block);
// "1.0" or "1,0.9,0.8": one number, or one for each draft.
Result<std::vector<float>> ParseConfidenceTemperatures(const std::string& text, int num_drafts);

struct EngineLimits {
  int64_t max_model_len = 0;
  int64_t max_num_batched_tokens = 0;
  int64_t prompt_limit = 0;
  int64_t runtime_max_model_len = 0;  // above every position that a step may touch
  int64_t block_table_width = 0;      // blocks per sequence, a multiple of 64
};

// Errors name the field. `longest_model_len`: the model's own maximum.
Result<EngineLimits> DeriveLimits(const EngineOptions& options, int64_t longest_model_len, int num_drafts);

Result<CacheMode> ParseCacheMode(const std::string& name);

Result<constrain::CompileServiceOptions> MakeGrammarOptions(const EngineOptions& options, const Clock& clock);

// What the scheduler needs to know of a loaded model.
struct ModelFacts {
  int64_t max_model_len = 0;
  int64_t window = 128;
  int64_t decoder_keep = 0;
  int vocab_size = 0;
  int draft_block = 0;  // tokens that the draft head makes; 0 = there is none
};

// Everything but the sizes that depend on memory: num_blocks and the number of STATE records.
Result<SchedulerOptions> MakeSchedulerOptions(const EngineOptions& options, const ModelFacts& model);

}  // namespace deepinfer::engine
