// SPDX-License-Identifier: Apache-2.0
//
// The store as a whole: what is stored is found again with the same bytes, and whatever happens to its files, disk, clock or
// process, nothing wrong is ever handed out.
#include "kvstore/block_store.h"

#include <gtest/gtest.h>

#include <condition_variable>
#include <mutex>
#include <thread>

#include "store_fixture.h"

namespace deepinfer::kvstore {
namespace {

using namespace testing;

std::unique_ptr<BlockStore> Open(const StoreOptions& options) {
  Result<std::unique_ptr<BlockStore>> store = BlockStore::Open(options);
  EXPECT_TRUE(store.ok()) << store.status().ToString();
  return std::move(store).value();
}

void FlipByte(const std::string& path, int64_t offset) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(offset);
  const char byte = static_cast<char>(file.get());
  file.seekp(offset);
  file.put(static_cast<char>(byte ^ 0x10));
  ASSERT_TRUE(file.good()) << path;
}

TEST(BlockStore, K3TenThousandBlocksOfTwoWritersAndTwoReadersAreTheSameBytes) {
  TemporaryDir dir;
  const auto store = Open(OptionsFor(dir));
  constexpr int kChains = 250;
  constexpr size_t kBlocks = 40;  // of each
  std::atomic<int> wrong{0};
  std::atomic<bool> is_done{false};
  std::vector<std::thread> threads;
  for (int w = 0; w < 2; ++w) {
    threads.emplace_back([&, w] {
      // Both write everything, from both ends: each block is stored once.
      for (int c = 0; c < kChains; ++c) OfferChain(*store, ChainOf(w == 0 ? c : kChains - 1 - c, kBlocks));
    });
  }
  std::vector<std::thread> readers;
  for (int r = 0; r < 2; ++r) {
    readers.emplace_back([&, r] {
      for (int i = r; !is_done; i += 7) {
        if (LoadChain(*store, ChainOf(i % kChains, kBlocks)) < 0) ++wrong;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  store->Flush();
  is_done = true;
  for (std::thread& thread : readers) thread.join();
  EXPECT_EQ(wrong, 0);
  for (int c = 0; c < kChains; ++c) ASSERT_EQ(LoadChain(*store, ChainOf(c, kBlocks)), static_cast<int64_t>(kBlocks)) << c;
  const StoreStats stats = store->Stats();
  EXPECT_EQ(stats.written_blocks, kChains * kBlocks);
  EXPECT_EQ(stats.deduplicated, kChains * kBlocks);
  EXPECT_EQ(stats.num_blocks, kChains * kBlocks);
}

TEST(BlockStore, BlocksAreFoundAfterARestart) {
  TemporaryDir dir;
  const auto keys = ChainOf(1, 3000);  // several segments
  {
    const auto store = Open(OptionsFor(dir));
    OfferChain(*store, keys);
  }
  EXPECT_GT(FilesWith(dir.path(), ".seg").size(), 2u);
  EXPECT_EQ(FilesWith(dir.path(), ".open").size(), 0u);
  const auto store = Open(OptionsFor(dir));
  EXPECT_EQ(LoadChain(*store, keys), 3000);
  EXPECT_TRUE(store->Verify().value().problems.empty());
}

TEST(BlockStore, ALostOrDamagedIndexIsMadeAgainFromTheSegments) {
  if (!HasRocksTable()) GTEST_SKIP() << "built without RocksDB";
  TemporaryDir dir;
  const auto keys = ChainOf(1, 1500);
  { OfferChain(*Open(OptionsFor(dir)), keys); }
  const std::string index = dir.path() + "/store/index";
  std::filesystem::remove_all(index);
  {
    const auto store = Open(OptionsFor(dir));
    EXPECT_EQ(store->recovery().added_blocks, keys.size());
    EXPECT_EQ(LoadChain(*store, keys), 1500);
  }
  for (const auto& entry : std::filesystem::directory_iterator(index)) {
    const std::string name = entry.path().filename();
    if (name.starts_with("MANIFEST")) std::filesystem::resize_file(entry.path(), entry.file_size() / 2);
    if (name == "CURRENT") std::ofstream(entry.path()) << "nonsense";
  }
  const auto store = Open(OptionsFor(dir));
  EXPECT_EQ(LoadChain(*store, keys), 1500);
}

TEST(BlockStore, K6AFlippedByteAnywhereInASegmentIsAMissFromThereOn) {
  std::mt19937 random(3);
  for (int round = 0; round < 30; ++round) {
    TemporaryDir dir;
    const auto keys = ChainOf(1, 50);
    { OfferChain(*Open(OptionsFor(dir)), keys); }
    const std::string path = FilesWith(dir.path(), ".seg").at(0);
    const auto size = static_cast<int64_t>(std::filesystem::file_size(path));
    FlipByte(path, static_cast<int64_t>(random()) % size);
    // Every other round without the index: the footer or the records rebuild it.
    if (round % 2 == 0) std::filesystem::remove_all(dir.path() + "/store/index");
    const auto store = Open(OptionsFor(dir));
    LoadStop stop = LoadStop::kComplete;
    const int64_t loaded = LoadChain(*store, keys, &stop);
    ASSERT_GE(loaded, 0) << round;
    // Computed again and offered again, it is whole again.
    OfferChain(*store, keys);
    store->Flush();
    ASSERT_EQ(LoadChain(*store, keys), 50) << round;
  }
}

TEST(BlockStore, K6ThreeDamagedBlocksSendASegmentToQuarantine) {
  TemporaryDir dir;
  const auto keys = ChainOf(1, 50);
  { OfferChain(*Open(OptionsFor(dir)), keys); }
  const std::string path = FilesWith(dir.path(), ".seg").at(0);
  for (int i = 0; i < 3; ++i) FlipByte(path, static_cast<int64_t>(kSegmentHeaderBytes + (10 + static_cast<size_t>(i)) * RecordBytes(kPayload) + 700));
  const auto store = Open(OptionsFor(dir));
  const VerifyReport report = store->Verify().value();
  EXPECT_EQ(report.problems.size(), 3u);
  EXPECT_EQ(store->Stats().quarantined_segments, 1u);
  EXPECT_EQ(store->Stats().num_blocks, 0u);
  EXPECT_EQ(LoadChain(*store, keys), 0);
  EXPECT_FALSE(std::filesystem::exists(path));
  EXPECT_FALSE(std::filesystem::is_empty(dir.path() + "/store/quarantine"));
}

TEST(BlockStore, K6ATruncatedSegmentGivesItsWholeRecords) {
  std::mt19937 random(4);
  for (int round = 0; round < 10; ++round) {
    TemporaryDir dir;
    const auto keys = ChainOf(1, 50);
    { OfferChain(*Open(OptionsFor(dir)), keys); }
    const std::string path = FilesWith(dir.path(), ".seg").at(0);
    const uint64_t size = random() % std::filesystem::file_size(path);
    std::filesystem::resize_file(path, size);
    const auto store = Open(OptionsFor(dir));
    const int64_t whole = size < kSegmentHeaderBytes ? 0 : static_cast<int64_t>((size - kSegmentHeaderBytes) / RecordBytes(kPayload));
    EXPECT_EQ(LoadChain(*store, keys), std::min<int64_t>(whole, 50)) << size;
  }
}

TEST(BlockStore, ARemovedSegmentIsAMiss) {
  TemporaryDir dir;
  const auto keys = ChainOf(1, 50);
  const auto store = Open(OptionsFor(dir));
  OfferChain(*store, keys);
  store->Flush();
  std::filesystem::remove(FilesWith(dir.path(), ".open").at(0));
  LoadStop stop = LoadStop::kComplete;
  EXPECT_EQ(LoadChain(*store, keys, &stop), 0);
  EXPECT_EQ(stop, LoadStop::kMissing);
}

TEST(BlockStore, ASecondProcessIsRefused) {
  TemporaryDir dir;
  const auto store = Open(OptionsFor(dir));
  const auto second = BlockStore::Open(OptionsFor(dir));
  EXPECT_EQ(second.status().code(), StatusCode::kUnavailable);
  EXPECT_NE(second.status().message().find("in use by another process"), std::string::npos);
}

TEST(BlockStore, AnotherVersionIsRefusedWithTheFilesName) {
  TemporaryDir dir;
  { Open(OptionsFor(dir)); }
  dir.Write("store/FORMAT", "DIKV 2\n0123456789abcdef0123456789abcdef\n");
  const auto store = BlockStore::Open(OptionsFor(dir));
  EXPECT_EQ(store.status().code(), StatusCode::kBadModel);
  EXPECT_NE(store.status().message().find(dir.path() + "/store/FORMAT says version \"DIKV 2\""), std::string::npos) << store.status().message();
}

TEST(BlockStore, ADirectoryThatIsNoStoreIsLeftAlone) {
  TemporaryDir dir;
  std::filesystem::create_directories(dir.path() + "/store");
  dir.Write("store/thesis.txt", "mine");
  EXPECT_FALSE(BlockStore::Open(OptionsFor(dir)).ok());
  EXPECT_FALSE(std::filesystem::exists(dir.path() + "/store/FORMAT"));
}

TEST(BlockStore, BlocksOfAnotherLayoutNeverHit) {
  TemporaryDir dir;
  const auto keys = ChainOf(1, 10);
  { OfferChain(*Open(OptionsFor(dir)), keys); }
  StoreOptions options = OptionsFor(dir);
  options.layout_id = 2;
  EXPECT_EQ(LoadChain(*Open(options), keys), 0);
}

TEST(BlockStore, K9TenantsNeverHitEachOther) {
  TemporaryDir dir;
  const auto store = Open(OptionsFor(dir));
  const auto secret = store->root().MasterSecret().value();
  EXPECT_EQ(store->root().MasterSecret().value(), secret);
  EXPECT_EQ(std::filesystem::status(dir.path() + "/store/SECRET").permissions(), std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
  const auto keys_of = [&](const char* domain, const char* salt) { return ChainOf(1, 20, RootKey({}, TenantSalt(secret, domain, salt))); };
  OfferChain(*store, keys_of("org-a", ""), 0, RetentionClass::kChat, 1);
  OfferChain(*store, keys_of("org-c", ""), 0, RetentionClass::kChat, 3);
  store->Flush();
  EXPECT_EQ(LoadChain(*store, keys_of("org-a", "")), 20);
  EXPECT_EQ(LoadChain(*store, keys_of("org-b", "")), 0);
  EXPECT_EQ(LoadChain(*store, keys_of("org-a", "x")), 0);
  EXPECT_EQ(store->PurgeDomain(1).value(), 20u);
  EXPECT_EQ(LoadChain(*store, keys_of("org-a", "")), 0);
  EXPECT_EQ(LoadChain(*store, keys_of("org-c", "")), 20);
}

TEST(BlockStore, K9PurgedBlocksAreGoneFromTheDiskAfterTheGrace) {
  TemporaryDir dir;
  FakeWallClock wall(1'700'000'000);
  StoreOptions options = OptionsFor(dir);
  options.wall_clock = &wall;
  const auto keys = ChainOf(1, 20), others = ChainOf(2, 20);
  {
    const auto store = Open(options);
    OfferChain(*store, keys, 0, RetentionClass::kChat, 1);
    OfferChain(*store, others, 0, RetentionClass::kChat, 2);
    store->Flush();
    EXPECT_EQ(store->PurgeDomain(1).value(), 20u);
    wall.AdvanceS(options.grace_s);
    ASSERT_TRUE(store->RunGc().ok());
    EXPECT_EQ(store->Stats().unlinked_segments, 1u);
  }
  // Not even a rebuilt index knows them.
  std::filesystem::remove_all(dir.path() + "/store/index");
  const auto store = Open(options);
  EXPECT_EQ(LoadChain(*store, keys), 0);
  EXPECT_EQ(LoadChain(*store, others), 20);
}

// Holds back every read until it is told otherwise.
class Gate : public ReadFilter {
 public:
  int64_t Filter(const InputFile&, int64_t, int64_t, int64_t result) override {
    std::unique_lock lock(mutex_);
    opened_.wait(lock, [this] { return is_open_; });
    return error_ != 0 ? -error_ : result;
  }
  void Set(bool is_open, int error = 0) {
    {
      const std::lock_guard lock(mutex_);
      is_open_ = is_open;
      error_ = error;
    }
    opened_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable opened_;
  bool is_open_ = true;
  int error_ = 0;
};

TEST(BlockStore, K11ASlowDiskEndsTheHitAtTheDeadlineAndOpensTheBreaker) {
  TemporaryDir dir;
  const auto keys = ChainOf(1, 20);
  { OfferChain(*Open(OptionsFor(dir)), keys); }
  Gate gate;
  AtomicClock clock;
  StoreOptions options = OptionsFor(dir);
  options.read_filter = &gate;
  options.clock = &clock;
  const auto store = Open(options);
  EXPECT_EQ(LoadChain(*store, keys), 20);
  gate.Set(false);
  for (int i = 0; i < CircuitBreaker::kMaxFailures; ++i) {
    LoadStop stop = LoadStop::kComplete;
    EXPECT_EQ(LoadChain(*store, keys, &stop, clock.NowNs() + 2'000'000), 0);
    EXPECT_EQ(stop, LoadStop::kDeadline);
  }
  EXPECT_FALSE(store->Stats().is_read_open);
  EXPECT_EQ(store->Lookup(keys).num_blocks(), 0u);  // left alone: a miss at once
  gate.Set(true);
  EXPECT_EQ(store->Lookup(keys).num_blocks(), 0u);
  clock.AdvanceMs(30'000);
  EXPECT_EQ(LoadChain(*store, keys), 20);
  EXPECT_TRUE(store->Stats().is_read_open);
}

TEST(BlockStore, ReadErrorsAreMissesAndDropNothing) {
  TemporaryDir dir;
  const auto keys = ChainOf(1, 20);
  { OfferChain(*Open(OptionsFor(dir)), keys); }
  Gate gate;
  AtomicClock clock;
  StoreOptions options = OptionsFor(dir);
  options.read_filter = &gate;
  options.clock = &clock;
  const auto store = Open(options);
  gate.Set(true, EIO);
  LoadStop stop = LoadStop::kComplete;
  EXPECT_EQ(LoadChain(*store, keys, &stop), 0);
  EXPECT_NE(stop, LoadStop::kComplete);
  gate.Set(true);
  EXPECT_EQ(LoadChain(*store, keys), 20);
}

TEST(BlockStore, AFullDiskStopsWritesAndKeepsWhatIsCommitted) {
  TemporaryDir dir;
  FaultyFiles files;
  AtomicClock clock;
  FakeWallClock wall(1'700'000'000);
  StoreOptions options = OptionsFor(dir);
  options.files = &files;
  options.clock = &clock;
  options.wall_clock = &wall;
  const auto before = ChainOf(1, 100), lost = ChainOf(2, 50), after = ChainOf(3, 50);
  {
    const auto store = Open(options);
    OfferChain(*store, before);
    store->Flush();
    files.is_full = true;
    OfferChain(*store, lost);
    store->Flush();
    EXPECT_EQ(store->Stats().dropped_io, lost.size());
    EXPECT_FALSE(store->Stats().is_write_open);
    EXPECT_EQ(LoadChain(*store, before), 100);
    EXPECT_EQ(LoadChain(*store, lost), 0);
    ASSERT_TRUE(store->RunGc().ok());  // makes room: five in a hundred go, the file cannot be sealed yet
    EXPECT_EQ(store->Stats().evicted_size, 5u);
    EXPECT_EQ(LoadChain(*store, before), 95);
    files.is_full = false;
    OfferChain(*store, after);
    store->Flush();
    EXPECT_EQ(LoadChain(*store, after), 0);  // not before the breaker's time is over
    clock.AdvanceMs(30'000);
    OfferChain(*store, after);
    store->Flush();
    EXPECT_EQ(LoadChain(*store, after), 50);
    EXPECT_TRUE(store->Stats().is_write_open);
    ASSERT_TRUE(store->RunGc().ok());
    EXPECT_EQ(LoadChain(*store, before), 95);
  }
  const auto store = Open(options);
  // An index in memory is made anew from the files, which hold the five still.
  EXPECT_EQ(LoadChain(*store, before), options.index_in_memory ? 100 : 95);
  EXPECT_EQ(LoadChain(*store, after), 50);
}

TEST(BlockStore, K8CapacityIsHeldBetweenTheWatermarks) {
  TemporaryDir dir;
  StoreOptions options = OptionsFor(dir);
  options.capacity_bytes = 100 * RecordBytes(kPayload);
  options.quota_bytes_fraction = 1;
  const auto store = Open(options);
  for (int c = 0; c < 10; ++c) {
    OfferChain(*store, ChainOf(c, 20));
    store->Flush();
    ASSERT_TRUE(store->RunGc().ok());
    EXPECT_LE(store->index().live_bytes(), static_cast<uint64_t>(0.92 * static_cast<double>(options.capacity_bytes)));
  }
  EXPECT_EQ(store->Stats().num_blocks, 88u);
}

TEST(BlockStore, AQuotaDropsWhatADomainHasTooMuch) {
  TemporaryDir dir;
  StoreOptions options = OptionsFor(dir);
  options.capacity_bytes = 1000 * RecordBytes(kPayload);
  const auto store = Open(options);  // 2 % = 20 blocks
  OfferChain(*store, ChainOf(1, 30), 0, RetentionClass::kChat, 1);
  OfferChain(*store, ChainOf(2, 10), 0, RetentionClass::kChat, 2);
  store->Flush();
  EXPECT_EQ(LoadChain(*store, ChainOf(1, 30)), 20);
  EXPECT_EQ(LoadChain(*store, ChainOf(2, 10)), 10);
  EXPECT_EQ(store->Stats().dropped_quota + store->Stats().dropped_orphan, 10u);
}

TEST(BlockStore, AFullArenaDropsTheNewest) {
  TemporaryDir dir;
  StoreOptions options = OptionsFor(dir);
  options.arena_bytes = kPayload - 1;
  const auto store = Open(options);
  OfferChain(*store, ChainOf(1, 3));
  store->Flush();
  EXPECT_EQ(store->Stats().dropped_arena, 3u);
  EXPECT_EQ(store->Stats().num_blocks, 0u);
}

TEST(BlockStore, K7ExpiredSegmentsLoseTheirFilesAfterTheGrace) {
  TemporaryDir dir;
  FakeWallClock wall(1'700'000'000);
  StoreOptions options = OptionsFor(dir);
  options.wall_clock = &wall;
  const auto store = Open(options);
  const auto agent = ChainOf(1, 20), chat = ChainOf(2, 20);
  OfferChain(*store, agent, 0, RetentionClass::kAgent);
  OfferChain(*store, chat, 0, RetentionClass::kChat);
  store->Flush();
  wall.AdvanceS(options.idle_seal_s);
  OfferChain(*store, ChainOf(3, 1), 0, RetentionClass::kBatch);  // wakes the writer, which seals
  store->Flush();
  wall.AdvanceS(3 * 86'400 - options.idle_seal_s);
  HitPlan reading = store->Lookup(agent);
  EXPECT_EQ(reading.num_blocks(), 20u);
  ASSERT_TRUE(store->RunGc().ok());
  EXPECT_EQ(store->Lookup(agent).num_blocks(), 0u);
  EXPECT_EQ(LoadChain(*store, chat), 20);
  wall.AdvanceS(options.grace_s);
  ASSERT_TRUE(store->RunGc().ok());
  EXPECT_EQ(store->Stats().unlinked_segments, 1u);  // the batch block's; the agent's are being read
  std::vector<std::vector<uint8_t>> buffers(20, std::vector<uint8_t>(kPayload));
  std::vector<std::span<uint8_t>> dst(buffers.begin(), buffers.end());
  EXPECT_EQ(store->Load(reading, dst, INT64_MAX).num_ok_blocks, 20u);
  store->Release(reading);
  ASSERT_TRUE(store->RunGc().ok());
  wall.AdvanceS(options.grace_s);
  ASSERT_TRUE(store->RunGc().ok());
  EXPECT_EQ(store->Stats().unlinked_segments, 2u);
  EXPECT_EQ(LoadChain(*store, chat), 20);
}

TEST(BlockStore, SparseSegmentsAreCopiedTogether) {
  TemporaryDir dir;
  FakeWallClock wall(1'700'000'000);
  StoreOptions options = OptionsFor(dir);
  options.wall_clock = &wall;
  const auto kept = ChainOf(1, 10), gone = ChainOf(2, 90);
  const auto store = Open(options);
  OfferChain(*store, kept);
  OfferChain(*store, gone);
  store->Flush();
  wall.AdvanceS(4 * 86'400);
  store->Touch({&kept.back(), 1}, RetentionClass::kChat);
  wall.AdvanceS(3 * 86'400);
  OfferChain(*store, ChainOf(3, 1));  // another hour: the old segment is sealed
  store->Flush();
  ASSERT_TRUE(store->RunGc().ok());
  EXPECT_EQ(store->Stats().compacted_segments, 1u);
  EXPECT_EQ(LoadChain(*store, kept), 10);
  wall.AdvanceS(options.grace_s);
  ASSERT_TRUE(store->RunGc().ok());
  EXPECT_EQ(store->Stats().unlinked_segments, 1u);
  EXPECT_EQ(LoadChain(*store, kept), 10);
  EXPECT_TRUE(store->Verify().value().problems.empty());
}

TEST(BlockStore, AClockThatJumpsBackStopsExpiryUntilItIsAccepted) {
  TemporaryDir dir;
  FakeWallClock wall(1'700'000'000);
  StoreOptions options = OptionsFor(dir);
  options.wall_clock = &wall;
  const auto store = Open(options);
  ASSERT_TRUE(store->RunGc().ok());
  wall.AdvanceS(-59);
  EXPECT_TRUE(store->RunGc().ok());
  wall.AdvanceS(-2);
  EXPECT_EQ(store->RunGc().code(), StatusCode::kUnavailable);
  EXPECT_TRUE(store->RunGc(true).ok());
  EXPECT_TRUE(store->RunGc().ok());
}

TEST(CircuitBreaker, OpensAfterFiveFailuresInTenSecondsAndLetsOneTry) {
  AtomicClock clock;
  CircuitBreaker breaker(clock);
  for (int i = 0; i < 10; ++i) {
    breaker.Failure();
    clock.AdvanceMs(2500);  // never five in ten seconds
    EXPECT_TRUE(breaker.Allow());
  }
  clock.AdvanceMs(10'000);
  for (int i = 0; i < 5; ++i) breaker.Failure();
  EXPECT_FALSE(breaker.Allow());
  clock.AdvanceMs(29'999);
  EXPECT_FALSE(breaker.Allow());
  clock.AdvanceMs(1);
  EXPECT_TRUE(breaker.Allow());
  EXPECT_FALSE(breaker.Allow());
  breaker.Failure();
  EXPECT_FALSE(breaker.Allow());
  clock.AdvanceMs(30'000);
  EXPECT_TRUE(breaker.Allow());
  breaker.Success();
  EXPECT_TRUE(breaker.Allow());
}

}  // namespace
}  // namespace deepinfer::kvstore
