// SPDX-License-Identifier: Apache-2.0
//
// The persistent tier of the prefix cache on a directory: blocks are offered when they are computed, written behind the
// caller's back, found again by their keys after any restart, and loaded with every byte checked. Whatever goes wrong in it
// is a miss: a request never fails because of the store. One process has the directory; any of its threads may call.
#pragma once

#include <array>
#include <condition_variable>
#include <deque>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "core/async_reader.h"
#include "kvstore/block_index.h"
#include "kvstore/circuit_breaker.h"
#include "kvstore/recovery.h"
#include "kvstore/segment_writer.h"
#include "kvstore/store_root.h"
#include "kvstore/wall_clock.h"

namespace deepinfer::kvstore {

struct StoreOptions {
  std::string root;
  bool may_create = true;
  bool index_in_memory = false;  // rebuilt from the files at every start; for tests and small stores
  Key256 weights_digest;
  uint32_t layout_id = 1;
  uint32_t payload_bytes = 0;  // of every block
  uint64_t segment_bytes = uint64_t{1} << 30;
  uint64_t barrier_bytes = 8 << 20;
  int64_t barrier_ms = 200;
  uint32_t idle_seal_s = 600;
  uint64_t arena_bytes = uint64_t{2} << 30;  // offered and not yet written
  int io_depth = 64;
  bool direct_reads = true;
  uint64_t capacity_bytes = 0;  // 0: no limit but the disk's
  double high_watermark = 0.92, low_watermark = 0.88;
  RetentionPolicy retention;
  double quota_bytes_fraction = 0.02;  // of the capacity, for each isolation domain
  uint64_t quota_blocks_per_s = 20'000;
  uint32_t grace_s = 120;  // between the last entry of a segment and the removal of its file
  uint64_t gc_ops_per_s = 2'000;
  bool run_gc = true;  // every 60 s by the writer's thread; RunGc() works either way
  // Seams; all outlive the store.
  FileOps* files = &FileOps::System();
  ReadFilter* read_filter = nullptr;
  const Clock* clock = &Clock::Steady();
  const WallClock* wall_clock = &WallClock::System();
};

struct OfferedBlock {
  Key256 key;
  Key256 parent;  // the root for block 0
  uint32_t block_index = 0;
  RetentionClass retention = RetentionClass::kChat;
  uint8_t flags = 0;
  uint32_t numerics_class = 0;
  uint32_t domain_hash = 0;  // of the isolation domain, for quotas and purges
  std::span<const uint8_t> payload;
};

struct HitPlan {
  std::vector<Key256> keys;
  std::vector<BlockEntry> entries;  // as many: the leading blocks that are stored
  std::vector<uint64_t> pins;       // segments whose files stay until Release
  size_t num_blocks() const { return entries.size(); }
};

enum class LoadStop { kComplete, kDeadline, kCorrupt, kMissing, kIo };

struct LoadResult {
  size_t num_ok_blocks = 0;  // the leading ones; what is behind them is unspecified
  LoadStop stop = LoadStop::kComplete;
};

// Counts since the start, but for the first four.
struct StoreStats {
  std::array<uint64_t, kNumClasses> live_bytes{};
  uint64_t num_blocks = 0;
  uint64_t arena_bytes = 0;
  bool is_read_open = true, is_write_open = true;  // the circuit breakers let calls through
  uint64_t lookups = 0, hit_blocks = 0, miss_blocks = 0;
  uint64_t loaded_blocks = 0, loaded_bytes = 0;
  uint64_t truncated_deadline = 0, truncated_corrupt = 0, truncated_missing = 0, truncated_io = 0;
  uint64_t written_blocks = 0, written_bytes = 0, deduplicated = 0;
  uint64_t dropped_arena = 0, dropped_quota = 0, dropped_io = 0, dropped_orphan = 0;
  uint64_t evicted_expired = 0, evicted_size = 0, evicted_purge = 0, evicted_corrupt = 0;
  uint64_t unlinked_segments = 0, compacted_segments = 0, quarantined_segments = 0;
};

struct VerifyReport {
  uint64_t segments = 0, blocks = 0, bytes = 0;
  std::vector<std::string> problems;  // one line each
};

// Of an isolation domain's name; never 0, which stands for an unknown one.
uint32_t DomainHash(std::string_view domain);

class BlockStore {
 public:
  static Result<std::unique_ptr<BlockStore>> Open(const StoreOptions& options);
  BlockStore(const BlockStore&) = delete;
  BlockStore& operator=(const BlockStore&) = delete;
  // Writes what was offered, seals, and ends the writer's thread.
  ~BlockStore();

  const RecoveryReport& recovery() const { return recovery_; }
  const StoreRoot& root() const { return *root_; }
  const BlockIndex& index() const { return *index_; }

