// SPDX-License-Identifier: Apache-2.0
#include "core/clock.h"

#include <chrono>

namespace deepinfer {

namespace {

class SteadyClock : public Clock {
 public:
  int64_t NowNs() const override {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
  }
};

}  // namespace

const Clock& Clock::Steady() {
  static const SteadyClock clock;
  return clock;
}

}  // namespace deepinfer
