// SPDX-License-Identifier: Apache-2.0
//
// One processed step in numbers, and the scheduler's state after it. Filled by the scheduler thread without allocating,
// handed to the output thread with the step's outputs.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "engine/scheduler.h"
#include "engine/step_timing.h"
#include "model/flops.h"

namespace deepinfer::engine {

inline constexpr size_t kMaxDraftPositions = 16;  // drafts behind that many count as the last one

struct StepSample {
  StepTiming timing;   // kind kNone: no step, only the state
  int64_t now_ns = 0;
  int64_t sum_qk = 0, max_k = 0, min_k = 0;  // over the rows: tokens computed times tokens visible
  model::FlopsCounts flops;
  // Decode rows: drafts that were verified and accepted, by their position in the row.
  std::array<int32_t, kMaxDraftPositions> num_verified{}, num_accepted{};
  int64_t num_verify_rows = 0, num_verify_requests = 0;
  double confidence_error = 0;
  SchedulerStats stats;
  int64_t num_running = 0, num_waiting = 0, num_partial = 0;
  int64_t num_used_blocks = 0, num_used_slots = 0, num_evicted_blocks = 0;
};

// The rows of `plan`; `flops` null: not estimated. `drops_prompt_rows`: decoder replay computes the consumer half for the
// last prompt tokens only.
void SampleRows(const StepPlan& plan, const model::FlopsModel* flops, bool drops_prompt_rows, StepSample& sample);
// The drafts of a decode step.
void SampleDrafts(const StepPlan& plan, const StepResult& result, StepSample& sample);
// What the scheduler says between two steps.
void SampleState(const Scheduler& scheduler, int64_t now_ns, StepSample& sample);

}  // namespace deepinfer::engine
