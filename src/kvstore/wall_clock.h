// SPDX-License-Identifier: Apache-2.0
//
// The time of day as a seam: what retention counts in. It may jump; core/clock.h does not.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

namespace deepinfer::kvstore {

class WallClock {
 public:
  virtual ~WallClock() = default;
  virtual int64_t NowUnixNs() const {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::system_clock::now().time_since_epoch()).count();
  }
  uint32_t NowUnixS() const { return static_cast<uint32_t>(NowUnixNs() / 1'000'000'000); }

  static const WallClock& System() {
    static const WallClock clock;
    return clock;
  }
};

// Moves only when told. Thread-safe.
class FakeWallClock : public WallClock {
 public:
  explicit FakeWallClock(int64_t unix_s) : now_ns_(unix_s * 1'000'000'000) {}
  int64_t NowUnixNs() const override { return now_ns_.load(); }
  void AdvanceS(int64_t seconds) { now_ns_ += seconds * 1'000'000'000; }

 private:
  std::atomic<int64_t> now_ns_;
};

}  // namespace deepinfer::kvstore
