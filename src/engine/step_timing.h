// SPDX-License-Identifier: Apache-2.0
//
// One step's times, for timelines, benches and statistics; nanoseconds of the core's clock.
#pragma once

#include <cstdint>

#include "engine/step_plan.h"

namespace deepinfer::engine {

struct StepTiming {
  uint64_t number = 0;
  StepKind kind = StepKind::kNone;
  int64_t num_rows = 0, num_tokens = 0;
  int64_t schedule_begin_ns = 0, schedule_end_ns = 0;  // planned and queued
  int64_t run_begin_ns = 0, run_end_ns = 0;            // on the compute thread
  int64_t process_begin_ns = 0, process_end_ns = 0;    // results read, events handed on
};

}  // namespace deepinfer::engine
