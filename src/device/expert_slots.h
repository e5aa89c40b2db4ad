// SPDX-License-Identifier: Apache-2.0
//
// How many experts a memory budget keeps: one rule for the device that keeps them and for forecasts.
#pragma once

#include <algorithm>
#include <cstdint>

namespace deepinfer::device {

struct ExpertSlots {
  int64_t num_slots = 0;
  int64_t num_staging = 0;  // raw experts that may be on their way at a time; 0 when they are read packed
};

// slot_bytes: a packed expert; staging_bytes: a raw one with the ends of its pages, 0 when experts are read packed.
inline ExpertSlots PlanExpertSlots(int64_t budget_bytes, int64_t slot_bytes, int64_t staging_bytes, int64_t num_experts) {
  constexpr int64_t kMaxStaging = 6;  // enough chunks for any disk's queue
  ExpertSlots plan;
  // At most an eighth of the budget, but one.
  if (staging_bytes > 0) plan.num_staging = std::clamp<int64_t>(budget_bytes / 8 / staging_bytes, 1, kMaxStaging);
  plan.num_slots = std::clamp<int64_t>((budget_bytes - plan.num_staging * staging_bytes) / slot_bytes, 0, num_experts);
  return plan;
}

}  // namespace deepinfer::device
