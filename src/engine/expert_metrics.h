// SPDX-License-Identifier: Apache-2.0
//
// What a device that streams experts publishes in a metrics registry. Called by the output thread.
#pragma once

#include <array>

#include "core/metrics.h"
#include "device/device.h"

namespace deepinfer::engine {

class ExpertMetrics {
 public:
  explicit ExpertMetrics(MetricsRegistry& registry);
  // The device's totals.
  void Update(const device::ExpertStreamStats& stats);

 private:
  std::array<Counter*, 2> wanted_;      // miss, hit
  std::array<Counter*, 2> prefetched_;  // not used, used
  Counter& read_bytes_;
  Counter& wait_seconds_;
  Gauge& slots_;
  device::ExpertStreamStats previous_;
};

}  // namespace deepinfer::engine
