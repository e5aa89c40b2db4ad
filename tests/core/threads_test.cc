// SPDX-License-Identifier: Apache-2.0
#include "core/threads.h"

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "core/cpu_features.h"
#include "temporary_dir.h"

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

// Nodes that do not exist on the machine: the threads run anywhere, tiles are shared as on a machine that has them.
CpuTopology SimulatedNodes(std::initializer_list<int> cpus_per_node) {
  CpuTopology topology;
  int cpu = 0;
  for (const int count : cpus_per_node) {
    CpuTopology::Node& node = topology.nodes.emplace_back();
    node.id = static_cast<int>(topology.nodes.size()) - 1;
    for (int i = 0; i < count; ++i) node.cpus.push_back(cpu++);
  }
  return topology;
}

TEST(ThreadPool, EveryTileRunsOnceOnSimulatedNodes) {
  for (const CpuTopology& topology : {SimulatedNodes({1, 1}), SimulatedNodes({4, 4}), SimulatedNodes({3, 1, 2}), SimulatedNodes({64, 64})}) {
    for (const int threads : {1, 2, 3, 7}) {
      ThreadPool pool(threads, topology, CpuPinning::kNone);
      ASSERT_EQ(pool.num_nodes(), static_cast<int>(topology.nodes.size()));
      for (const auto& [tiles, period] : {std::pair{1, 1}, {2, 0}, {3, 3}, {64, 0}, {64, 1}, {60, 4}, {1000, 50}, {1000, 1000}}) {
        std::vector<std::atomic<int>> runs(static_cast<size_t>(tiles));
        std::atomic<bool> bad_thread{false};
        pool.ParallelFor(tiles, [&](int64_t i, int thread) {
          runs[static_cast<size_t>(i)].fetch_add(1, std::memory_order_relaxed);
          if (thread < 0 || thread >= threads) bad_thread = true;
        }, period);
        for (const auto& r : runs) ASSERT_EQ(r.load(), 1);
        ASSERT_FALSE(bad_thread);
      }
    }
  }
}

TEST(ThreadPool, NodesShareEveryPeriodByTheirThreads) {
  ThreadPool pool(6, SimulatedNodes({2, 4}), CpuPinning::kNone);
  for (const int64_t tile : {0, 9, 30, 39}) EXPECT_EQ(pool.NodeOfTile(tile, 30), 0) << tile;
  for (const int64_t tile : {10, 29, 40, 59}) EXPECT_EQ(pool.NodeOfTile(tile, 30), 1) << tile;
}

TEST(CpuTopology, ReadsNodesOfAMachine) {
  const testing::TemporaryDir dir;
  const CpuTopology machine = CpuTopology::Read();
  ASSERT_FALSE(machine.nodes.empty());
  ASSERT_GE(machine.num_cpus(), 1);
  // The processors of this machine spread over two nodes, one node without processors, and files that are none.
  std::string lists[2];
  int count = 0;
  for (const auto& node : machine.nodes) {
    for (const int cpu : node.cpus) {
      std::string& list = lists[count % 2];
      list += (list.empty() ? "" : ",") + std::to_string(cpu);
      ++count;
    }
  }
  const auto write = [&dir](const std::string& node, const std::string& text) {
    std::filesystem::create_directories(dir.path() + "/" + node);
    std::ofstream(dir.path() + "/" + node + "/cpulist") << text << "\n";
  };
  write("node0", lists[0]);
  write("node8", lists[1].empty() ? "65535" : lists[1]);
  write("node9", "");
  write("nodes", "0");
  const CpuTopology read = CpuTopology::Read(dir.path());
  EXPECT_EQ(read.num_cpus(), machine.num_cpus());
  if (count > 1) {
    ASSERT_EQ(read.nodes.size(), 2u);
    EXPECT_EQ(read.nodes[1].id, 8);
  }
  // A list that leaves processors out, or is none, is not believed.
  write("node0", "0-x");
  EXPECT_EQ(CpuTopology::Read(dir.path()).nodes.size(), 1u);
  EXPECT_EQ(CpuTopology::Read(dir.path()).num_cpus(), machine.num_cpus());
  EXPECT_EQ(CpuTopology::Read("/nonexistent").num_cpus(), machine.num_cpus());
}

TEST(CpuTopology, ThreadsGoToNodesByTheirProcessors) {
  const auto shares = [](std::initializer_list<int> cpus, int threads) { return SimulatedNodes(cpus).ShareThreads(threads); };
  EXPECT_EQ(shares({64, 64}, 128), (std::vector<int>{64, 64}));
  EXPECT_EQ(shares({64, 64}, 3), (std::vector<int>{1, 2}));
  EXPECT_EQ(shares({2, 4}, 6), (std::vector<int>{2, 4}));
  EXPECT_EQ(shares({1, 1, 1, 1}, 2), (std::vector<int>{0, 1, 0, 1}));
}

TEST(CpuPinning, Names) {
  EXPECT_EQ(ParseCpuPinning("auto").value(), CpuPinning::kAuto);
  EXPECT_EQ(ParseCpuPinning("core").value(), CpuPinning::kCore);
  EXPECT_EQ(ParseCpuPinning("cores").status().field(), "cpu_pinning");
}

TEST(ThreadPool, ManyTinyPhases) {
  for (const int threads : {2, 8, -2, -8}) {
    const bool has_nodes = threads < 0;
    ThreadPool pool(std::abs(threads), has_nodes ? SimulatedNodes({1, 2}) : SimulatedNodes({2}),
                    has_nodes ? CpuPinning::kNode : CpuPinning::kCore);
    std::vector<int64_t> values(4, 0);
    constexpr int64_t kPhases = 25000;
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
