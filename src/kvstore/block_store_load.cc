// SPDX-License-Identifier: Apache-2.0
//
// The read path of BlockStore: neighbouring records become one read, a few reads are under way while the one that has arrived
// is checked and copied, and what is not right or not in time ends the hit there.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include <fmt/format.h>

#include "core/log.h"
#include "kvstore/block_store_impl.h"

namespace deepinfer::kvstore {
namespace {

constexpr uint64_t kMaxRunBytes = 4 << 20;
constexpr size_t kNumSlots = 6;
constexpr uint64_t kAlign = InputFile::kAlignment;
constexpr int64_t kLongestWaitNs = int64_t{3600} * 1'000'000'000;

// Blocks that one read brings.
struct Run {
  size_t begin = 0, end = 0;  // of the plan
  uint64_t offset = 0, bytes = 0;
};

std::vector<Run> RunsOf(std::span<const BlockEntry> entries) {
  std::vector<Run> runs;
  for (size_t i = 0; i < entries.size(); ++i) {
    const BlockEntry& entry = entries[i];
    const uint64_t bytes = RecordBytes(entry.stored_len);
    const bool joins = !runs.empty() && entries[i - 1].segment == entry.segment && runs.back().offset + runs.back().bytes == entry.offset &&
                       runs.back().bytes + bytes <= kMaxRunBytes;
    if (joins) {
      runs.back().end = i + 1;
      runs.back().bytes += bytes;
    } else {
      runs.push_back({i, i + 1, entry.offset, bytes});
    }
  }
  return runs;
}

Status ReadWhole(const std::string& path, uint64_t offset, std::span<uint8_t> out) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return NotFound(fmt::format("cannot read {}: {}", path, std::strerror(errno)));
  Status status;
  while (status.ok() && !out.empty()) {
    const ssize_t done = ::pread(fd, out.data(), out.size(), static_cast<off_t>(offset));
    if (done < 0 && errno == EINTR) continue;
    if (done < 0) status = Unavailable(fmt::format("cannot read {}: {}", path, std::strerror(errno)));
    if (done == 0) status = BadModel(fmt::format("{} ends inside a record", path));
    if (done > 0) {
      out = out.subspan(static_cast<size_t>(done));
      offset += static_cast<uint64_t>(done);
    }
  }
  ::close(fd);
  return status;
}

}  // namespace

// Buffers of one load. A load that ran out of time leaves them behind until its reads have ended.
struct BlockStore::Staging {
  struct Slot {
    uint8_t* data = nullptr;
    size_t size = 0;
    std::shared_ptr<InputFile> file;
    ReadBatch batch;
    void Reserve(size_t bytes) {
      if (bytes <= size) return;
      std::free(data);
      data = static_cast<uint8_t*>(std::aligned_alloc(kAlign, bytes));
      DI_CHECK(data != nullptr) << bytes;
      size = bytes;
    }
    ~Slot() {
      batch.Wait();
      std::free(data);
    }
  };
  std::array<Slot, kNumSlots> slots;
  bool is_done() const {
    return std::all_of(slots.begin(), slots.end(), [](const Slot& slot) { return slot.batch.is_done(); });
  }
};

std::shared_ptr<BlockStore::Staging> BlockStore::TakeStaging() {
  const std::lock_guard lock(mutex_);
  std::erase_if(late_staging_, [](const std::shared_ptr<Staging>& staging) { return staging->is_done(); });
  if (idle_staging_.empty()) return std::make_shared<Staging>();
  std::shared_ptr<Staging> staging = std::move(idle_staging_.back());
  idle_staging_.pop_back();
  return staging;
}

void BlockStore::GiveStaging(std::shared_ptr<Staging> staging) {
  const std::lock_guard lock(mutex_);
  if (!staging->is_done()) {
    late_staging_.push_back(std::move(staging));
  } else if (idle_staging_.size() < 4) {
    idle_staging_.push_back(std::move(staging));
  }
}

HitPlan BlockStore::Lookup(std::span<const Key256> keys, bool clean_only) {
  HitPlan plan;
  if (!read_breaker_.WouldAllow()) return plan;
  if (const Status status = index_->Lookup(keys, clean_only, plan.entries); !status.ok()) {
    DI_LOG(warn, "block store: {}", status.message());
    read_breaker_.Failure();
    plan.entries.clear();
  }
  for (size_t i = 0; i < plan.entries.size(); ++i) {
    // A key names its layout, so this happens only when the options say something else than when it was written.
    if (plan.entries[i].layout_id == options_.layout_id && plan.entries[i].stored_len == options_.payload_bytes) continue;
    plan.entries.resize(i);
    break;
  }
  plan.keys.assign(keys.begin(), keys.begin() + static_cast<std::ptrdiff_t>(plan.entries.size()));
  for (const BlockEntry& entry : plan.entries) {
    if (plan.pins.empty() || plan.pins.back() != entry.segment) plan.pins.push_back(entry.segment);
  }
  const std::lock_guard lock(mutex_);
  for (const uint64_t segment : plan.pins) ++pins_[segment];
  ++stats_.lookups;
  stats_.hit_blocks += plan.entries.size();
  stats_.miss_blocks += keys.size() - plan.entries.size();
  return plan;
}

