// SPDX-License-Identifier: Apache-2.0
//
// What the engine publishes in a metrics registry (operations.md 7 and kv-store.md 14 of the specification). Every series is
// made at once, so that it is there with 0 before anything happens. Called by the output thread.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "core/metrics.h"
#include "deepinfer/output.h"
#include "engine/step_sample.h"

namespace deepinfer::engine {

struct BuildLabels {
  std::string version, git, backend;
};

class EngineMetrics {
 public:
  // `registry` outlives the object.
  EngineMetrics(MetricsRegistry& registry, const std::string& role, const BuildLabels& build);

  // `sample` after `previous`; gauges only if it carries no step. `kv_usage` is 0..1.
  void OnStep(const StepSample& sample, const StepSample& previous, double kv_usage);
  // Of a request: its prompt is counted here.
  void OnFirstToken(double seconds, int64_t num_tokens, int64_t num_cached);
  void OnToken() { output_tokens_.Add(); }
  void OnTokenGap(double seconds) { token_gap_.Observe(seconds); }
  void OnSampleEnd(FinishReason reason);
  void OnRequestEnd(double seconds) { request_seconds_.Observe(seconds); }

 private:
  static constexpr size_t kNumReasons = static_cast<size_t>(FinishReason::kStructuredOutputFailed) + 1;

  Gauge& requests_running_;
  Gauge& kv_usage_;
  Gauge& kv_hit_ratio_;
  Histogram& request_seconds_;
  std::array<Histogram*, 3> first_token_;  // none, low, high
  Histogram& token_gap_;
  std::array<Counter*, 2> prompt_tokens_;  // miss, hit
  Counter& output_tokens_;
  std::array<Histogram*, 2> step_seconds_;  // prefill, decode
  Histogram& batch_tokens_;
  Counter& draft_tokens_;
  Counter& accepted_tokens_;
  Histogram& accept_len_;
  std::array<Counter*, kNumReasons> finish_;
  std::array<Counter*, 2> lookup_tokens_;  // miss, hit
  Counter& evicted_blocks_;

  // Of the hit ratio: this minute and the one before.
  struct Lookups {
    int64_t num_tokens = 0, num_hit = 0;
  };
  std::array<Lookups, 2> minutes_;
  int64_t minute_begin_ns_ = -1;
};

}  // namespace deepinfer::engine
