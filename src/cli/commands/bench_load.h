// SPDX-License-Identifier: Apache-2.0
//
// A closed loop of requests on the engine: so many in flight, a new one as soon as one ends; and what the engine's steps say
// about it. For the bench commands.
#pragma once

#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cli/command.h"
#include "core/status.h"
#include "engine/async_engine.h"
#include "engine/load.h"

namespace deepinfer::cli {

// Collects the times of steps; Observe is called by the engine's scheduler thread.
class StepRecorder {
 public:
  void Observe(const engine::StepTiming& step) {
    std::lock_guard lock(mutex_);
    steps_.push_back(step);
  }
  // For LoadEngineFor; the recorder outlives the engine.
  std::function<void(engine::LoadOptions&)> Installer() {
    return [this](engine::LoadOptions& options) { options.on_step = [this](const engine::StepTiming& step) { Observe(step); }; };
  }
  // Those since the last call.
  std::vector<engine::StepTiming> Take() {
    std::lock_guard lock(mutex_);
    return std::exchange(steps_, {});
  }

 private:
  std::mutex mutex_;
  std::vector<engine::StepTiming> steps_;  // GUARDED_BY(mutex_)
};

struct LoadSpec {
  std::string workload = "fixed";
  int64_t num_requests = 1;
  int64_t input_tokens = 1;
  int64_t output_tokens = 1;
  int64_t concurrency = 1;
};

// From --requests, --input-tokens, --output-tokens, --batch and --workload. A preset is scaled down to the model's context;
// lengths that were given and do not fit are an error.
Result<LoadSpec> LoadSpecOf(const Invocation& invocation, int64_t max_model_len, int64_t default_concurrency);

struct LoadRequest {
  std::vector<int32_t> prompt_ids;
  int64_t output_tokens = 1;
  std::string cache_salt;
  std::optional<StructuredOutput> so_args = {};
  bool ignore_eos = true;   // false: it may end before output_tokens
  double temperature = 0;   // above 0: with the seed
  uint64_t seed = 0;
};

struct LoadResult {
  double seconds = 0;
  double idle_s = 0;  // no request was in the engine
  std::vector<double> ttft_ms, tpot_ms;  // of each request; time per token after the first one, for those with several
  std::vector<double> itl_ms;            // between neighbouring tokens of a request
  int64_t prompt_tokens = 0, cached_tokens = 0, output_tokens = 0;
  std::vector<engine::StepTiming> steps;

  double output_tokens_per_s() const { return static_cast<double>(output_tokens) / seconds; }
  double prompt_tokens_per_s() const { return static_cast<double>(prompt_tokens) / seconds; }
};

// kCancelled on Ctrl-C.
Result<LoadResult> RunLoad(engine::AsyncEngine& engine, StepRecorder& recorder, const std::vector<LoadRequest>& requests, int64_t concurrency);

struct StepFigures {
  int64_t num_prefill_steps = 0, num_decode_steps = 0;
  double rows_per_decode_step = 0;
  double host_us_per_sequence_step = 0;  // scheduler thread's time in decode steps, by rows
  // Share of the time from the first step to the last in which the device waited although there was work.
  double exposed_host_share = 0;
  // The same between neighbouring decode steps only: what asynchronous steps are to hide.
  double exposed_decode_share = 0;
};
StepFigures FiguresOf(const std::vector<engine::StepTiming>& steps, double idle_s);

// The engine must run that many together.
Status CheckFits(engine::AsyncEngine& engine, const LoadSpec& spec);

}  // namespace deepinfer::cli