void BlockStore::Release(HitPlan& plan) {
  const std::lock_guard lock(mutex_);
  for (const uint64_t segment : plan.pins) {
    const auto found = pins_.find(segment);
    if (found != pins_.end() && --found->second == 0) pins_.erase(found);
  }
  plan.pins.clear();
}

bool BlockStore::IsPinned(uint64_t segment) const {
  const std::lock_guard lock(mutex_);
  return pins_.count(segment) != 0;
}

void BlockStore::Touch(std::span<const Key256> keys, RetentionClass retention) {
  if (const Status status = index_->Touch(keys, retention, options_.wall_clock->NowUnixS()); !status.ok()) {
    DI_LOG(warn, "block store: {}", status.message());
  }
}

Result<std::shared_ptr<InputFile>> BlockStore::FileOf(uint64_t segment, bool& is_sealed) {
  is_sealed = true;
  {
    const std::lock_guard lock(mutex_);
    if (const auto found = sealed_files_.find(segment); found != sealed_files_.end()) return found->second;
  }
  DI_ASSIGN_OR_RETURN(const std::optional<SegmentRow> row, index_->Segment(segment));
  if (!row) return NotFound(fmt::format("segment {} is gone", segment));
  is_sealed = row->state != SegmentState::kOpen;
  if (!is_sealed) return std::shared_ptr<InputFile>();
  Result<std::shared_ptr<InputFile>> file = InputFile::Open(root_->path() + "/" + row->stem + ".seg", options_.direct_reads);
  if (!file.ok()) return NotFound(file.status().message());
  const std::lock_guard lock(mutex_);
  constexpr size_t kMaxOpenFiles = 256;
  if (sealed_files_.size() >= kMaxOpenFiles) sealed_files_.erase(sealed_files_.begin());
  sealed_files_[segment] = *file;
  return file;
}

void BlockStore::ForgetFile(uint64_t segment) {
  const std::lock_guard lock(mutex_);
  sealed_files_.erase(segment);
}

LoadResult BlockStore::Load(const HitPlan& plan, std::span<const std::span<uint8_t>> dst, int64_t deadline_ns) {
  DI_CHECK(dst.size() >= plan.entries.size()) << "a buffer for each block";
  LoadResult result;
  if (plan.entries.empty()) return result;
  if (!read_breaker_.Allow()) return {0, LoadStop::kIo};
  const std::vector<Run> runs = RunsOf(plan.entries);
  const std::shared_ptr<Staging> staging = TakeStaging();
  std::vector<Status> started(runs.size());
  const auto skip_of = [&](const Run& run) { return run.offset % kAlign; };
  const auto start = [&](size_t i) -> Status {
    const Run& run = runs[i];
    Staging::Slot& slot = staging->slots[i % kNumSlots];
    slot.batch.Reset();
    // Whole pages around the records, so that the read can go past the page cache.
    const uint64_t skip = skip_of(run), bytes = (skip + run.bytes + kAlign - 1) / kAlign * kAlign;
    slot.Reserve(static_cast<size_t>(bytes));
    bool is_sealed = true;
    DI_ASSIGN_OR_RETURN(slot.file, FileOf(plan.entries[run.begin].segment, is_sealed));
    if (!is_sealed) {
      // Still growing: AsyncReader wants files that do not change.
      DI_ASSIGN_OR_RETURN(const std::optional<SegmentRow> row, index_->Segment(plan.entries[run.begin].segment));
      if (!row) return NotFound("the segment is gone");
      const std::string stem = root_->path() + "/" + row->stem;
      const std::span<uint8_t> out(slot.data + skip, static_cast<size_t>(run.bytes));
      const Status status = ReadWhole(stem + ".open", run.offset, out);
      // It may have been sealed meanwhile.
      return status.code() == StatusCode::kNotFound ? ReadWhole(stem + ".seg", run.offset, out) : status;
    }
    const FileRead read{.file = slot.file.get(),
                        .offset = static_cast<int64_t>(run.offset - skip),
                        .bytes = static_cast<int64_t>(bytes),
                        .buffer = slot.data,
                        .min_bytes = static_cast<int64_t>(skip + run.bytes)};
    reader_->Submit({&read, 1}, slot.batch);
    return Status::Ok();
  };
  size_t next = 0;
  for (size_t i = 0; i < runs.size() && result.stop == LoadStop::kComplete; ++i) {
    for (; next < runs.size() && next < i + kNumSlots; ++next) started[next] = start(next);
    const Run& run = runs[i];
    Staging::Slot& slot = staging->slots[i % kNumSlots];
    // Waits add to the time of day: an endless one must not overflow.
    const int64_t left_ns = std::clamp<int64_t>(deadline_ns - options_.clock->NowNs(), 0, kLongestWaitNs);
    if (!slot.batch.WaitFor(std::chrono::nanoseconds(left_ns)) || (left_ns == 0 && i > 0)) {
      result.stop = LoadStop::kDeadline;
      break;
    }
    const Status status = started[i].ok() ? slot.batch.status() : started[i];
    if (!status.ok()) {
      const bool is_there = status.code() != StatusCode::kNotFound;
      // A file that ends too early is damage of what it should hold.
      if (!is_there || status.code() == StatusCode::kBadModel) ReportDamage(plan.keys[run.begin], plan.entries[run.begin], status);
      result.stop = !is_there ? LoadStop::kMissing : status.code() == StatusCode::kBadModel ? LoadStop::kCorrupt : LoadStop::kIo;
      DI_LOG(warn, "block store: {}", status.message());
      break;
    }
    const std::span<const uint8_t> bytes(slot.data + skip_of(run), static_cast<size_t>(run.bytes));
    for (size_t b = run.begin; b < run.end; ++b) {
      const BlockEntry& entry = plan.entries[b];
      const uint64_t at = entry.offset - run.offset;
      const Result<RecordHeader> header = CheckRecord(bytes, at);
      Status right = header.status();
      if (header.ok() && (header->key != plan.keys[b] || header->payload_len != options_.payload_bytes ||
                          header->layout_id != options_.layout_id || header->block_index != entry.block_index)) {
        right = BadModel("another block is where this one should be");
      }
      if (!right.ok()) {
        ReportDamage(plan.keys[b], entry, right);
        result.stop = LoadStop::kCorrupt;
        break;
      }
      std::memcpy(dst[b].data(), bytes.data() + at + kRecordHeaderBytes, options_.payload_bytes);
      result.num_ok_blocks = b + 1;
    }
  }
  // A damaged block is the disk's answer, not its silence.
  const bool is_failure = result.stop == LoadStop::kDeadline || result.stop == LoadStop::kIo;
  is_failure ? read_breaker_.Failure() : read_breaker_.Success();
  GiveStaging(staging);
  const std::lock_guard lock(mutex_);
  stats_.loaded_blocks += result.num_ok_blocks;
  stats_.loaded_bytes += result.num_ok_blocks * options_.payload_bytes;
  switch (result.stop) {
    case LoadStop::kComplete: break;
    case LoadStop::kDeadline: ++stats_.truncated_deadline; break;
    case LoadStop::kCorrupt: ++stats_.truncated_corrupt; break;
    case LoadStop::kMissing: ++stats_.truncated_missing; break;
    case LoadStop::kIo: ++stats_.truncated_io; break;
  }
  return result;
}

