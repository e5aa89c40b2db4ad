// SPDX-License-Identifier: Apache-2.0
#include "model/streaming_forecast.h"

#include <algorithm>

#include "device/expert_slots.h"

namespace deepinfer::model {

StreamingForecast ForecastStreaming(const ModelConfig& config, const InventorySummary& summary, const Residency& residency, bool packed,
                                    const StepWork& work, const MachineRates& rates) {
  StreamingForecast f;
  f.expert_bytes = ExpertBytes(config, summary);
  f.num_experts = residency.expert_bytes / std::max<int64_t>(f.expert_bytes, 1);
  f.num_slots = f.num_experts;
  if (residency.streams_experts)
    f.num_slots = device::PlanExpertSlots(residency.expert_budget, std::max<int64_t>(f.expert_bytes, 1), packed ? 0 : f.expert_bytes, f.num_experts).num_slots;
  f.hit_rate = f.num_experts > 0 ? static_cast<double>(f.num_slots) / static_cast<double>(f.num_experts) : 1;
  f.decode = EstimateDecode(work, 1, rates, f.hit_rate, kStreamingOverlap);
  return f;
}

}  // namespace deepinfer::model
