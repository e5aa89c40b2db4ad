// SPDX-License-Identifier: Apache-2.0
#include "server/io_thread.h"

#include <chrono>
#include <optional>

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>

#include "core/clock.h"

namespace deepinfer::server {

namespace {
constexpr std::chrono::milliseconds kTick{250};
constexpr size_t kScratchBytes = 64 << 10;
}  // namespace

struct IoThread::Impl {
  boost::asio::io_context context{1};
  std::optional<boost::asio::executor_work_guard<boost::asio::io_context::executor_type>> guard{context.get_executor()};
  boost::asio::steady_timer timer{context};
};

IoThread::IoThread() : impl_(std::make_unique<Impl>()), scratch_(kScratchBytes) {}

IoThread::~IoThread() {
  Stop();
  Join();
}

void* IoThread::native() { return &impl_->context; }

void IoThread::Start() {
  thread_ = std::thread([this] {
    Tick();
    impl_->context.run();
  });
}

void IoThread::Stop() {
  boost::asio::post(impl_->context, [this] {
    impl_->guard.reset();
    impl_->timer.cancel();
    impl_->context.stop();
  });
}

void IoThread::Join() {
  if (thread_.joinable()) thread_.join();
}

void IoThread::Post(std::function<void()> fn) { boost::asio::post(impl_->context, std::move(fn)); }

void IoThread::Schedule(std::shared_ptr<IoTask> task) {
  bool is_first;
  {
    std::lock_guard lock(mutex_);
    is_first = tasks_.empty();
    tasks_.push_back(std::move(task));
  }
  if (is_first) boost::asio::post(impl_->context, [this] { RunTasks(); });
}

void IoThread::RunTasks() {
  {
    std::lock_guard lock(mutex_);
    running_.swap(tasks_);
  }
  for (std::shared_ptr<IoTask>& task : running_) task->Run();
  running_.clear();
}

void IoThread::Tick() {
  const int64_t now_ns = Clock::Steady().NowNs();
  // A tick may remove any of them, itself included.
  tick_list_.assign(ticked_.begin(), ticked_.end());
  for (IoTicked* object : tick_list_) {
    if (ticked_.contains(object)) object->OnTick(now_ns);
  }
  impl_->timer.expires_after(kTick);
  impl_->timer.async_wait([this](const boost::system::error_code& ec) {
    if (!ec) Tick();
  });
}

}  // namespace deepinfer::server
