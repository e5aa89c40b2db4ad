// SPDX-License-Identifier: Apache-2.0
//
// The index against a model of it: random chains, touches, expiry and pressure, on both kinds of table.
#include "kvstore/block_index.h"

#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <random>

#include "temporary_dir.h"

namespace deepinfer::kvstore {
namespace {

constexpr uint32_t kPayload = 1000;
const Uuid kStore = {9};

struct Node {
  Key256 key, parent;
  uint32_t index = 0;
};

class BlockIndexTest : public ::testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    if (GetParam() && !HasRocksTable()) GTEST_SKIP() << "built without RocksDB";
    Open();
    segment_ = index_->AddSegment({.stem = "chat/x/1"}).value();
  }
  void Open() {
    index_.reset();
    std::unique_ptr<Table> table = GetParam() ? OpenRocksTable(dir_.path() + "/index").value() : MakeMemoryTable();
    index_ = BlockIndex::Open(std::move(table), kStore, policy_).value();
  }
  Key256 RandomKey() {
    Key256 key;
    for (size_t i = 0; i < 32; i += 8) {
      const uint64_t word = random_();
      std::memcpy(key.bytes.data() + i, &word, 8);
    }
    return key;
  }
  // A chain of `count` blocks below `parent`.
  std::vector<Node> Chain(const Node* parent, size_t count) {
    std::vector<Node> nodes;
    for (size_t i = 0; i < count; ++i) {
      Node node;
      node.key = RandomKey();
      const Node* above = nodes.empty() ? parent : &nodes.back();
      node.parent = above != nullptr ? above->key : Key256();
      node.index = above != nullptr ? above->index + 1 : 0;
      nodes.push_back(node);
    }
    return nodes;
  }
  NewBlock Block(const Node& node, RetentionClass retention, uint32_t now, uint8_t flags = 0, uint32_t domain = 1) {
    NewBlock block;
    block.key = node.key;
    block.entry = {.segment = segment_, .offset = next_offset_ += 2048, .stored_len = kPayload, .block_index = node.index, .retention = retention,
                   .flags = flags, .created_s = now, .last_use_s = now, .parent_low64 = KeyLow64(node.parent), .domain_hash = domain};
    return block;
  }
  void Commit(const std::vector<Node>& nodes, RetentionClass retention, uint32_t now, uint32_t domain = 1) {
    std::vector<NewBlock> blocks;
    for (const Node& node : nodes) blocks.push_back(Block(node, retention, now, 0, domain));
    std::vector<CommitOutcome> outcomes;
    ASSERT_TRUE(index_->Commit(blocks, outcomes).ok());
    for (const CommitOutcome outcome : outcomes) ASSERT_EQ(outcome, CommitOutcome::kStored);
  }
  size_t Hit(const std::vector<Node>& chain) {
    std::vector<Key256> keys;
    for (const Node& node : chain) keys.push_back(node.key);
    std::vector<BlockEntry> found;
    EXPECT_TRUE(index_->Lookup(keys, false, found).ok());
    return found.size();
  }
  // Parents are there, children are counted, sums are right.
  void CheckInvariants() {
    std::map<uint64_t, std::pair<Key256, BlockEntry>> by_prefix;
    uint64_t bytes = 0, count = 0;
    std::map<uint32_t, uint64_t> domains;
    ASSERT_TRUE(index_->ForEach([&](const Key256& key, const BlockEntry& entry) {
      by_prefix[KeyLow64(key)] = {key, entry};
      bytes += RecordBytes(entry.stored_len);
      domains[entry.domain_hash] += RecordBytes(entry.stored_len);
      ++count;
      return true;
    }).ok());
    std::map<uint64_t, uint32_t> children;
    for (const auto& [prefix, block] : by_prefix) {
      if (block.second.block_index == 0) continue;
      ASSERT_EQ(by_prefix.count(block.second.parent_low64), 1u) << "a block without its parent";
      ++children[block.second.parent_low64];
    }
    for (const auto& [prefix, block] : by_prefix) ASSERT_EQ(block.second.children, children[prefix]);
    EXPECT_EQ(index_->num_blocks(), count);
    EXPECT_EQ(index_->live_bytes(), bytes);
    for (const auto& [domain, sum] : domains) EXPECT_EQ(index_->DomainBytes(domain).value(), sum);
    const SegmentRow row = index_->Segment(segment_).value().value();
    EXPECT_EQ(row.live_count, count);
    EXPECT_EQ(row.live_bytes, bytes);
    EXPECT_EQ(index_->KeysOf(segment_).value().size(), count);
  }

