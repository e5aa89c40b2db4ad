// SPDX-License-Identifier: Apache-2.0
//
// EngineStats: from step samples and delivered outputs to statistics lines and metrics. Everything here runs on the output
// thread; the scheduler thread only fills samples, and lines are written by StatsWriter's thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/metrics.h"
#include "deepinfer/output.h"
#include "engine/engine_metrics.h"
#include "engine/stats_writer.h"
#include "engine/expert_metrics.h"
#include "engine/step_sample.h"
#include "model/flops.h"

namespace deepinfer::engine {

struct StatsOptions {
  bool is_prompt_engine = false;       // prefill only: a fifth of the interval
  int rank = 0, device_idx = 0;
  std::shared_ptr<const model::FlopsModel> flops;  // null: FLOPs are 0
  bool drops_prompt_rows = false;      // decoder replay compact
  double bf16_peak_flops = 0;          // of the device, per second; 0 = unknown, no MFU
  StatsWriter::Sink sink;              // null: the log
  MetricsRegistry* registry = nullptr;  // null: nothing is published
  std::function<device::ExpertStreamStats()> expert_stats;  // of a device that streams experts; null otherwise
  std::string role = "normal";
  BuildLabels build;
};

// Steps between two lines; 0 = none.
int64_t LoggingInterval(int64_t interval, bool is_prompt_engine);

// Rates over a window whose first sample only marks the start.
class RateWindow {
 public:
  void Add(int64_t now_ns, int64_t num_prompt, int64_t num_output);
  void Clear() { *this = RateWindow(); }
  double steps_per_s() const { return Rate(num_steps_); }
  double prompt_tokens_per_s() const { return Rate(num_prompt_); }
  double output_tokens_per_s() const { return Rate(num_output_); }

 private:
  double Rate(int64_t count) const;

  int64_t first_ns_ = -1, last_ns_ = 0;
  int64_t num_steps_ = 0, num_prompt_ = 0, num_output_ = 0;
};

// A request's times. The output thread's, but for the construction.
struct RequestTimes {
  int64_t submit_ns = 0;
  int64_t num_prompt = 0;
  int num_open = 0;       // samples that have not ended
  bool has_first = false;
  struct Sample {
    int64_t last_token_ns = 0;
    int64_t num_tokens = 0;
  };
  std::vector<Sample> samples;
};

class EngineStats {
 public:
  // A line at step 0 and then every `logging_interval` steps; 0 = none. `scheduler`: sizes that usage is compared with.
  EngineStats(int64_t logging_interval, StatsOptions options, const SchedulerOptions& scheduler);

  const StatsOptions& options() const { return options_; }

  void OnStep(const StepSample& sample);
  // An output of a request: a token, the end of a sample, or both. `num_cached` counts with a request's first token.
  void OnOutput(RequestTimes& times, int sample, bool has_token, int64_t num_cached, FinishReason reason, int64_t now_ns);
  // How long it took to hand on the outputs of one wake-up.
  void OnDelivered(int64_t duration_ns) { output_.Add(duration_ns); }

 private:
  void Emit(const StepSample& sample);

  StatsOptions options_;
  const int64_t interval_;
  const int64_t max_batched_tokens_;
  const size_t num_draft_positions_;
  const double num_blocks_, num_slots_;
  std::unique_ptr<EngineMetrics> metrics_;  // null without registry
  std::unique_ptr<ExpertMetrics> expert_metrics_;  // null without registry or streamed experts
  std::unique_ptr<StatsWriter> writer_;     // null without lines

  StepSample previous_;
  SchedulerStats line_base_;  // totals at the last line
  RateWindow all_, window_;
  // Since the last line.
  StepTimer engine_step_, schedule_, forward_, process_, output_;
  StatsLine sums_;
  model::FlopsCounts flops_;
  std::array<int64_t, kMaxDraftPositions> num_verified_{}, num_accepted_{};
};

}  // namespace deepinfer::engine