// Reads the block once more; what is still damaged leaves the index, and a segment with three such blocks in ten minutes
// leaves the store.
void BlockStore::ReportDamage(const Key256& key, const BlockEntry& entry, const Status& why) {
  const Result<std::optional<BlockEntry>> now = index_->Find(key);
  if (!now.ok() || !*now || (*now)->segment != entry.segment || (*now)->offset != entry.offset) return;  // moved or gone meanwhile
  const Result<std::optional<SegmentRow>> row = index_->Segment(entry.segment);
  if (!row.ok() || !*row) return;
  const std::string suffix = (*row)->state == SegmentState::kOpen ? ".open" : ".seg";
  std::vector<uint8_t> bytes(static_cast<size_t>(RecordBytes(entry.stored_len)));
  const Status read = ReadWhole(root_->path() + "/" + (*row)->stem + suffix, entry.offset, bytes);
  if (read.ok()) {
    const Result<RecordHeader> again = CheckRecord(bytes, 0);
    if (again.ok() && again->key == key) return;
  } else if (read.code() == StatusCode::kUnavailable) {
    return;  // an error of the disk says nothing about the block
  }
  DI_LOG(error, "block store: {}{} at {}: {}; the block is dropped", (*row)->stem, suffix, entry.offset, why.message());
  if (const Status status = index_->Erase({&key, 1}); !status.ok()) DI_LOG(warn, "block store: {}", status.message());
  bool is_bad_segment = false;
  {
    const std::lock_guard lock(mutex_);
    ++stats_.evicted_corrupt;
    std::deque<int64_t>& times = damage_ns_[entry.segment];
    times.push_back(options_.clock->NowNs());
    while (times.front() <= times.back() - int64_t{600} * 1'000'000'000) times.pop_front();
    is_bad_segment = times.size() >= 3 && suffix == ".seg";
  }
  if (!is_bad_segment) return;
  DI_LOG(error, "block store: {} has three damaged blocks; the segment is moved to quarantine", (*row)->stem);
  if (const Status status = index_->DropSegment(entry.segment); !status.ok()) DI_LOG(warn, "block store: {}", status.message());
  if (const Status status = QuarantineFile(*root_, *options_.files, (*row)->stem, suffix); !status.ok()) {
    DI_LOG(warn, "block store: {}", status.message());
  }
  ForgetFile(entry.segment);
  const std::lock_guard lock(mutex_);
  ++stats_.quarantined_segments;
  damage_ns_.erase(entry.segment);
}

}  // namespace deepinfer::kvstore
