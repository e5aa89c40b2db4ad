// SPDX-License-Identifier: Apache-2.0
#include "model/streaming_forecast.h"

#include <algorithm>

#include "device/expert_slots.h"

namespace deepinfer::model {

double ForecastTokensPerSecond(double memory_bytes, double disk_bytes, double disk_rate, double memory_rate) {
  if (memory_rate <= 0 || (disk_bytes > 0 && disk_rate <= 0)) return 0;
  const double seconds = memory_bytes / memory_rate + (disk_bytes > 0 ? disk_bytes / disk_rate : 0);
  return seconds > 0 ? 1 / seconds : 0;
}

StreamingForecast ForecastStreaming(const ModelConfig& config, const InventorySummary& summary, const Residency& residency, bool packed,
                                    double disk_rate, double memory_rate) {
  StreamingForecast f;
  f.expert_bytes = ExpertBytes(config, summary);
  f.num_experts = residency.expert_bytes / std::max<int64_t>(f.expert_bytes, 1);
  f.num_slots = f.num_experts;
  if (residency.streams_experts)
    f.num_slots = device::PlanExpertSlots(residency.expert_budget, std::max<int64_t>(f.expert_bytes, 1), packed ? 0 : f.expert_bytes, f.num_experts).num_slots;
  f.hit_rate = f.num_experts > 0 ? static_cast<double>(f.num_slots) / static_cast<double>(f.num_experts) : 1;
  const double per_token = static_cast<double>(int64_t{config.num_hidden_layers} * config.num_experts_per_tok * f.expert_bytes);
  f.disk_bytes_per_token = per_token * (1 - f.hit_rate);
  f.memory_bytes_per_token = static_cast<double>(DenseBytesPerToken(summary)) + per_token;
  f.tokens_per_s = ForecastTokensPerSecond(f.memory_bytes_per_token, f.disk_bytes_per_token, disk_rate, memory_rate);
  return f;
}

}  // namespace deepinfer::model
