// SPDX-License-Identifier: Apache-2.0
#include "core/threads.h"

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "core/cpu_features.h"

namespace deepinfer {
namespace {

TEST(ThreadPool, EveryTileRunsOnce) {
  for (int threads = 1; threads <= 8; ++threads) {
    ThreadPool pool(threads);
    ASSERT_EQ(pool.num_threads(), threads);
    for (int64_t tiles : {0, 1, 2, 3, 7, 64, 1000}) {
      std::vector<std::atomic<int>> runs(static_cast<size_t>(tiles));
      std::atomic<bool> bad_thread{false};
      pool.ParallelFor(tiles, [&](int64_t i, int thread) {
        runs[static_cast<size_t>(i)].fetch_add(1, std::memory_order_relaxed);
        if (thread < 0 || thread >= threads) bad_thread = true;
      });
      for (const auto& r : runs) ASSERT_EQ(r.load(), 1);
      ASSERT_FALSE(bad_thread);
    }
  }
}

TEST(ThreadPool, ManyTinyPhases) {
  for (int threads : {2, 8}) {
    ThreadPool pool(threads);
    std::vector<int64_t> values(4, 0);
    constexpr int64_t kPhases = 50000;
    // Plain memory: each phase sees what the one before wrote, whichever thread that was.
    for (int64_t phase = 0; phase < kPhases; ++phase) {
      pool.ParallelFor(4, [&](int64_t i, int) { values[static_cast<size_t>(i)] += phase; });
    }
    for (int64_t v : values) ASSERT_EQ(v, kPhases * (kPhases - 1) / 2);
  }
}

TEST(ThreadPool, NestedCallsRunInlineOnTheSameThread) {
  ThreadPool pool(4);
  std::vector<std::atomic<int>> runs(64);
  std::atomic<int> mismatches{0};
  pool.ParallelFor(8, [&](int64_t i, int outer) {
    pool.ParallelFor(7, [&](int64_t j, int inner) {
      runs[static_cast<size_t>(i * 8 + j)].fetch_add(1);
      if (inner != outer) ++mismatches;
    });
    pool.ParallelFor(1, [&](int64_t, int inner) {
      runs[static_cast<size_t>(i * 8 + 7)].fetch_add(1);
      if (inner != outer) ++mismatches;
    });
  });
  for (const auto& r : runs) EXPECT_EQ(r.load(), 1);
  EXPECT_EQ(mismatches.load(), 0);
}

TEST(ThreadPool, ScratchPerThreadIsNeverShared) {
  ThreadPool pool(8);
  std::vector<int64_t> scratch(8, -1);  // plain memory: a second user would be a race
  std::atomic<int> clashes{0};
  for (int phase = 0; phase < 200; ++phase) {
    pool.ParallelFor(100, [&](int64_t i, int thread) {
      scratch[static_cast<size_t>(thread)] = i;
      for (int k = 0; k < 50; ++k) {
        if (scratch[static_cast<size_t>(thread)] != i) ++clashes;
      }
    });
  }
  EXPECT_EQ(clashes.load(), 0);
}

TEST(ThreadPool, ComesAndGoes) {
  for (int round = 0; round < 50; ++round) {
    ThreadPool pool(1 + round % 8);
    if (round % 3 == 0) continue;
    std::atomic<int64_t> sum{0};
    pool.ParallelFor(20, [&](int64_t i, int) { sum += i; });
    ASSERT_EQ(sum.load(), 190);
  }
}

TEST(ThreadPool, AvailableCoresIsPositive) { EXPECT_GE(ThreadPool::NumAvailableCores(), 1); }

TEST(CpuIsa, NamesAndOverrides) {
  EXPECT_TRUE(CpuSupports(CpuIsa::kScalar));
  EXPECT_EQ(SupportedCpuIsas().front(), CpuIsa::kScalar);
  EXPECT_EQ(ParseCpuIsa("scalar").value(), CpuIsa::kScalar);
  EXPECT_EQ(ParseCpuIsa("auto").value(), BestCpuIsa());
  EXPECT_EQ(ParseCpuIsa("sse9").status().field(), "cpu-isa");
  const CpuIsa before = ActiveCpuIsa();
  {
    const ScopedCpuIsa scoped(CpuIsa::kScalar);
    EXPECT_EQ(ActiveCpuIsa(), CpuIsa::kScalar);
  }
  EXPECT_EQ(ActiveCpuIsa(), before);
}

}  // namespace
}  // namespace deepinfer