  // The leading stored blocks of a prompt; clean_only: none that were computed from replayed rows (cache mode exact). An
  // open circuit breaker or a failing index is a miss.
  HitPlan Lookup(std::span<const Key256> keys, bool clean_only = false);
  // Reads the plan's blocks into `dst` (one span of payload_bytes each) until the deadline of the options' clock.
  LoadResult Load(const HitPlan& plan, std::span<const std::span<uint8_t>> dst, int64_t deadline_ns);
  void Release(HitPlan& plan);
  // Marks blocks as used. A hit passes the deepest block of every 64: what is above a block lives as long as it does.
  void Touch(std::span<const Key256> keys, RetentionClass retention);

  // Copies and returns; drops what does not fit. Blocks of a chain in ascending order.
  void Offer(std::span<const OfferedBlock> blocks);
  // Returns when all that was offered before is committed or dropped.
  void Flush();

  // Expiry, capacity, empty and sparse segments, leftovers of write errors. After the time of day jumped back by more than a
  // minute it is refused (kUnavailable) until somebody accepts the clock.
  Status RunGc(bool accept_clock = false);
  // Unreachable when it returns; files go with garbage collection. domain_hash also takes the blocks whose domain is not known.
  Result<uint64_t> PurgeDomain(uint32_t domain_hash);
  Result<uint64_t> PurgeClass(RetentionClass retention);
  Result<uint64_t> PurgeModel(const Key256& weights_digest);
  Result<uint64_t> PurgeKey(const Key256& key);
  // Reads every byte of every segment; damaged blocks and segments are taken out.
  Result<VerifyReport> Verify();

  StoreStats Stats() const;

 private:
  struct Offered;
  struct OpenSegment;
  struct Staging;
  explicit BlockStore(const StoreOptions& options);
  Status Start();

  // --- the writer's thread
  void RunWriter();
  void Write(const Offered& block);
  Result<OpenSegment*> SegmentFor(RetentionClass retention);
  void CommitPending();
  Result<std::unique_ptr<OpenSegment>> NewSegment(SegmentHeader header);
  bool SealSegment(OpenSegment& segment);
  void SealDue(bool all);
  void FailWrites(const Status& why, uint64_t num_more);
  Status RunGcLocked(bool accept_clock);
  Status SealLeftovers();
  Status RemoveEmptySegments(uint32_t now_s);
  Status CompactSegment(const SegmentRow& row);
  Status FreeRoom(uint32_t now_s);
  Result<uint64_t> Purge(const std::function<bool(const Key256&, const BlockEntry&)>& is_victim);

  // --- reads
  std::shared_ptr<Staging> TakeStaging();
  void GiveStaging(std::shared_ptr<Staging> staging);
  Result<std::shared_ptr<InputFile>> FileOf(uint64_t segment, bool& is_sealed);
  void ReportDamage(const Key256& key, const BlockEntry& entry, const Status& why);
  void ForgetFile(uint64_t segment);
  bool IsPinned(uint64_t segment) const;

  const StoreOptions options_;
  std::unique_ptr<StoreRoot> root_;
  std::unique_ptr<BlockIndex> index_;
  std::unique_ptr<AsyncReader> reader_;
  RecoveryReport recovery_;
  CircuitBreaker read_breaker_, write_breaker_;
  uint64_t writer_id_ = 0;

  mutable std::mutex mutex_;  // queue, pins, files, staging, stats
  std::condition_variable wake_writer_, writer_done_;
  std::deque<Offered> queue_;
  uint64_t queued_bytes_ = 0;
  uint64_t offered_ = 0, settled_ = 0;  // counts of blocks
  bool is_flushing_ = false, is_stopping_ = false;
  std::map<uint64_t, int> pins_;
  std::map<uint64_t, std::shared_ptr<InputFile>> sealed_files_;
  std::vector<std::shared_ptr<Staging>> idle_staging_, late_staging_;
  std::unordered_map<uint64_t, std::deque<int64_t>> damage_ns_;  // by segment
  StoreStats stats_;

  // Owned by whoever has writer_mutex_: the writer's thread, garbage collection, purges.
  std::mutex writer_mutex_;
  std::array<std::unique_ptr<OpenSegment>, kNumClasses> open_;
  std::vector<NewBlock> pending_;
  std::unordered_map<Key256, size_t, Key256Hash> pending_keys_;
  uint64_t pending_bytes_ = 0;
  int64_t pending_since_ns_ = 0;
  uint32_t next_sequence_ = 0;
  std::map<uint32_t, uint64_t> domain_pending_bytes_;
  std::map<uint32_t, std::pair<uint32_t, uint64_t>> domain_rate_;  // second, blocks in it
  int64_t last_gc_unix_ns_ = 0;
  int64_t latest_unix_ns_ = 0;
  bool needs_room_ = false;  // a write found the disk full

  std::thread writer_;
};

}  // namespace deepinfer::kvstore