  testing::TemporaryDir dir_;
  RetentionPolicy policy_;
  std::mt19937_64 random_{42};
  uint64_t next_offset_ = 2048;
  uint64_t segment_ = 0;
  std::unique_ptr<BlockIndex> index_;
};

constexpr uint32_t kDay = 86'400;
constexpr uint32_t kNow = 1'700'000'000;

TEST_P(BlockIndexTest, K7BlocksLiveAsLongAsTheirClassAndTouchExtends) {
  const auto agent = Chain(nullptr, 5), chat = Chain(nullptr, 5), pinned = Chain(nullptr, 2), touched = Chain(nullptr, 5);
  Commit(agent, RetentionClass::kAgent, kNow);
  Commit(chat, RetentionClass::kChat, kNow);
  Commit(pinned, RetentionClass::kPinned, kNow);
  Commit(touched, RetentionClass::kAgent, kNow);
  ASSERT_TRUE(index_->Expire(kNow + 3 * kDay - 1, 1'000'000).ok());
  EXPECT_EQ(Hit(agent), 5u);
  ASSERT_TRUE(index_->Touch({&touched.back().key, 1}, RetentionClass::kAgent, kNow + 2 * kDay).ok());
  ASSERT_TRUE(index_->Expire(kNow + 3 * kDay, 1'000'000).ok());
  EXPECT_EQ(Hit(agent), 0u);
  EXPECT_EQ(Hit(chat), 5u);
  EXPECT_EQ(Hit(touched), 5u);  // only the last one was touched: those above live as long
  CheckInvariants();
  ASSERT_TRUE(index_->Expire(kNow + 5 * kDay, 1'000'000).ok());
  EXPECT_LT(Hit(touched), 5u);
  // A use by a class that lives shorter takes nothing away.
  ASSERT_TRUE(index_->Touch({&chat.back().key, 1}, RetentionClass::kAgent, kNow + kDay).ok());
  ASSERT_TRUE(index_->Expire(kNow + 7 * kDay - 1, 1'000'000).ok());
  EXPECT_EQ(Hit(chat), 5u);
  ASSERT_TRUE(index_->Expire(kNow + 7 * kDay, 1'000'000).ok());
  EXPECT_EQ(Hit(chat), 0u);
  EXPECT_EQ(Hit(pinned), 2u);
  CheckInvariants();
}

TEST_P(BlockIndexTest, K7AParentNeverGoesBeforeALiveChild) {
  std::vector<Node> all;
  uint32_t now = kNow;
  for (int round = 0; round < 60; ++round) {
    const Node* parent = all.empty() || random_() % 4 == 0 ? nullptr : &all[random_() % all.size()];
    if (parent != nullptr && !index_->Find(parent->key).value()) parent = nullptr;
    const auto chain = Chain(parent, 1 + random_() % 8);
    Commit(chain, static_cast<RetentionClass>(random_() % 3), now, static_cast<uint32_t>(random_() % 3));
    all.insert(all.end(), chain.begin(), chain.end());
    now += static_cast<uint32_t>(random_() % kDay);
    const Key256 used = all[random_() % all.size()].key;
    ASSERT_TRUE(index_->Touch({&used, 1}, static_cast<RetentionClass>(random_() % 3), now).ok());
    ASSERT_TRUE(index_->Expire(now, 1 + random_() % 100).ok());
    CheckInvariants();
  }
  Open();  // the sums are the same after a restart
  if (GetParam()) CheckInvariants();
}

