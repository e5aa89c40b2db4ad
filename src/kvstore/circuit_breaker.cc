// SPDX-License-Identifier: Apache-2.0
#include "kvstore/circuit_breaker.h"

namespace deepinfer::kvstore {

bool CircuitBreaker::Allow() {
  const std::lock_guard lock(mutex_);
  if (!is_open_) return true;
  if (is_trying_ || clock_.NowNs() < open_until_ns_) return false;
  is_trying_ = true;
  return true;
}

bool CircuitBreaker::WouldAllow() const {
  const std::lock_guard lock(mutex_);
  return !is_open_ || (!is_trying_ && clock_.NowNs() >= open_until_ns_);
}

void CircuitBreaker::Success() {
  const std::lock_guard lock(mutex_);
  is_open_ = is_trying_ = false;
}

void CircuitBreaker::Failure() {
  const std::lock_guard lock(mutex_);
  const int64_t now = clock_.NowNs();
  failures_ns_.push_back(now);
  while (failures_ns_.front() <= now - kWindowNs) failures_ns_.pop_front();
  if (!is_trying_ && static_cast<int>(failures_ns_.size()) < kMaxFailures) return;
  is_open_ = true;
  is_trying_ = false;
  open_until_ns_ = now + kOpenNs;
  failures_ns_.clear();
}

void CircuitBreaker::Open() {
  const std::lock_guard lock(mutex_);
  is_open_ = true;
  is_trying_ = false;
  open_until_ns_ = clock_.NowNs() + kOpenNs;
  failures_ns_.clear();
}

bool CircuitBreaker::is_open() const {
  const std::lock_guard lock(mutex_);
  return is_open_;
}

}  // namespace deepinfer::kvstore
