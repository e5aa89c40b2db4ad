// SPDX-License-Identifier: Apache-2.0
#include "engine/prefix_cache.h"

#include <fstream>
#include <sstream>

#include <gtest/gtest.h>

#include "core/json.h"

namespace deepinfer::engine {
namespace {

constexpr int32_t kVocab = 5000;
const ImageTokens kImages = ImageTokens::ForVocab(kVocab);

class PrefixCacheTest : public ::testing::Test {
 protected:
  PrefixCacheTest() { Reset({}); }
  void Reset(PrefixCacheOptions options, int32_t num_ids = 64) {
    options.num_state_records = std::max(options.num_state_records, 16);
    cache_.reset();
    pool_ = std::make_unique<BlockPool>(num_ids);
    cache_ = std::make_unique<PrefixCache>(*pool_, options);
  }
  static std::vector<int32_t> Prompt(int64_t length) {
    std::vector<int32_t> tokens;
    for (int64_t i = 0; i < length; ++i) tokens.push_back(static_cast<int32_t>(1000 + i * 7919 % 3000));
    return tokens;
  }
  std::vector<Key256> Keys(const std::vector<int32_t>& tokens) {
    std::vector<Key256> keys;
    ExtendKeys(root_, tokens, {}, 1 << 20, keys);
    return keys;
  }
  // A finished request: its full blocks are published, with a STATE record each.
  void Fill(const std::vector<int32_t>& tokens, bool is_replayed = false, bool with_states = true) {
    std::vector<int32_t> table;
    for (const Key256& key : Keys(tokens)) {
      table.push_back(pool_->Allocate());
      cache_->Publish(key, table.back(), is_replayed);
      if (with_states) cache_->PublishRecord(key, cache_->AllocateRecord());
    }
    pool_->ReleaseTable(table);
  }
  PrefixHit Lookup(const std::vector<int32_t>& tokens, CacheMode mode, int64_t exact_limit = 1 << 20) {
    return cache_->Lookup(tokens, Keys(tokens), mode, exact_limit, kImages, blocks_);
  }

