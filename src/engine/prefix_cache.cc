// SPDX-License-Identifier: Apache-2.0
#include "engine/prefix_cache.h"

#include <algorithm>

#include "core/check.h"

namespace deepinfer::engine {

bool IsInsideImage(std::span<const int32_t> tokens, int64_t pos, const ImageTokens& ids) {
  if (pos < 0 || pos >= static_cast<int64_t>(tokens.size())) return false;
  while (pos >= 0 && tokens[static_cast<size_t>(pos)] == ids.pad) {
    --pos;
    if (pos >= 0 && tokens[static_cast<size_t>(pos)] == ids.image) return true;
  }
  return false;
}

PrefixCache::PrefixCache(BlockPool& pool, PrefixCacheOptions options)
    : pool_(pool), options_(options), key_of_block_(static_cast<size_t>(pool.num_usable()) + 1) {
  DI_CHECK(options_.replay_tokens > 0 && options_.replay_tokens % 2 == 0) << "replay_tokens is " << options_.replay_tokens;
  DI_CHECK(options_.state_every_blocks > 0) << "state_every_blocks is " << options_.state_every_blocks;
  for (int32_t id = options_.num_state_records; id > 0; --id) free_records_.push_back(id);
  pool_.set_on_reuse([this](int32_t block) {
    const auto it = blocks_.find(key_of_block_[static_cast<size_t>(block)]);
    DI_CHECK(it != blocks_.end() && it->second.block == block) << "block " << block << " is keyed but not in the cache";
    blocks_.erase(it);
    ++num_evicted_blocks_;
  });
}

PrefixHit PrefixCache::Lookup(std::span<const int32_t> tokens, std::span<const Key256> keys, CacheMode mode,
                              int64_t exact_limit, const ImageTokens& image_tokens, std::vector<int32_t>& blocks) const {
  blocks.clear();
  PrefixHit hit;
  if (mode == CacheMode::kOff || tokens.empty()) return hit;
  // At least one token has to be computed.
  int64_t limit = (static_cast<int64_t>(tokens.size()) - 1) / kTokensPerBlock;
  if (mode == CacheMode::kExact) limit = std::min(limit, std::max<int64_t>(exact_limit, 0) / kTokensPerBlock);
  limit = std::min(limit, static_cast<int64_t>(keys.size()));
  int64_t n = 0;
  for (; n < limit; ++n) {
    const auto it = blocks_.find(keys[static_cast<size_t>(n)]);
    if (it == blocks_.end() || (mode == CacheMode::kExact && it->second.is_replayed)) break;
    blocks.push_back(it->second.block);
  }
  for (; n > 0; --n) {
    if (IsInsideImage(tokens, n * kTokensPerBlock, image_tokens)) continue;
    if (mode == CacheMode::kReplay) break;
    const auto it = records_.find(keys[static_cast<size_t>(n - 1)]);
    if (it == records_.end()) continue;
    hit.state_record = it->second.id;
    break;
  }
  hit.num_tokens = n * kTokensPerBlock;
  // A replay of the whole hit saves nothing.
  if (mode == CacheMode::kReplay && hit.num_tokens <= options_.replay_tokens) hit.num_tokens = 0;
  blocks.resize(static_cast<size_t>(hit.num_tokens / kTokensPerBlock));
  hit.start = hit.num_tokens;
  if (mode == CacheMode::kReplay && hit.num_tokens > 0) hit.start = hit.valid_start = hit.num_tokens - options_.replay_tokens;
  return hit;
}

bool PrefixCache::Publish(const Key256& key, int32_t block, bool is_replayed) {
  DI_CHECK(pool_.ref_count(block) > 0) << "block " << block << " is published without owner";
  // A block keeps its first name: one chain per content.
  if (pool_.is_keyed(block)) return key_of_block_[static_cast<size_t>(block)] == key;
  BlockEntry& entry = blocks_[key];
  if (entry.block != 0) {
    if (!entry.is_replayed || is_replayed) return false;
    pool_.SetKeyed(entry.block, false);
  }
  entry = {block, is_replayed};
  key_of_block_[static_cast<size_t>(block)] = key;
  pool_.SetKeyed(block, true);
  return true;
}

int32_t PrefixCache::FindBlock(const Key256& key) const {
  const auto it = blocks_.find(key);
  return it == blocks_.end() ? 0 : it->second.block;
}

int32_t PrefixCache::AllocateRecord() {
  if (free_records_.empty()) {
    if (record_lru_.empty()) return 0;
    DropRecord(Key256(record_lru_.front()));
  }
  const int32_t record = free_records_.back();
  free_records_.pop_back();
  ++num_pending_records_;
  return record;
}

void PrefixCache::PublishRecord(const Key256& block_key, int32_t record) {
  if (HasRecord(block_key)) {
    FreeRecord(record);
    TouchRecord(block_key);
    return;
  }
  --num_pending_records_;
  records_[block_key] = {record, record_lru_.insert(record_lru_.end(), block_key)};
}

void PrefixCache::FreeRecord(int32_t record) {
  --num_pending_records_;
  free_records_.push_back(record);
}

void PrefixCache::DropRecord(const Key256& block_key) {
  const auto it = records_.find(block_key);
  if (it == records_.end()) return;
  free_records_.push_back(it->second.id);
  record_lru_.erase(it->second.lru);
  records_.erase(it);
}

void PrefixCache::TouchRecord(const Key256& block_key) {
  const auto it = records_.find(block_key);
  if (it == records_.end()) return;
  record_lru_.splice(record_lru_.end(), record_lru_, it->second.lru);
}

}  // namespace deepinfer::engine
