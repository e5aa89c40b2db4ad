// SPDX-License-Identifier: Apache-2.0
//
// A timeline of steps in Chrome's trace format: one lane for the scheduler thread, one for the compute thread, so that
// planning step N+1 can be seen beside the run of step N. Open it with chrome://tracing or Perfetto.
#pragma once

#include <span>
#include <string>

#include "engine/engine_core.h"

namespace deepinfer::engine {

std::string ChromeTrace(std::span<const StepTiming> steps);

}  // namespace deepinfer::engine
