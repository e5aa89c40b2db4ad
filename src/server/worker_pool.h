// SPDX-License-Identifier: Apache-2.0
//
// A few threads for work that is too long for an I/O thread: parsing and tokenising large bodies, waiting for a profile.
#pragma once

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <unistd.h>

namespace deepinfer::server {

class WorkerPool {
 public:
  // `max_per_group`: threads that work for one group at the same time; 0 = all of them. The group without a name has no limit.
  // `niceness`: how far the threads stand back behind the others of the process, as nice(1) has it.
  explicit WorkerPool(int num_threads, int max_per_group = 0, int niceness = 0) : max_per_group_(max_per_group) {
    for (int i = 0; i < num_threads; ++i) {
      threads_.emplace_back([this, niceness] {
        // On Linux a thread has a priority of its own.
        if (niceness > 0) (void)!::nice(niceness);
        Loop();
      });
    }
  }
  // Drops what has not begun.
  ~WorkerPool() { Stop(); }
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  void Post(std::function<void()> work, std::string group = {}) {
    {
      std::lock_guard lock(mutex_);
      queue_.push_back({std::move(work), std::move(group)});
    }
    changed_.notify_one();
  }
  void Stop() {
    {
      std::lock_guard lock(mutex_);
      is_stopping_ = true;
    }
    changed_.notify_all();
    for (std::thread& thread : threads_) {
      if (thread.joinable()) thread.join();
    }
    queue_.clear();
  }

 private:
  struct Item {
    std::function<void()> work;
    std::string group;
  };

  bool IsFree(const Item& item) const {
    if (max_per_group_ == 0 || item.group.empty()) return true;
    const auto it = running_.find(item.group);
    return it == running_.end() || it->second < max_per_group_;
  }

  // The oldest one whose group has a thread left.
  std::deque<Item>::iterator FindNext() {
    return std::find_if(queue_.begin(), queue_.end(), [this](const Item& item) { return IsFree(item); });
  }

  void Loop() {
    std::unique_lock lock(mutex_);
    while (true) {
      auto next = queue_.end();
      changed_.wait(lock, [&] {
        next = FindNext();
        return is_stopping_ || next != queue_.end();
      });
      if (is_stopping_) return;
      Item item = std::move(*next);
      queue_.erase(next);
      ++running_[item.group];
      lock.unlock();
      item.work();
      item.work = nullptr;
      lock.lock();
      if (--running_[item.group] == 0) running_.erase(item.group);
      // What waited for its group may go on now.
      if (!queue_.empty()) changed_.notify_one();
    }
  }

  const int max_per_group_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Item> queue_;              // GUARDED_BY(mutex_)
  std::map<std::string, int> running_;  // by group; GUARDED_BY(mutex_)
  bool is_stopping_ = false;            // GUARDED_BY(mutex_)
  std::vector<std::thread> threads_;
};

}  // namespace deepinfer::server
