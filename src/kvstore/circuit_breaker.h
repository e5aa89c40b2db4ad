// SPDX-License-Identifier: Apache-2.0
//
// Keeps requests away from a store that is slow or down: five failures within ten seconds and it is left alone for thirty;
// then one call may try, and its outcome decides. Thread-safe.
#pragma once

#include <cstdint>
#include <deque>
#include <mutex>

#include "core/clock.h"

namespace deepinfer::kvstore {

class CircuitBreaker {
 public:
  static constexpr int kMaxFailures = 5;
  static constexpr int64_t kWindowNs = 10'000'000'000;
  static constexpr int64_t kOpenNs = 30'000'000'000;

  explicit CircuitBreaker(const Clock& clock) : clock_(clock) {}

  // Whether to call; who got true reports how it went.
  bool Allow();
  // Whether Allow() would say yes; takes nothing.
  bool WouldAllow() const;
  void Success();
  void Failure();
  // For errors that will not go away by trying again, such as a full disk.
  void Open();
  bool is_open() const;

 private:
  const Clock& clock_;
  mutable std::mutex mutex_;
  std::deque<int64_t> failures_ns_;
  int64_t open_until_ns_ = 0;
  bool is_open_ = false;
  bool is_trying_ = false;
};

}  // namespace deepinfer::kvstore
