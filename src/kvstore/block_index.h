// SPDX-License-Identifier: Apache-2.0
//
// Which blocks are stored, where, and until when. Entries form chains: every entry but a first block has its parent in the
// index and counts its children, and only entries without children are evicted, so that a lookup never meets a hole that
// eviction made. The index can be lost: it is rebuilt from the segments (recovery.h). Thread-safe: lookups run beside one
// change at a time.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kvstore/segment_format.h"
#include "kvstore/table.h"

namespace deepinfer::kvstore {

struct BlockEntry {
  uint64_t segment = 0;
  uint64_t offset = 0;
  uint32_t stored_len = 0;
  uint32_t block_index = 0;
  RetentionClass retention = RetentionClass::kChat;
  uint8_t flags = 0;
  uint32_t layout_id = 1;
  uint32_t created_s = 0;
  uint32_t last_use_s = 0;
  uint64_t parent_low64 = 0;
  uint32_t children = 0;
  uint32_t domain_hash = 0;  // 0: unknown (an entry rebuilt from files)
  bool operator==(const BlockEntry&) const = default;
};

enum class SegmentState : uint8_t { kOpen = 0, kSealed = 1, kDying = 2 };

struct SegmentRow {
  uint64_t id = 0;
  std::string stem;  // relative to the store's root, without suffix
  SegmentState state = SegmentState::kOpen;
  RetentionClass retention = RetentionClass::kChat;
  uint64_t bytes = 0;  // of the sealed file
  uint64_t live_bytes = 0;
  uint64_t live_count = 0;
  uint32_t created_s = 0;
  uint32_t dying_since_s = 0;
  Key256 weights_digest{};
};

struct NewBlock {
  Key256 key;
  BlockEntry entry;
};

enum class CommitOutcome { kStored, kExists, kReplaced, kOrphan };

struct RetentionPolicy {
  // Seconds by class; pinned blocks stay.
  std::array<uint32_t, kNumClasses> ttl_s = {259'200, 604'800, 86'400, 0};
  bool IsExpired(const BlockEntry& entry, uint32_t now_s) const;
  // How much of its time an entry has used up: 1 = all. Pinned: 0.
  double Age(const BlockEntry& entry, uint32_t now_s) const;
};

class BlockIndex {
 public:
  ~BlockIndex();
  // kBadModel when the table was made for another store or by another version.
  static Result<std::unique_ptr<BlockIndex>> Open(std::unique_ptr<Table> table, const Uuid& store, const RetentionPolicy& policy);

  // --- lookups
  // Entries of the leading keys that are there (clean_only: and not replayed).
  Status Lookup(std::span<const Key256> keys, bool clean_only, std::vector<BlockEntry>& found) const;
  Result<std::optional<BlockEntry>> Find(const Key256& key) const;
  Result<std::vector<SegmentRow>> Segments() const;
  Result<std::optional<SegmentRow>> Segment(uint64_t id) const;
  Result<std::vector<Key256>> KeysOf(uint64_t segment) const;
  Result<uint64_t> DomainBytes(uint32_t domain_hash) const;
  Status ForEach(const std::function<bool(const Key256&, const BlockEntry&)>& visit) const;
  uint64_t live_bytes(RetentionClass retention) const;
  uint64_t live_bytes() const;
  uint64_t num_blocks() const;

  // --- segments
  Result<uint64_t> AddSegment(SegmentRow row);  // gives it an id
  Status SealSegment(uint64_t id, uint64_t bytes);
  Status MarkDying(uint64_t id, uint32_t now_s);
  // With its entries.
  Status DropSegment(uint64_t id);

  // --- blocks. All of a call in one durable write.
  // In order: a block whose parent is neither there nor before it in the call is an orphan. A clean block takes the place of a
  // replayed one; else the first one stays.
  Status Commit(std::span<const NewBlock> blocks, std::vector<CommitOutcome>& outcomes);
  // Moves entries that are still at `from` (compaction).
  struct Move {
    Key256 key;
    uint64_t from_segment = 0, from_offset = 0;
    uint64_t to_segment = 0, to_offset = 0;
  };
  Status Relocate(std::span<const Move> moves);
  // Use by a request of class `retention`: may prolong an entry's life, never shorten it.
  Status Touch(std::span<const Key256> keys, RetentionClass retention, uint32_t now_s);
  // With all entries of `keys`; their descendants can be found no more and are evicted when their time comes.
  Status Erase(std::span<const Key256> keys);
  Result<uint64_t> EraseIf(const std::function<bool(const Key256&, const BlockEntry&)>& is_victim);

  // --- eviction: leaves first, at most `max_entries` entries looked at. Returns the number of evicted entries.
  Result<uint64_t> Expire(uint32_t now_s, uint64_t max_entries);
  // Oldest share of their time first, until at most `target_bytes` live.
  Result<uint64_t> EvictTo(uint64_t target_bytes, uint32_t now_s, uint64_t max_entries);

 private:
  class Change;
  class EntryCache;
  BlockIndex(std::unique_ptr<Table> table, const RetentionPolicy& policy);
  Result<uint64_t> EvictUpwards(Change& change, Key256 key, const std::function<bool(const BlockEntry&)>& may_go);

  std::unique_ptr<Table> table_;
  RetentionPolicy policy_;
  std::unique_ptr<EntryCache> cache_;
  mutable std::mutex mutex_;  // changes, and the sums below
  uint64_t next_segment_ = 1;
  std::array<uint64_t, kNumClasses> live_bytes_{};
  uint64_t num_blocks_ = 0;
};

}  // namespace deepinfer::kvstore
