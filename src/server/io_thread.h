// SPDX-License-Identifier: Apache-2.0
//
// One thread that serves sockets. A connection belongs to one I/O thread for its life: everything that touches it runs there.
// Other threads hand work over with Post, or with Schedule where it happens for every token.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string_view>
#include <thread>
#include <unordered_set>
#include <vector>

namespace deepinfer::server {

// What other threads wake. Run is called once for any number of Schedules before it.
class IoTask {
 public:
  virtual ~IoTask() = default;
  virtual void Run() = 0;
};

// Asked four times a second.
class IoTicked {
 public:
  virtual ~IoTicked() = default;
  virtual void OnTick(int64_t now_ns) = 0;
};

class IoThread {
 public:
  IoThread();
  // Stops and joins.
  ~IoThread();
  IoThread(const IoThread&) = delete;
  IoThread& operator=(const IoThread&) = delete;

  void Start();
  // Ends Run when all handlers have gone; nothing is posted afterwards.
  void Stop();
  void Join();

  // Any thread.
  void Post(std::function<void()> fn);
  void Schedule(std::shared_ptr<IoTask> task);

  // The thread itself.
  void AddTicked(IoTicked* object) { ticked_.insert(object); }
  void RemoveTicked(IoTicked* object) { ticked_.erase(object); }
  // Scratch for reads; valid until the next read.
  std::vector<char>& scratch() { return scratch_; }

  // The io_context, for the files that know Asio.
  void* native();

 private:
  void RunTasks();
  void Tick();

  struct Impl;
  std::unique_ptr<Impl> impl_;
  std::vector<char> scratch_;
  std::unordered_set<IoTicked*> ticked_;
  std::vector<IoTicked*> tick_list_;
  std::mutex mutex_;
  std::vector<std::shared_ptr<IoTask>> tasks_;  // GUARDED_BY(mutex_)
  std::vector<std::shared_ptr<IoTask>> running_;
  std::thread thread_;
};

}  // namespace deepinfer::server
