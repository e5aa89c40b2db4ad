// SPDX-License-Identifier: Apache-2.0
//
// The in-memory prefix cache: which blocks hold which prefix, and which STATE records (producer-half window rings at a
// multiple of 128 tokens) exist. Holds no references: a block found here is taken through the BlockPool, and the pool tells
// the cache when it reuses one. Hit rules: engine.md 10 and kv-store.md 6 of the specification.
// Not thread-safe: the scheduler's thread.
#pragma once

#include <cstdint>
#include <list>
#include <span>
#include <unordered_map>
#include <vector>

#include "engine/block_pool.h"
#include "engine/prefix_key.h"

namespace deepinfer::engine {

enum class CacheMode {
  kOff,     // no lookup, no write
  kReplay,  // every chain; the last replay_tokens hit tokens are recomputed to refill the window rings
  kExact,   // clean chains that end at a STATE record; nothing is replayed
};

struct PrefixCacheOptions {
  int64_t replay_tokens = 128;      // even, at least the sliding window
  int64_t state_every_blocks = 32;  // STATE records at multiples of that many blocks (and where a prompt's exact hit ends)
  int32_t num_state_records = 0;    // memory for that many; 0 = none are kept
};

// Sentinel ids of expanded images: vocab_size + 0 start, 1 pad, 2 image, 3 newline, 4 end.
struct ImageTokens {
  int32_t pad = -1;
  int32_t image = -2;
  static ImageTokens ForVocab(int32_t vocab_size) { return {vocab_size + 1, vocab_size + 2}; }
};

// Whether a chunk or a hit may not end in front of token `pos`: it is a pad whose run of pads begins with an image token.
bool IsInsideImage(std::span<const int32_t> tokens, int64_t pos, const ImageTokens& ids);

struct PrefixHit {
  int64_t num_tokens = 0;    // H, a multiple of 128; 0 = miss
  int64_t start = 0;         // first position to compute
  int64_t valid_start = 0;   // window keys below it never exist
  int32_t state_record = 0;  // to load into the slot; 0 = none
};

class PrefixCache {
 public:
  // `pool` outlives the cache, which becomes its on_reuse listener.
  PrefixCache(BlockPool& pool, PrefixCacheOptions options);
  PrefixCache(const PrefixCache&) = delete;
  PrefixCache& operator=(const PrefixCache&) = delete;

  const PrefixCacheOptions& options() const { return options_; }
  bool keeps_states() const { return options_.num_state_records > 0; }

  // The longest legal hit for `tokens` whose full blocks have `keys`. `exact_limit` bounds mode exact (the decoder floor).
  // Changes nothing; the hit's blocks go to `blocks`.
  PrefixHit Lookup(std::span<const int32_t> tokens, std::span<const Key256> keys, CacheMode mode, int64_t exact_limit,
                   const ImageTokens& image_tokens, std::vector<int32_t>& blocks) const;

  // Gives `block`, which has an owner, the key. A clean block replaces a replayed one under its key; otherwise the first
  // one stays. True if the key names this block now.
  bool Publish(const Key256& key, int32_t block, bool is_replayed);
  int32_t FindBlock(const Key256& key) const;

  // STATE records. An id is handed out for a save that is planned (the least recently used record gives way; 0 = none is
  // left), then published under its block key or given back.
  int32_t AllocateRecord();
  void PublishRecord(const Key256& block_key, int32_t record);
  void FreeRecord(int32_t record);
  // Removes a published record, if it is there.
  void DropRecord(const Key256& block_key);
  bool HasRecord(const Key256& block_key) const { return records_.count(block_key) != 0; }
  void TouchRecord(const Key256& block_key);

  int64_t num_blocks() const { return static_cast<int64_t>(blocks_.size()); }
  int64_t num_records() const { return static_cast<int64_t>(records_.size()); }
  int64_t num_pending_records() const { return num_pending_records_; }
  int64_t num_evicted_blocks() const { return num_evicted_blocks_; }

 private:
  struct BlockEntry {
    int32_t block = 0;
    bool is_replayed = false;
  };
  struct Record {
    int32_t id = 0;
    std::list<Key256>::iterator lru;
  };

  BlockPool& pool_;
  PrefixCacheOptions options_;
  std::unordered_map<Key256, BlockEntry, Key256Hash> blocks_;
  std::vector<Key256> key_of_block_;  // by block id; valid while the pool says keyed
  std::unordered_map<Key256, Record, Key256Hash> records_;  // by block key
  std::list<Key256> record_lru_;                            // front = least recently used
  std::vector<int32_t> free_records_;
  int64_t num_pending_records_ = 0;
  int64_t num_evicted_blocks_ = 0;
};

}  // namespace deepinfer::engine