  Key256 root_;
  std::unique_ptr<BlockPool> pool_;
  std::unique_ptr<PrefixCache> cache_;
  std::vector<int32_t> blocks_;
};

TEST_F(PrefixCacheTest, HitLengthsOfTheSharedCase) {
  std::ifstream file(DEEPINFER_SOURCE_DIR "/tests/golden/cases/14-prefix-hit-lengths.json");
  std::stringstream text;
  text << file.rdbuf();
  const Json json = ParseJson(text.str()).value();
  int num_rows = 0;
  for (const Json& row : json["rows"]) {
    const int64_t length = row["length"].get<int64_t>();
    Reset({});
    const auto prompt = Prompt(length);
    Fill(prompt);
    const PrefixHit replay = Lookup(prompt, CacheMode::kReplay);
    EXPECT_EQ(replay.num_tokens, row["max_cached_tokens"].get<int64_t>()) << length;
    if (replay.num_tokens > 0) {
      EXPECT_EQ(replay.start, replay.num_tokens - 128);
      EXPECT_EQ(replay.valid_start, replay.start);
      EXPECT_EQ(replay.state_record, 0);
    }
    const PrefixHit exact = Lookup(prompt, CacheMode::kExact, length - 140);
    EXPECT_EQ(exact.num_tokens, row["max_cached_tokens_exact"].get<int64_t>()) << length;
    EXPECT_EQ(exact.start, exact.num_tokens);
    EXPECT_EQ(exact.valid_start, 0);
    EXPECT_EQ(exact.state_record != 0, exact.num_tokens > 0);
    EXPECT_EQ(Lookup(prompt, CacheMode::kOff).num_tokens, 0);
    ++num_rows;
  }
  EXPECT_EQ(num_rows, 15);
}

TEST_F(PrefixCacheTest, HitStopsAtTheFirstDifferentBlock) {
  auto prompt = Prompt(1000);
  Fill(prompt);
  prompt[300] = 7;
  EXPECT_EQ(Lookup(prompt, CacheMode::kReplay).num_tokens, 256);
  EXPECT_EQ(blocks_, (std::vector<int32_t>{1, 2}));
  prompt[130] = 7;  // one block is left: too short to replay
  EXPECT_EQ(Lookup(prompt, CacheMode::kReplay).num_tokens, 0);
  EXPECT_EQ(Lookup(prompt, CacheMode::kExact).num_tokens, 128);
}

TEST_F(PrefixCacheTest, OtherSaltNeverHits) {
  const auto prompt = Prompt(700);
  Fill(prompt);
  root_.bytes[5] ^= 1;
  EXPECT_EQ(Lookup(prompt, CacheMode::kReplay).num_tokens, 0);
}

TEST_F(PrefixCacheTest, ExactNeedsAStateRecord) {
  const auto prompt = Prompt(700);
  Fill(prompt, false, false);
  EXPECT_EQ(Lookup(prompt, CacheMode::kExact, 560).num_tokens, 0);
  const auto keys = Keys(prompt);
  cache_->PublishRecord(keys[1], cache_->AllocateRecord());
  EXPECT_EQ(Lookup(prompt, CacheMode::kExact, 560).num_tokens, 256);
  cache_->DropRecord(keys[1]);
  EXPECT_EQ(Lookup(prompt, CacheMode::kExact, 560).num_tokens, 0);
  EXPECT_EQ(Lookup(prompt, CacheMode::kReplay).num_tokens, 640);
}

TEST_F(PrefixCacheTest, ExactTakesCleanChainsOnlyAndCleanReplacesReplayed) {
  const auto prompt = Prompt(700);
  const auto keys = Keys(prompt);
  Fill(prompt, true);
  EXPECT_EQ(Lookup(prompt, CacheMode::kReplay).num_tokens, 640);
  EXPECT_EQ(Lookup(prompt, CacheMode::kExact, 560).num_tokens, 0);
  const int32_t old = cache_->FindBlock(keys[0]);
  const int32_t clean = pool_->Allocate();
  EXPECT_TRUE(cache_->Publish(keys[0], clean, false));
  EXPECT_EQ(cache_->FindBlock(keys[0]), clean);
  EXPECT_FALSE(pool_->is_keyed(old));
  EXPECT_EQ(Lookup(prompt, CacheMode::kExact, 560).num_tokens, 128);
  const int32_t replayed = pool_->Allocate();
  EXPECT_FALSE(cache_->Publish(keys[0], replayed, true));
  EXPECT_EQ(cache_->FindBlock(keys[0]), clean);
}

TEST_F(PrefixCacheTest, ReusedBlocksLeaveTheCacheEndOfPrefixFirst) {
  Reset({}, 9);
  const auto prompt = Prompt(128 * 8 + 1);
  Fill(prompt);
  EXPECT_EQ(Lookup(prompt, CacheMode::kReplay).num_tokens, 1024);
  std::vector<int32_t> other;
  for (int i = 0; i < 4; ++i) other.push_back(pool_->Allocate());
  EXPECT_EQ(Lookup(prompt, CacheMode::kReplay).num_tokens, 512);
  EXPECT_EQ(cache_->num_blocks(), 4);
  EXPECT_EQ(cache_->num_evicted_blocks(), 4);
}

TEST_F(PrefixCacheTest, HitNeverEndsInsideAnImage) {
  auto prompt = Prompt(700);
  prompt[250] = kImages.image;
  for (size_t i = 251; i < 400; ++i) prompt[i] = kImages.pad;
  Fill(prompt);
  EXPECT_EQ(Lookup(prompt, CacheMode::kReplay).num_tokens, 640);
  std::vector<int32_t> shorter(prompt.begin(), prompt.begin() + 500);
  EXPECT_EQ(Lookup(shorter, CacheMode::kReplay).num_tokens, 0);  // 384 and 256 are inside, 128 is too short
  EXPECT_EQ(Lookup(shorter, CacheMode::kExact).num_tokens, 128);
  EXPECT_FALSE(IsInsideImage(prompt, 250, kImages));
  EXPECT_TRUE(IsInsideImage(prompt, 399, kImages));
  EXPECT_FALSE(IsInsideImage(prompt, 400, kImages));
}

TEST_F(PrefixCacheTest, LeastRecentlyUsedRecordGivesWay) {
  PrefixCacheOptions options;
  options.num_state_records = 16;
  Reset(options);
  const auto keys = Keys(Prompt(128 * 18));
  for (int i = 0; i < 16; ++i) cache_->PublishRecord(keys[static_cast<size_t>(i)], cache_->AllocateRecord());
  cache_->TouchRecord(keys[0]);
  cache_->PublishRecord(keys[16], cache_->AllocateRecord());
  EXPECT_TRUE(cache_->HasRecord(keys[0]));
  EXPECT_FALSE(cache_->HasRecord(keys[1]));
  EXPECT_EQ(cache_->num_records(), 16);
  EXPECT_EQ(cache_->num_pending_records(), 0);
}

}  // namespace
}  // namespace deepinfer::engine
