// SPDX-License-Identifier: Apache-2.0
//
// What Prometheus clients tell of every process: memory, processor time, open files. Under their usual names.
#pragma once

#include "core/metrics.h"

namespace deepinfer {

// Reads them now; for the moment before an exposition.
void UpdateProcessMetrics(MetricsRegistry& registry);

}  // namespace deepinfer
