// SPDX-License-Identifier: Apache-2.0
//
// What a memory budget gives: experts that stay in memory, how often a token finds its experts there, and tokens per second
// (decode_estimate.h has the formula). Routing counts as uniform: real routing is skewed, so hits are more. One forecast for
// `doctor`, `inspect` and the streaming benchmark.
#pragma once

#include <cstdint>

#include "model/config.h"
#include "model/decode_estimate.h"
#include "model/inventory.h"
#include "model/memory_estimate.h"

namespace deepinfer::model {

struct StreamingForecast {
  int64_t num_experts = 0;
  int64_t num_slots = 0;
  int64_t expert_bytes = 0;
  double hit_rate = 1;
  DecodeEstimate decode;  // no speed: a rate is missing
};

// Share of reads that hide behind a step's arithmetic, measured: nearly all of a layer's missing experts are known only when
// their layer needs them.
inline constexpr double kStreamingOverlap = 0;

// work: one token of one sequence. packed: experts come from a pack file.
StreamingForecast ForecastStreaming(const ModelConfig& config, const InventorySummary& summary, const Residency& residency, bool packed,
                                    const StepWork& work, const MachineRates& rates);

}  // namespace deepinfer::model
