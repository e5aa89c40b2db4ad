// SPDX-License-Identifier: Apache-2.0
//
// Opening, the write path and queries; reads are in block_store_load.cc, garbage collection in block_store_gc.cc.
#include "kvstore/block_store.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <filesystem>

#include <fmt/format.h>
#include <openssl/rand.h>

#include "core/log.h"
#include "kvstore/block_store_impl.h"

namespace deepinfer::kvstore {
namespace {

constexpr uint64_t kMaxSharedBarriers = 8;

}  // namespace

uint32_t DomainHash(std::string_view domain) { return std::max(static_cast<uint32_t>(KeyLow64(Sha256Of(domain))), 1u); }

BlockStore::BlockStore(const StoreOptions& options)
    : options_(options), read_breaker_(*options.clock), write_breaker_(*options.clock) {}

Result<std::unique_ptr<BlockStore>> BlockStore::Open(const StoreOptions& options) {
  if (options.payload_bytes == 0) return InvalidArgument("a block store needs the size of its blocks");
  if (options.segment_bytes > kMaxSegmentBytes || options.segment_bytes < kSegmentHeaderBytes + RecordBytes(options.payload_bytes)) {
    return InvalidArgument(fmt::format("segment_bytes is {}; it must hold a block and be at most {}", options.segment_bytes, kMaxSegmentBytes));
  }
  std::unique_ptr<BlockStore> store(new BlockStore(options));
  DI_RETURN_IF_ERROR(store->Start());
  return store;
}

Status BlockStore::Start() {
  DI_ASSIGN_OR_RETURN(root_, StoreRoot::Open(options_.root, options_.may_create));
  const auto open_index = [&]() -> Result<std::unique_ptr<BlockIndex>> {
    std::unique_ptr<Table> table;
    if (options_.index_in_memory) {
      table = MakeMemoryTable();
    } else {
      DI_ASSIGN_OR_RETURN(table, OpenRocksTable(root_->index_directory()));
    }
    Result<std::unique_ptr<BlockIndex>> index = BlockIndex::Open(std::move(table), root_->uuid(), options_.retention);
    if (!index.ok()) return index.status().WithContext(root_->index_directory());
    return index;
  };
  Result<std::unique_ptr<BlockIndex>> index = open_index();
  if (!index.ok() && index.status().code() == StatusCode::kBadModel) {
    // The index is soft state: a damaged one is put aside and made again from the segments.
    const std::string aside = fmt::format("{}/index-{}", root_->quarantine_directory(), UuidText(RandomUuid()));
    std::error_code error;
    std::filesystem::create_directories(root_->quarantine_directory(), error);
    std::filesystem::rename(root_->index_directory(), aside, error);
    if (error) return index.status();
    DI_LOG(warn, "block store: {}; it is moved to {} and made again", index.status().message(), aside);
    recovery_.problems.push_back(index.status().message());
    index = open_index();
  }
  if (!index.ok()) return index.status();
  index_ = std::move(index).value();
  DI_RETURN_IF_ERROR(RecoverStore(*root_, *options_.files, *index_, options_.wall_clock->NowUnixNs(), recovery_));
  for (const std::string& problem : recovery_.problems) DI_LOG(warn, "block store: {}", problem);
  DI_ASSIGN_OR_RETURN(reader_, AsyncReader::Create({.queue_depth = options_.io_depth, .chunk_bytes = 1 << 20, .filter = options_.read_filter}));
  DI_CHECK(RAND_bytes(reinterpret_cast<unsigned char*>(&writer_id_), sizeof(writer_id_)) == 1) << "no random bytes";
  last_gc_unix_ns_ = options_.wall_clock->NowUnixNs();
  writer_ = std::thread([this] { RunWriter(); });
  return Status::Ok();
}

BlockStore::~BlockStore() {
  if (!writer_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    is_stopping_ = true;
  }
  wake_writer_.notify_all();
  writer_.join();
}

// ---- offers ---------------------------------------------------------------------------------------------------------------

void BlockStore::Offer(std::span<const OfferedBlock> blocks) {
  {
    const std::lock_guard lock(mutex_);
    for (const OfferedBlock& block : blocks) {
      DI_CHECK(block.payload.size() == options_.payload_bytes) << "a block of " << block.payload.size() << " bytes";
      if (queued_bytes_ + block.payload.size() > options_.arena_bytes) {
        ++stats_.dropped_arena;
      } else {
        queued_bytes_ += block.payload.size();
        ++offered_;
        queue_.push_back({block, {block.payload.begin(), block.payload.end()}});
      }
    }
  }
  wake_writer_.notify_one();
}

void BlockStore::Flush() {
  std::unique_lock lock(mutex_);
  const uint64_t target = offered_;
  is_flushing_ = true;
  wake_writer_.notify_one();
  writer_done_.wait(lock, [&] { return settled_ >= target; });
}

void BlockStore::RunWriter() {
  const auto barrier = std::chrono::milliseconds(options_.barrier_ms);
  std::unique_lock lock(mutex_);
  while (true) {
    // Pending blocks wait for company no longer than a barrier; without any, housekeeping is not urgent.
    wake_writer_.wait_for(lock, barrier, [&] { return is_stopping_ || is_flushing_ || !queue_.empty(); });
    const bool is_last = is_stopping_ && queue_.empty();
    const bool is_forced = is_flushing_ || is_stopping_;
    is_flushing_ = false;
    std::deque<Offered> blocks;
    blocks.swap(queue_);
    const uint64_t settled = offered_;
    lock.unlock();
    bool is_settled = true;
    {
      const std::lock_guard writer_lock(writer_mutex_);
      for (const Offered& block : blocks) {
        Write(block);
        const std::lock_guard stats_lock(mutex_);
        queued_bytes_ -= block.payload.size();
      }
      const bool is_due = options_.clock->NowNs() - pending_since_ns_ >= options_.barrier_ms * 1'000'000;
      if (is_forced || is_due || pending_bytes_ >= options_.barrier_bytes) CommitPending();
      is_settled = pending_.empty();
      SealDue(is_last);
      if (options_.run_gc && options_.wall_clock->NowUnixNs() - last_gc_unix_ns_ >= 60'000'000'000) {
        if (const Status status = RunGcLocked(false); !status.ok()) DI_LOG(warn, "block store: garbage collection: {}", status.message());
      }
    }
    lock.lock();
    if (is_settled) settled_ = settled;
    writer_done_.notify_all();
    if (is_last) return;
  }
}

void BlockStore::Write(const Offered& offered) {
  const OfferedBlock& block = offered.block;
  const auto drop = [this](uint64_t StoreStats::* reason) {
    const std::lock_guard lock(mutex_);
    ++(stats_.*reason);
  };
  const bool is_replayed = (block.flags & kFlagReplayed) != 0;
  const Result<std::optional<BlockEntry>> stored = index_->Find(block.key);
  if (!stored.ok()) return FailWrites(stored.status(), 1);
  const bool is_better = *stored && ((*stored)->flags & kFlagReplayed) != 0 && !is_replayed;
  if ((*stored && !is_better) || pending_keys_.count(block.key) != 0) {
    drop(&StoreStats::deduplicated);
    return;
  }
  if (block.block_index > 0 && pending_keys_.count(block.parent) == 0) {
    const Result<std::optional<BlockEntry>> parent = index_->Find(block.parent);
    if (!parent.ok()) return FailWrites(parent.status(), 1);
    if (!*parent) return drop(&StoreStats::dropped_orphan);
  }
  const uint32_t now_s = options_.wall_clock->NowUnixS();
  auto& [second, blocks_in_second] = domain_rate_[block.domain_hash];
  if (second != now_s) {
    second = now_s;
    blocks_in_second = 0;
  }
  const uint64_t record_bytes = RecordBytes(options_.payload_bytes);
  if (++blocks_in_second > options_.quota_blocks_per_s) return drop(&StoreStats::dropped_quota);
  if (options_.capacity_bytes > 0) {
    const Result<uint64_t> used = index_->DomainBytes(block.domain_hash);
    const auto limit = static_cast<uint64_t>(static_cast<double>(options_.capacity_bytes) * options_.quota_bytes_fraction);
    if (!used.ok()) return FailWrites(used.status(), 1);
    if (*used + domain_pending_bytes_[block.domain_hash] + record_bytes > limit) return drop(&StoreStats::dropped_quota);
  }
  // The last test: who is let through commits or fails, together with those behind it, and that closes or opens the breaker.
  if (pending_.empty() && !write_breaker_.Allow()) return drop(&StoreStats::dropped_io);
  const Result<OpenSegment*> segment = SegmentFor(block.retention);
  if (!segment.ok()) return FailWrites(segment.status(), 1);
  RecordHeader header;
  header.flags = block.flags;
  header.key = block.key;
  header.parent = block.parent;
  header.block_index = block.block_index;
  header.written_unix_ns = options_.wall_clock->NowUnixNs();
  const uint32_t ttl = options_.retention.ttl_s[static_cast<size_t>(block.retention)];
  header.expires_hint_unix_s = ttl == 0 ? 0 : uint64_t{now_s} + ttl;
  header.layout_id = options_.layout_id;
  header.numerics_class = block.numerics_class;
  const Result<uint64_t> offset = (*segment)->writer->Append(header, offered.payload);
  if (!offset.ok()) return FailWrites(offset.status(), 1);
  if (pending_.empty()) pending_since_ns_ = options_.clock->NowNs();
  NewBlock entry;
  entry.key = block.key;
  entry.entry = {.segment = (*segment)->id,
                 .offset = *offset,
                 .stored_len = options_.payload_bytes,
                 .block_index = block.block_index,
                 .retention = block.retention,
                 .flags = block.flags,
                 .layout_id = options_.layout_id,
                 .created_s = now_s,
                 .last_use_s = now_s,
                 .parent_low64 = KeyLow64(block.parent),
                 .domain_hash = block.domain_hash};
  pending_keys_.emplace(block.key, pending_.size());
  pending_.push_back(entry);
  pending_bytes_ += record_bytes;
  domain_pending_bytes_[block.domain_hash] += record_bytes;
  // Blocks that came while the last barrier was under way share the next one; a barrier costs the disk the same for all of them.
  if (pending_bytes_ >= kMaxSharedBarriers * options_.barrier_bytes) CommitPending();
}

// With the class, layout and model of `header`; the rest of it is this writer's.
Result<std::unique_ptr<BlockStore::OpenSegment>> BlockStore::NewSegment(SegmentHeader header) {
  const int64_t now = options_.wall_clock->NowUnixNs();
  header.segment = RandomUuid();
  header.store = root_->uuid();
  header.created_unix_ns = now;
  header.writer_id = writer_id_;
  auto segment = std::make_unique<OpenSegment>();
  DI_ASSIGN_OR_RETURN(segment->stem, root_->NewStem(header.retention, now, writer_id_, next_sequence_++));
  DI_ASSIGN_OR_RETURN(segment->writer, SegmentWriter::Create(*options_.files, root_->path() + "/" + segment->stem, header));
  segment->hour = HourBucket(now);
  SegmentRow row;
  row.stem = segment->stem;
  row.retention = header.retention;
  row.created_s = options_.wall_clock->NowUnixS();
  row.weights_digest = header.weights_digest;
  DI_ASSIGN_OR_RETURN(segment->id, index_->AddSegment(row));
  return segment;
}

Result<BlockStore::OpenSegment*> BlockStore::SegmentFor(RetentionClass retention) {
  auto& slot = open_[static_cast<size_t>(retention)];
  const int64_t now = options_.wall_clock->NowUnixNs();
  if (slot && (slot->writer->size_bytes() + RecordBytes(options_.payload_bytes) > options_.segment_bytes || slot->hour != HourBucket(now))) {
    // Its blocks must be committed before it is sealed: sealed segments are not scanned again.
    CommitPending();
    if (slot) SealSegment(*slot);
    slot.reset();
  }
  if (!slot) {
    SegmentHeader header;
    header.retention = retention;
    header.layout_id = options_.layout_id;
    header.payload_bytes = options_.payload_bytes;
    header.weights_digest = options_.weights_digest;
    DI_ASSIGN_OR_RETURN(slot, NewSegment(header));
  }
  slot->last_write_unix_ns = now;
  return slot.get();
}

// A block becomes visible here and nowhere else: after its bytes are durable.
void BlockStore::CommitPending() {
  if (pending_.empty()) return;
  for (const auto& segment : open_) {
    if (!segment) continue;
    if (const Status status = segment->writer->Barrier(); !status.ok()) return FailWrites(status, 0);
  }
  std::vector<CommitOutcome> outcomes;
  if (const Status status = index_->Commit(pending_, outcomes); !status.ok()) return FailWrites(status, 0);
  write_breaker_.Success();
  const std::lock_guard lock(mutex_);
  for (const CommitOutcome outcome : outcomes) {
    if (outcome == CommitOutcome::kStored || outcome == CommitOutcome::kReplaced) {
      ++stats_.written_blocks;
      stats_.written_bytes += RecordBytes(options_.payload_bytes);
    } else if (outcome == CommitOutcome::kExists) {
      ++stats_.deduplicated;
    } else {
      ++stats_.dropped_orphan;
    }
  }
  pending_.clear();
  pending_keys_.clear();
  domain_pending_bytes_.clear();
  pending_bytes_ = 0;
}

bool BlockStore::SealSegment(OpenSegment& segment) {
  const uint64_t id = segment.id;
  const Status status = segment.writer->Seal(options_.wall_clock->NowUnixNs());
  if (!status.ok()) {
    // Its committed blocks stay readable; garbage collection or the next start seals it.
    DI_LOG(warn, "block store: {}", status.message());
    write_breaker_.Failure();
    return false;
  }
  std::error_code error;
  const uint64_t bytes = std::filesystem::file_size(root_->path() + "/" + segment.stem + ".seg", error);
  const Status sealed = index_->SealSegment(id, bytes);
  if (!sealed.ok()) DI_LOG(warn, "block store: {}", sealed.message());
  return sealed.ok();
}

void BlockStore::SealDue(bool all) {
  const int64_t now = options_.wall_clock->NowUnixNs();
  for (auto& segment : open_) {
    if (!segment) continue;
    const bool is_idle = now - segment->last_write_unix_ns >= int64_t{options_.idle_seal_s} * 1'000'000'000;
    if (!all && !is_idle && segment->hour == HourBucket(now)) continue;
    CommitPending();
    if (segment) SealSegment(*segment);  // a failed commit has closed it
    segment.reset();
  }
}

// The blocks that are not committed are lost; the files stay for SealLeftovers.
void BlockStore::FailWrites(const Status& why, uint64_t num_more) {
  DI_LOG(warn, "block store: {} blocks are not stored: {}", pending_.size() + num_more, why.message());
  if (why.code() == StatusCode::kResourceExhausted) {
    write_breaker_.Open();
  } else {
    write_breaker_.Failure();
  }
  for (auto& segment : open_) segment.reset();
  const std::lock_guard lock(mutex_);
  stats_.dropped_io += pending_.size() + num_more;
  pending_.clear();
  pending_keys_.clear();
  domain_pending_bytes_.clear();
  pending_bytes_ = 0;
  needs_room_ = why.code() == StatusCode::kResourceExhausted;
}

StoreStats BlockStore::Stats() const {
  StoreStats stats;
  {
    const std::lock_guard lock(mutex_);
    stats = stats_;
    stats.arena_bytes = queued_bytes_;
  }
  for (int i = 0; i < kNumClasses; ++i) stats.live_bytes[static_cast<size_t>(i)] = index_->live_bytes(static_cast<RetentionClass>(i));
  stats.num_blocks = index_->num_blocks();
  stats.is_read_open = !read_breaker_.is_open();
  stats.is_write_open = !write_breaker_.is_open();
  return stats;
}

}  // namespace deepinfer::kvstore
