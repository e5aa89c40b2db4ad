// SPDX-License-Identifier: Apache-2.0
//
// One point of `bench throughput` and `bench sweep`: a load, repeated, with asynchronous steps or in turn with and without.
#pragma once

#include <vector>

#include "cli/commands/bench_common.h"
#include "cli/commands/bench_load.h"
#include "core/progress.h"

namespace deepinfer::cli {

// Of one kind of steps, over the repetitions.
struct PointSide {
  std::vector<double> out_tok_s, in_tok_s, seconds;
  std::vector<double> ttft_ms, tpot_ms;  // of all requests
  std::vector<double> host_us, exposed, exposed_decode;  // by repetition
  int64_t prompt_tokens = 0, cached_tokens = 0;
  double rows_per_decode_step = 0;
  int64_t num_prefill_steps = 0, num_decode_steps = 0;

  void Add(const LoadResult& result);
};

struct PointResult {
  PointSide on, off;  // asynchronous steps; the other one is empty unless asked for
  PairedRatio::Summary ratio;  // of on to off, if both ran
  const PointSide& main() const { return on.seconds.empty() ? off : on; }
};

Result<PointResult> MeasurePoint(const Invocation& invocation, engine::Engine& engine, engine::AsyncEngine& async, StepRecorder& recorder,
                                 const LoadSpec& spec, RunRecord& run, Progress* progress);
Json PointRecord(const Invocation& invocation, const RunRecord& run, const LoadSpec& spec, const PointResult& point);
void PrintPoint(Invocation& invocation, const LoadSpec& spec, const PointResult& point, const Json& record);

}  // namespace deepinfer::cli
