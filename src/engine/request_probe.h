// SPDX-License-Identifier: Apache-2.0
//
// What the scheduler tells about one request while it runs, for traces: plain stores, read by any thread. Times are those of the
// engine's clock, 0 = not yet.
#pragma once

#include <atomic>
#include <cstdint>

namespace deepinfer::engine {

struct RequestProbe {
  std::atomic<int64_t> scheduled_ns{0};   // its first tokens were put into a step
  std::atomic<int64_t> num_preempted{0};  // how often it was taken off the device
  std::atomic<int64_t> preempted_ns{0};   // the newest time
};

}  // namespace deepinfer::engine
