// SPDX-License-Identifier: Apache-2.0
//
// One processed step in numbers, and the scheduler's state after it. Filled by the scheduler thread without allocating,
// handed to the output thread with the step's outputs.
#pragma once

#include <cstdint>

#include "engine/scheduler.h"
#include "engine/step_timing.h"
#include "model/flops.h"

namespace deepinfer::engine {

struct StepSample {
  StepTiming timing;   // kind kNone: no step, only the state
  int64_t now_ns = 0;
  int64_t sum_qk = 0, max_k = 0, min_k = 0;  // over the rows: tokens computed times tokens visible
  model::FlopsCounts flops;
  SchedulerStats stats;
  int64_t num_running = 0, num_waiting = 0, num_partial = 0;
  int64_t num_used_blocks = 0, num_used_slots = 0, num_evicted_blocks = 0;
};

// The rows of `plan`; `flops` null: not estimated. `drops_prompt_rows`: decoder replay computes the consumer half for the
// last prompt tokens only.
void SampleRows(const StepPlan& plan, const model::FlopsModel* flops, bool drops_prompt_rows, StepSample& sample);
// What the scheduler says between two steps.
void SampleState(const Scheduler& scheduler, int64_t now_ns, StepSample& sample);

}  // namespace deepinfer::engine
