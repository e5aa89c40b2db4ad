// SPDX-License-Identifier: Apache-2.0
//
// Time as a seam: code that waits or measures takes a Clock, so that tests are exact.
#pragma once

#include <cstdint>

namespace deepinfer {

class Clock {
 public:
  virtual ~Clock() = default;
  virtual int64_t NowNs() const = 0;  // monotonic, from an arbitrary start
  double NowSeconds() const { return static_cast<double>(NowNs()) * 1e-9; }

  static const Clock& Steady();  // the machine's
};

// Moves only when told.
class FakeClock : public Clock {
 public:
  int64_t NowNs() const override { return now_ns_; }
  void AdvanceMs(int64_t ms) { now_ns_ += ms * 1'000'000; }

 private:
  int64_t now_ns_ = 0;
};

}  // namespace deepinfer