TEST_P(BlockIndexTest, K8PressureTakesTheOldestLeavesUntilTheMark) {
  const auto old_chain = Chain(nullptr, 40), new_chain = Chain(nullptr, 40), pinned = Chain(nullptr, 10);
  Commit(old_chain, RetentionClass::kChat, kNow);
  Commit(new_chain, RetentionClass::kChat, kNow + kDay);
  Commit(pinned, RetentionClass::kPinned, kNow - kDay);
  const uint64_t record = RecordBytes(kPayload);
  for (uint64_t keep = 89; keep >= 70; --keep) {
    ASSERT_TRUE(index_->EvictTo(keep * record, kNow + 2 * kDay, 1'000'000).ok());
    EXPECT_EQ(index_->num_blocks(), keep);
    EXPECT_EQ(Hit(old_chain), 40 - (90 - keep));  // its front is still whole
    EXPECT_EQ(Hit(new_chain), 40u);
  }
  ASSERT_TRUE(index_->EvictTo(30 * record, kNow + 2 * kDay, 1'000'000).ok());
  EXPECT_EQ(Hit(old_chain), 0u);
  EXPECT_EQ(Hit(new_chain), 20u);
  ASSERT_TRUE(index_->EvictTo(0, kNow + 2 * kDay, 1'000'000).ok());
  EXPECT_EQ(Hit(pinned), 10u);
  CheckInvariants();
}

TEST_P(BlockIndexTest, ACommitWithoutItsParentIsAnOrphan) {
  const auto chain = Chain(nullptr, 3);
  std::vector<CommitOutcome> outcomes;
  ASSERT_TRUE(index_->Commit(std::vector<NewBlock>{Block(chain[0], RetentionClass::kChat, kNow), Block(chain[2], RetentionClass::kChat, kNow)}, outcomes).ok());
  EXPECT_EQ(outcomes, (std::vector<CommitOutcome>{CommitOutcome::kStored, CommitOutcome::kOrphan}));
  EXPECT_EQ(Hit(chain), 1u);
  CheckInvariants();
}

TEST_P(BlockIndexTest, ACleanBlockTakesThePlaceOfAReplayedOneAndNeverTheReverse) {
  const auto chain = Chain(nullptr, 2);
  std::vector<CommitOutcome> outcomes;
  const NewBlock replayed = Block(chain[0], RetentionClass::kChat, kNow, kFlagReplayed);
  ASSERT_TRUE(index_->Commit(std::vector<NewBlock>{replayed, Block(chain[1], RetentionClass::kChat, kNow)}, outcomes).ok());
  std::vector<BlockEntry> found;
  ASSERT_TRUE(index_->Lookup({&chain[0].key, 1}, true, found).ok());
  EXPECT_TRUE(found.empty());
  const NewBlock clean = Block(chain[0], RetentionClass::kChat, kNow);
  ASSERT_TRUE(index_->Commit({&clean, 1}, outcomes).ok());
  EXPECT_EQ(outcomes[0], CommitOutcome::kReplaced);
  ASSERT_TRUE(index_->Commit({&replayed, 1}, outcomes).ok());
  EXPECT_EQ(outcomes[0], CommitOutcome::kExists);
  ASSERT_TRUE(index_->Lookup({&chain[0].key, 1}, true, found).ok());
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].offset, clean.entry.offset);
  CheckInvariants();
}

TEST_P(BlockIndexTest, ADroppedSegmentTakesItsBlocks) {
  const auto chain = Chain(nullptr, 8);
  Commit(chain, RetentionClass::kChat, kNow);
  ASSERT_TRUE(index_->DropSegment(segment_).ok());
  EXPECT_EQ(index_->num_blocks(), 0u);
  EXPECT_EQ(index_->live_bytes(), 0u);
  EXPECT_EQ(Hit(chain), 0u);
}

TEST(BlockIndex, RefusesTheIndexOfAnotherStore) {
  if (!HasRocksTable()) GTEST_SKIP() << "built without RocksDB";
  testing::TemporaryDir dir;
  ASSERT_TRUE(BlockIndex::Open(OpenRocksTable(dir.path()).value(), kStore, {}).ok());
  const auto other = BlockIndex::Open(OpenRocksTable(dir.path()).value(), Uuid{1}, {});
  EXPECT_EQ(other.status().code(), StatusCode::kBadModel);
}

INSTANTIATE_TEST_SUITE_P(Tables, BlockIndexTest, ::testing::Values(false, true),
                         [](const auto& table) { return table.param ? "RocksDB" : "Memory"; });

}  // namespace
}  // namespace deepinfer::kvstore
