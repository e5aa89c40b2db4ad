// SPDX-License-Identifier: Apache-2.0
#include "engine/expert_metrics.h"

#include <algorithm>

namespace deepinfer::engine {
namespace {

Counter& Wanted(MetricsRegistry& r, const char* result) {
  return r.GetCounter("deepinfer_expert_lookups_total", "Experts that steps wanted, in memory (or on their way) or read from disk.",
                      {{"result", result}});
}
Counter& Prefetched(MetricsRegistry& r, const char* result) {
  return r.GetCounter("deepinfer_expert_prefetches_total", "Experts that were read before a step asked for them.", {{"result", result}});
}

}  // namespace

ExpertMetrics::ExpertMetrics(MetricsRegistry& r)
    : wanted_{&Wanted(r, "miss"), &Wanted(r, "hit")},
      prefetched_{&Prefetched(r, "unused"), &Prefetched(r, "used")},
      read_bytes_(r.GetCounter("deepinfer_expert_read_bytes_total", "Bytes of experts read from disk.")),
      wait_seconds_(r.GetCounter("deepinfer_expert_wait_seconds_total", "Time that steps waited for experts.")),
      slots_(r.GetGauge("deepinfer_expert_slots", "Experts that fit into memory.")) {}

void ExpertMetrics::Update(const device::ExpertStreamStats& now) {
  const auto add = [](Counter& counter, int64_t more) {
    if (more > 0) counter.Add(static_cast<double>(more));
  };
  add(*wanted_[0], now.num_misses - previous_.num_misses);
  add(*wanted_[1], now.num_hits - previous_.num_hits);
  add(*prefetched_[1], now.num_useful - previous_.num_useful);
  // A guess counts as unused until a step takes it, so that no counter ever falls: what is unused is what stayed behind.
  const int64_t unused = now.num_prefetched - now.num_useful, unused_before = previous_.num_prefetched - previous_.num_useful;
  add(*prefetched_[0], unused - unused_before);
  add(read_bytes_, now.num_bytes - previous_.num_bytes);
  if (now.wait_ns > previous_.wait_ns) wait_seconds_.Add(1e-9 * static_cast<double>(now.wait_ns - previous_.wait_ns));
  slots_.Set(static_cast<double>(now.num_slots));
  const int64_t most_unused = std::max(unused, unused_before);
  previous_ = now;
  previous_.num_prefetched = previous_.num_useful + most_unused;
}

}  // namespace deepinfer::engine
