// SPDX-License-Identifier: Apache-2.0
//
// What a memory budget gives: experts that stay in memory, how often a token finds its experts there, and tokens per second
// (docs/internals/streaming.md has the formula). Routing counts as uniform: real routing is skewed, so hits are more.
#pragma once

#include <cstdint>

#include "model/config.h"
#include "model/inventory.h"
#include "model/memory_estimate.h"

namespace deepinfer::model {

struct StreamingForecast {
  int64_t num_experts = 0;
  int64_t num_slots = 0;
  int64_t expert_bytes = 0;
  double hit_rate = 1;
  double disk_bytes_per_token = 0;
  double memory_bytes_per_token = 0;
  double tokens_per_s = 0;  // 0: a rate is missing
};

// disk_rate, memory_rate: bytes per second; packed: experts come from a pack file.
StreamingForecast ForecastStreaming(const ModelConfig& config, const InventorySummary& summary, const Residency& residency, bool packed,
                                    double disk_rate, double memory_rate);

// For a known number of slots and hit rate.
double ForecastTokensPerSecond(double memory_bytes, double disk_bytes, double disk_rate, double memory_rate);

}  // namespace deepinfer::model
