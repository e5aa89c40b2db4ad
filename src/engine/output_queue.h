// SPDX-License-Identifier: Apache-2.0
//
// Between the thread that produces a request's outputs and the thread that owns the request: outputs that wait to be taken,
// and how many of the request's samples are still open.
#pragma once

#include <chrono>
#include <cstddef>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "core/escape.h"
#include "core/log.h"
#include "deepinfer/output.h"

namespace deepinfer::engine {

template <typename Output>
class OutputQueue {
 public:
  // Before any other thread sees the queue.
  void Open(int num_samples) { num_open_ = num_samples; }

  void Push(Output output) {
    {
      std::lock_guard lock(mutex_);
      outputs_.push_back(std::move(output));
    }
    changed_.notify_all();
  }
  // A sample has ended; its last output was pushed.
  void CloseOne() {
    {
      std::lock_guard lock(mutex_);
      --num_open_;
    }
    changed_.notify_all();
  }

  // Waits for the next output; false when all samples have ended and everything was taken.
  bool Next(Output& output) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return !outputs_.empty() || num_open_ == 0; });
    if (outputs_.empty()) return false;
    output = std::move(outputs_[next_]);
    ++next_;
    if (next_ == outputs_.size()) {
      outputs_.clear();
      next_ = 0;
    } else if (next_ >= kMaxTaken && 2 * next_ >= outputs_.size()) {
      outputs_.erase(outputs_.begin(), outputs_.begin() + static_cast<std::ptrdiff_t>(next_));
      next_ = 0;
    }
    return true;
  }
  // Waits until all samples have ended.
  void Wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return num_open_ == 0; });
  }
  // The same for at most that long; true if they have ended.
  bool WaitFor(double seconds) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::duration<double>(seconds), [&] { return num_open_ == 0; });
  }
  bool is_done() const {
    std::lock_guard lock(mutex_);
    return num_open_ == 0;
  }
  // Calls fn unless all samples have ended; none ends meanwhile.
  template <typename F>
  void IfOpen(F&& fn) {
    std::lock_guard lock(mutex_);
    if (num_open_ > 0) fn();
  }

 private:
  // Taken outputs in front of the waiting ones are removed in groups.
  static constexpr size_t kMaxTaken = 32;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  // Those from next_ on wait. A list that is emptied keeps its memory: no allocation per output.
  std::vector<Output> outputs_;  // GUARDED_BY(mutex_)
  size_t next_ = 0;              // GUARDED_BY(mutex_)
  int num_open_ = 0;             // GUARDED_BY(mutex_)
};

// The answer of a receiver's callback; nullopt and a line in the log if it threw.
template <typename F>
std::optional<StreamAction> RunOutputCallback(F&& callback) {
  try {
    return callback();
  } catch (const std::exception& e) {
    DI_LOG(error, "a request ends because its output callback failed: {}", Escape(e.what()));
  } catch (...) {
    DI_LOG(error, "a request ends because its output callback failed");
  }
  return std::nullopt;
}

}  // namespace deepinfer::engine
