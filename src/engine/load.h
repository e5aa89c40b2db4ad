// SPDX-License-Identifier: Apache-2.0
//
// LoadEngine: from the name of a model to something that generates. Reads configuration and tokenizer, opens the
// checkpoint, compares the memory needed with what the machine has, then loads the weights onto the device. The Engine
// owns all parts.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "core/clock.h"
#include "core/status.h"
#include "deepinfer/engine_options.h"
#include "engine/async_engine.h"
#include "engine/generator.h"
#include "model/config.h"
#include "model/model.h"
#include "model/numerics.h"
#include "text/tokenizer.h"

namespace deepinfer::engine {

// The public options and what only this layer can ask for.
struct LoadOptions : EngineOptions {
  int64_t cache_tokens = 0;       // of the single-request path; 0 = the cache grows on demand
  bool with_draft = false;        // load the draft head
  bool use_fp4_sparse_kv = true;
  bool check_memory = true;       // refuse before loading when the estimate exceeds the memory that is available
  const Clock* clock = &Clock::Steady();
  // Called by the scheduler thread of the asynchronous engine after each step. Null: not measured.
  std::function<void(const StepTiming&)> on_step;
  // Where the asynchronous engine publishes its metrics; outlives it. Null: nowhere.
  MetricsRegistry* registry = nullptr;
  BuildLabels build;
};

class Engine {
 public:
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  Generator& generator();
  // Made by the first call; its caches stay allocated. It shares the model with the generator: before the generator or the
  // model is used again, AsyncEngine::core().WaitIdle() must have returned. Errors: kResourceExhausted.
  Result<AsyncEngine*> async_engine();
  model::Model& model();
  const model::ModelConfig& config() const;
  const text::Tokenizer& tokenizer() const;
  const std::string& model_dir() const;
  double load_s() const;

 private:
  friend Result<std::unique_ptr<Engine>> LoadEngine(LoadOptions options);
  Engine();
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

// Errors: kBadModel (missing, damaged or unsupported files), kResourceExhausted (memory), kInvalidArgument (options).
Result<std::unique_ptr<Engine>> LoadEngine(LoadOptions options);

}  // namespace deepinfer::engine
