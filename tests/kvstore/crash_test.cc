// SPDX-License-Identifier: Apache-2.0
//
// K4: a writing process is killed before or after any of its system calls. After it, no committed block is missing and no
// block that is found is wrong.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include "store_fixture.h"

namespace deepinfer::kvstore {
namespace {

using namespace testing;

constexpr int kChains = 12;
constexpr size_t kBlocks = 30;

// Writes, flushes and tells `report` how many chains are committed; kills itself at point `kill_at`.
[[noreturn]] void WriteUntilKilled(StoreOptions options, int kill_at, int report) {
  FaultyFiles files;
  files.at = [&](int point) {
    if (point == kill_at) ::raise(SIGKILL);
  };
  options.files = &files;
  Result<std::unique_ptr<BlockStore>> store = BlockStore::Open(options);
  if (!store.ok()) ::_exit(3);
  for (int c = 0; c < kChains; ++c) {
    OfferChain(**store, ChainOf(c, kBlocks));
    (*store)->Flush();
    const char done = static_cast<char>(c + 1);
    if (::write(report, &done, 1) != 1) ::_exit(4);
    if (c == kChains / 2 && !(*store)->RunGc().ok()) ::_exit(5);
  }
  // Sealing, too, happens before the end is told.
  store.value().reset();
  ::_exit(0);
}

void KillAtRandomPoints(bool index_in_memory, int num_points, uint32_t seed) {
  std::mt19937 random(seed);
  int num_killed = 0;
  for (int point = 0; point < num_points; ++point) {
    TemporaryDir dir;
    StoreOptions options = OptionsFor(dir, index_in_memory);
    options.segment_bytes = 64 << 10;  // a segment every 39 blocks
    // Some processes die twice in a row: recovery is killed as well.
    int committed = 0;
    const int num_lives = point % 4 == 0 ? 2 : 1;
    for (int life = 0; life < num_lives; ++life) {
      int pipe_fds[2];
      ASSERT_EQ(::pipe(pipe_fds), 0);
      const int kill_at = static_cast<int>(random() % 220);
      const pid_t child = ::fork();
      ASSERT_GE(child, 0);
      if (child == 0) WriteUntilKilled(options, kill_at, pipe_fds[1]);
      ::close(pipe_fds[1]);
      for (char done = 0; ::read(pipe_fds[0], &done, 1) == 1;) committed = std::max<int>(committed, done);
      ::close(pipe_fds[0]);
      int status = 0;
      ASSERT_EQ(::waitpid(child, &status, 0), child);
      ASSERT_TRUE(WIFSIGNALED(status) || WEXITSTATUS(status) == 0) << WEXITSTATUS(status);
      num_killed += WIFSIGNALED(status) ? 1 : 0;
    }
    const Result<std::unique_ptr<BlockStore>> store = BlockStore::Open(options);
    ASSERT_TRUE(store.ok()) << store.status().ToString();
    for (int c = 0; c < kChains; ++c) {
      const int64_t loaded = LoadChain(**store, ChainOf(c, kBlocks));
      ASSERT_GE(loaded, 0) << "a wrong block";
      if (c < committed) {
        ASSERT_EQ(loaded, static_cast<int64_t>(kBlocks)) << "a committed block is lost";
      }
    }
    ASSERT_TRUE((*store)->Verify().value().problems.empty());
    // What was lost can be written again.
    OfferChain(**store, ChainOf(kChains - 1, kBlocks));
    (*store)->Flush();
    ASSERT_EQ(LoadChain(**store, ChainOf(kChains - 1, kBlocks)), static_cast<int64_t>(kBlocks));
  }
  EXPECT_GT(num_killed, num_points / 2);
}

TEST(Crash, K4KilledAtRandomPointsWithTheIndexRebuilt) { KillAtRandomPoints(true, 160, 11); }

TEST(Crash, K4KilledAtRandomPointsWithTheIndexOnDisk) {
  if (!HasRocksTable()) GTEST_SKIP() << "built without RocksDB";
  KillAtRandomPoints(false, 40, 12);
}

}  // namespace
}  // namespace deepinfer::kvstore
