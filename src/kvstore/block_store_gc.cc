// SPDX-License-Identifier: Apache-2.0
//
// What BlockStore does without being asked: expiry, capacity, removal of files; and what it does for an operator: purge and
// verify.
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <set>

#include <fmt/format.h>

#include "core/file.h"
#include "core/log.h"
#include "kvstore/block_store_impl.h"

namespace deepinfer::kvstore {
namespace {

constexpr double kSparse = 0.25;  // of a segment's bytes: with less alive it is copied together
constexpr double kEmergency = 0.05;  // of what is alive goes when the disk is full

}  // namespace

Status BlockStore::RunGc(bool accept_clock) {
  const std::lock_guard lock(writer_mutex_);
  return RunGcLocked(accept_clock);
}

Status BlockStore::RunGcLocked(bool accept_clock) {
  const int64_t now = options_.wall_clock->NowUnixNs();
  last_gc_unix_ns_ = now;
  if (accept_clock) latest_unix_ns_ = now;
  if (now < latest_unix_ns_ - int64_t{60} * 1'000'000'000) {
    return Unavailable(fmt::format("the time of day went back by {} s: nothing is expired until the clock is accepted",
                                   (latest_unix_ns_ - now) / 1'000'000'000));
  }
  latest_unix_ns_ = std::max(latest_unix_ns_, now);
  const auto now_s = static_cast<uint32_t>(now / 1'000'000'000);
  SealDue(false);
  DI_ASSIGN_OR_RETURN(const uint64_t expired, index_->Expire(now_s, options_.gc_ops_per_s * 60));
  {
    const std::lock_guard lock(mutex_);
    stats_.evicted_expired += expired;
  }
  DI_RETURN_IF_ERROR(FreeRoom(now_s));
  DI_RETURN_IF_ERROR(SealLeftovers());
  DI_ASSIGN_OR_RETURN(const std::vector<SegmentRow> rows, index_->Segments());
  for (const SegmentRow& row : rows) {
    const uint32_t ttl = options_.retention.ttl_s[static_cast<size_t>(row.retention)];
    const bool is_sparse = row.state == SegmentState::kSealed && row.live_bytes > 0 &&
                           static_cast<double>(row.live_bytes) < kSparse * static_cast<double>(row.bytes);
    if (is_sparse && now_s - std::min(now_s, row.created_s) > ttl / 2) DI_RETURN_IF_ERROR(CompactSegment(row));
  }
  return RemoveEmptySegments(now_s);
}

Status BlockStore::FreeRoom(uint32_t now_s) {
  const uint64_t live = index_->live_bytes();
  uint64_t target = live;
  if (options_.capacity_bytes > 0) {
    const auto capacity = static_cast<double>(options_.capacity_bytes);
    if (static_cast<double>(live) > capacity * options_.high_watermark) target = static_cast<uint64_t>(capacity * options_.low_watermark);
  }
  bool needs_room = false;
  {
    const std::lock_guard lock(mutex_);
    std::swap(needs_room, needs_room_);
  }
  if (needs_room) target = std::min(target, static_cast<uint64_t>(static_cast<double>(live) * (1 - kEmergency)));
  if (target >= live) return Status::Ok();
  DI_ASSIGN_OR_RETURN(const uint64_t evicted, index_->EvictTo(target, now_s, options_.gc_ops_per_s * 60));
  const std::lock_guard lock(mutex_);
  stats_.evicted_size += evicted;
  return Status::Ok();
}

// Open files that no writer has: a write error left them.
Status BlockStore::SealLeftovers() {
  DI_ASSIGN_OR_RETURN(const std::vector<SegmentRow> rows, index_->Segments());
  for (const SegmentRow& row : rows) {
    const bool is_written = std::any_of(open_.begin(), open_.end(), [&](const auto& open) { return open && open->id == row.id; });
    if (row.state != SegmentState::kOpen || is_written || IsPinned(row.id)) continue;
    const std::string stem = root_->path() + "/" + row.stem;
    std::error_code error;
    if (!std::filesystem::exists(stem + ".seg", error)) {
      std::vector<FooterEntry> entries;
      uint64_t end = 0, cut = 0;
      if (const Status status = SealOpenFile(*options_.files, stem, options_.wall_clock->NowUnixNs(), entries, end, cut); !status.ok()) {
        DI_LOG(warn, "block store: {}", status.message());
        continue;
      }
      if (entries.empty()) {
        DI_RETURN_IF_ERROR(index_->DropSegment(row.id));
        continue;
      }
    }
    DI_RETURN_IF_ERROR(index_->SealSegment(row.id, std::filesystem::file_size(stem + ".seg", error)));
  }
  return Status::Ok();
}

Status BlockStore::RemoveEmptySegments(uint32_t now_s) {
  DI_ASSIGN_OR_RETURN(const std::vector<SegmentRow> rows, index_->Segments());
  for (const SegmentRow& row : rows) {
    if (row.state == SegmentState::kSealed && row.live_count == 0 && !IsPinned(row.id)) DI_RETURN_IF_ERROR(index_->MarkDying(row.id, now_s));
    if (row.state != SegmentState::kDying || now_s < row.dying_since_s + options_.grace_s || IsPinned(row.id)) continue;
    const std::string path = root_->path() + "/" + row.stem + ".seg";
    if (const int result = options_.files->Unlink(path); result < 0 && result != -ENOENT) {
      DI_LOG(warn, "block store: cannot remove {}: {}", path, std::strerror(-result));
      continue;
    }
    DI_RETURN_IF_ERROR(index_->DropSegment(row.id));
    ForgetFile(row.id);
    std::error_code ignored;  // fails while the hour has other segments
    std::filesystem::remove(std::filesystem::path(path).parent_path(), ignored);
    const std::lock_guard lock(mutex_);
    ++stats_.unlinked_segments;
  }
  return Status::Ok();
}

// Copies what is alive to a segment of its own. The old one stays until it is empty and nobody reads it.
Status BlockStore::CompactSegment(const SegmentRow& row) {
  DI_ASSIGN_OR_RETURN(const std::vector<Key256> keys, index_->KeysOf(row.id));
  DI_ASSIGN_OR_RETURN(const MappedFile file, MappedFile::Open(root_->path() + "/" + row.stem + ".seg"));
  const std::span<const uint8_t> bytes(file.data(), static_cast<size_t>(file.size()));
  DI_ASSIGN_OR_RETURN(const SegmentHeader header, DecodeSegmentHeader(bytes));
  DI_ASSIGN_OR_RETURN(const std::unique_ptr<OpenSegment> segment, NewSegment(header));
  std::vector<BlockIndex::Move> moves;
  for (const Key256& key : keys) {
    DI_ASSIGN_OR_RETURN(const std::optional<BlockEntry> entry, index_->Find(key));
    if (!entry || entry->segment != row.id) continue;
    const Result<RecordHeader> record = CheckRecord(bytes, entry->offset);
    if (!record.ok() || record->key != key) {
      ReportDamage(key, *entry, record.ok() ? BadModel("another block is where this one should be") : record.status());
      continue;
    }
    const auto payload = bytes.subspan(static_cast<size_t>(entry->offset) + kRecordHeaderBytes, record->payload_len);
    DI_ASSIGN_OR_RETURN(const uint64_t offset, segment->writer->Append(*record, payload));
    moves.push_back({key, row.id, entry->offset, segment->id, offset});
  }
  // Durable before the index points to it. After an error SealLeftovers or the next start takes care of the file.
  if (!SealSegment(*segment)) return Status::Ok();
  DI_RETURN_IF_ERROR(index_->Relocate(moves));
  const std::lock_guard lock(mutex_);
  ++stats_.compacted_segments;
  return Status::Ok();
}

// ---- the operator's ---------------------------------------------------------------------------------------------------------

Result<uint64_t> BlockStore::Purge(const std::function<bool(const Key256&, const BlockEntry&)>& is_victim) {
  const std::lock_guard lock(writer_mutex_);
  // Open segments are scanned after a crash, which would bring the blocks back; sealed ones are not.
  SealDue(true);
  std::set<uint64_t> segments;
  DI_ASSIGN_OR_RETURN(const uint64_t count, index_->EraseIf([&](const Key256& key, const BlockEntry& entry) {
    const bool is_one = is_victim(key, entry);
    if (is_one) segments.insert(entry.segment);
    return is_one;
  }));
  // The bytes must go too: what else is alive in those files moves, and the files go after their time of grace.
  for (const uint64_t id : segments) {
    DI_ASSIGN_OR_RETURN(const std::optional<SegmentRow> row, index_->Segment(id));
    if (row && row->state == SegmentState::kSealed && row->live_count > 0) DI_RETURN_IF_ERROR(CompactSegment(*row));
  }
  DI_RETURN_IF_ERROR(RemoveEmptySegments(options_.wall_clock->NowUnixS()));
  const std::lock_guard stats_lock(mutex_);
  stats_.evicted_purge += count;
  return count;
}

Result<uint64_t> BlockStore::PurgeDomain(uint32_t domain_hash) {
  return Purge([&](const Key256&, const BlockEntry& entry) { return entry.domain_hash == domain_hash || entry.domain_hash == 0; });
}

Result<uint64_t> BlockStore::PurgeClass(RetentionClass retention) {
  return Purge([&](const Key256&, const BlockEntry& entry) { return entry.retention == retention; });
}

Result<uint64_t> BlockStore::PurgeModel(const Key256& weights_digest) {
  DI_ASSIGN_OR_RETURN(const std::vector<SegmentRow> rows, index_->Segments());
  std::vector<uint64_t> segments;
  for (const SegmentRow& row : rows) {
    if (row.weights_digest == weights_digest) segments.push_back(row.id);
  }
  return Purge([&](const Key256&, const BlockEntry& entry) { return std::binary_search(segments.begin(), segments.end(), entry.segment); });
}

Result<uint64_t> BlockStore::PurgeKey(const Key256& key) {
  return Purge([&](const Key256& candidate, const BlockEntry&) { return candidate == key; });
}

Result<VerifyReport> BlockStore::Verify() {
  VerifyReport report;
  DI_ASSIGN_OR_RETURN(const std::vector<SegmentRow> rows, index_->Segments());
  for (const SegmentRow& row : rows) {
    const std::string path = root_->path() + "/" + row.stem + (row.state == SegmentState::kOpen ? ".open" : ".seg");
    DI_ASSIGN_OR_RETURN(const std::vector<Key256> keys, index_->KeysOf(row.id));
    Result<MappedFile> file = MappedFile::Open(path);
    ++report.segments;
    if (!file.ok()) {
      report.problems.push_back(file.status().message());
      DI_RETURN_IF_ERROR(index_->DropSegment(row.id));
      continue;
    }
    const std::span<const uint8_t> bytes(file->data(), static_cast<size_t>(file->size()));
    report.bytes += bytes.size();
    const Result<SegmentHeader> header = DecodeSegmentHeader(bytes);
    if (!header.ok()) report.problems.push_back(fmt::format("{}: {}", path, header.status().message()));
    if (row.state != SegmentState::kOpen) {
      if (const Result<Footer> footer = DecodeFooter(bytes); !footer.ok()) {
        report.problems.push_back(fmt::format("{}: {}", path, footer.status().message()));
      }
    }
    for (const Key256& key : keys) {
      DI_ASSIGN_OR_RETURN(const std::optional<BlockEntry> entry, index_->Find(key));
      if (!entry || entry->segment != row.id) continue;
      ++report.blocks;
      const Result<RecordHeader> record = CheckRecord(bytes, entry->offset);
      if (record.ok() && record->key == key) continue;
      const Status why = record.ok() ? BadModel("another block is where this one should be") : record.status();
      report.problems.push_back(fmt::format("{} at {}: {}", path, entry->offset, why.message()));
      ReportDamage(key, *entry, why);
    }
  }
  return report;
}

}  // namespace deepinfer::kvstore
