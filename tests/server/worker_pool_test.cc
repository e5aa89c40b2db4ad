// SPDX-License-Identifier: Apache-2.0
#include "server/worker_pool.h"

#include <gtest/gtest.h>

#include <future>

namespace deepinfer::server {
namespace {

TEST(WorkerPool, AGroupLeavesWorkersToOthers) {
  WorkerPool pool(3, 2);
  std::promise<void> go;
  const std::shared_future<void> gate = go.get_future().share();
  std::promise<void> began[2];
  std::promise<void> last, other;
  for (auto& promise : began) {
    pool.Post([&promise, gate] { promise.set_value(), gate.wait(); }, "a");
  }
  for (auto& promise : began) promise.get_future().wait();
  std::atomic<bool> is_open = false, came_early = false;
  pool.Post([&] { came_early = !is_open.load(), last.set_value(); }, "a");
  pool.Post([&] { other.set_value(); }, "b");
  other.get_future().wait();
  is_open = true;
  go.set_value();
  last.get_future().wait();
  EXPECT_FALSE(came_early.load());
}

TEST(WorkerPool, NoNameNoLimit) {
  WorkerPool pool(3, 1);
  std::promise<void> go;
  const std::shared_future<void> gate = go.get_future().share();
  std::promise<void> began[3];
  for (auto& promise : began) {
    pool.Post([&promise, gate] { promise.set_value(), gate.wait(); });
  }
  for (auto& promise : began) promise.get_future().wait();
  go.set_value();
}

TEST(WorkerPool, StopDropsWhatHasNotBegun) {
  std::promise<void> go, began;
  std::atomic<int> num_run = 0;
  WorkerPool pool(1);
  pool.Post([&, gate = go.get_future().share()] { began.set_value(), gate.wait(), ++num_run; });
  began.get_future().wait();
  for (int i = 0; i < 10; ++i) pool.Post([&] { ++num_run; });
  std::thread stopper([&] { pool.Stop(); });
  // The one that runs is waited for; whether some of the others still begin is a race with the stopper.
  go.set_value();
  stopper.join();
  const int num_at_stop = num_run.load();
  EXPECT_GE(num_at_stop, 1);
  pool.Post([&] { ++num_run; });
  EXPECT_EQ(num_run.load(), num_at_stop);
}

}  // namespace
}  // namespace deepinfer::server
