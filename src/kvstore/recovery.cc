// SPDX-License-Identifier: Apache-2.0
#include "kvstore/recovery.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <map>

#include <fmt/format.h>

#include "core/file.h"
#include "kvstore/segment_writer.h"

namespace deepinfer::kvstore {
namespace {

namespace fs = std::filesystem;

struct SegmentFile {
  std::string stem;  // relative
  bool is_open = false;
  uint64_t bytes = 0;
};

// Sorted, so that recovery does the same every time.
std::vector<SegmentFile> ListSegments(const std::string& root) {
  std::vector<SegmentFile> found;
  for (int i = 0; i < kNumClasses; ++i) {
    const std::string name(ClassName(static_cast<RetentionClass>(i)));
    std::error_code error;
    for (const auto& hour : fs::directory_iterator(root + "/" + name, error)) {
      std::error_code ignored;  // what is no directory holds no segments
      for (const auto& file : fs::directory_iterator(hour.path(), ignored)) {
        const std::string extension = file.path().extension();
        if (extension != ".seg" && extension != ".open") continue;
        found.push_back({name + "/" + hour.path().filename().string() + "/" + file.path().stem().string(), extension == ".open",
                         static_cast<uint64_t>(file.file_size(ignored))});
      }
    }
  }
  std::sort(found.begin(), found.end(), [](const SegmentFile& a, const SegmentFile& b) { return a.stem < b.stem; });
  return found;
}

std::vector<FooterEntry> EntriesOf(std::span<const uint8_t> file, uint64_t& end) {
  std::vector<FooterEntry> entries;
  end = ScanRecords(file, [&](const RecordHeader& header, uint64_t offset) {
    if (header.type != RecordType::kBlock) return;
    entries.push_back(FooterEntryOf(header, offset));
  });
  return entries;
}

Result<MappedFile> Map(const std::string& path) { return MappedFile::Open(path); }
std::span<const uint8_t> Bytes(const MappedFile& file) { return {file.data(), static_cast<size_t>(file.size())}; }

}  // namespace

Status SealOpenFile(FileOps& files, const std::string& stem, int64_t now_unix_ns, std::vector<FooterEntry>& entries, uint64_t& end,
                    uint64_t& cut_bytes) {
  entries.clear();
  end = 0;
  std::error_code error;
  const auto size = fs::file_size(stem + ".open", error);
  if (!error && size > 0) {
    DI_ASSIGN_OR_RETURN(const MappedFile file, Map(stem + ".open"));
    entries = EntriesOf(Bytes(file), end);
    cut_bytes += static_cast<uint64_t>(file.size()) - std::min<uint64_t>(end, static_cast<uint64_t>(file.size()));
  }
  if (entries.empty()) {
    files.Unlink(stem + ".open");
    return Status::Ok();
  }
  return SealRecovered(files, stem, end, entries, now_unix_ns);
}

Status QuarantineFile(const StoreRoot& root, FileOps& files, const std::string& stem, const std::string& suffix) {
  std::error_code error;
  fs::create_directories(root.quarantine_directory(), error);
  const std::string from = root.path() + "/" + stem + suffix;
  const std::string to = root.quarantine_directory() + "/" + fs::path(stem).filename().string() + suffix;
  if (const int result = files.Rename(from, to); result < 0) {
    return ResourceExhausted(fmt::format("cannot move {} to {}: {}", from, to, std::strerror(-result)));
  }
  files.SyncDirectory(fs::path(from).parent_path());
  return Status::Ok();
}

Status RecoverStore(const StoreRoot& root, FileOps& files, BlockIndex& index, int64_t now_unix_ns, RecoveryReport& report) {
  DI_ASSIGN_OR_RETURN(const std::vector<SegmentRow> rows, index.Segments());
  std::map<std::string, SegmentRow> known;
  for (const SegmentRow& row : rows) known.emplace(row.stem, row);

  std::vector<NewBlock> missing;
  for (SegmentFile& file : ListSegments(root.path())) {
    const std::string stem = root.path() + "/" + file.stem;
    const auto found = known.find(file.stem);
    const bool is_known = found != known.end();
    SegmentRow row = is_known ? found->second : SegmentRow();
    if (is_known) known.erase(found);
    // Sealed and whole: what the index says about it is the truth, also about what was evicted.
    if (is_known && !file.is_open && row.state != SegmentState::kOpen && row.bytes == file.bytes) continue;

    const std::string suffix = file.is_open ? ".open" : ".seg";
    const auto set_aside = [&](const Status& why) -> Status {
      report.problems.push_back(fmt::format("{}{}: {}", stem, suffix, why.message()));
      if (is_known) DI_RETURN_IF_ERROR(index.DropSegment(row.id));
      // Intact, but of another version: it stays where a program that knows it finds it.
      if (why.code() == StatusCode::kUnimplemented) return Status::Ok();
      ++report.quarantined_segments;
      return QuarantineFile(root, files, file.stem, suffix);
    };
    SegmentHeader header;
    std::vector<FooterEntry> entries;
    {
      uint8_t unused = 0;
      const Result<MappedFile> mapped = file.bytes > 0 ? Map(stem + suffix) : Result<MappedFile>(MappedFile());
      if (!mapped.ok()) return mapped.status();
      const std::span<const uint8_t> bytes = file.bytes > 0 ? Bytes(*mapped) : std::span<const uint8_t>(&unused, 0);
      report.scanned_bytes += bytes.size();
      const Result<SegmentHeader> decoded = DecodeSegmentHeader(bytes);
      if (!decoded.ok()) {
        // A crash before the first write of an open file: nothing is lost with it.
        if (file.is_open && bytes.size() < kSegmentHeaderBytes) {
          files.Unlink(stem + suffix);
          if (is_known) DI_RETURN_IF_ERROR(index.DropSegment(row.id));
          continue;
        }
        DI_RETURN_IF_ERROR(set_aside(decoded.status()));
        continue;
      }
      header = *decoded;
      if (header.store != root.uuid()) {
        DI_RETURN_IF_ERROR(set_aside(BadModel("it belongs to another store")));
        continue;
      }
      if (!file.is_open) {
        if (Result<Footer> footer = DecodeFooter(bytes); footer.ok()) {
          entries = std::move(footer->entries);
        } else {
          // The records speak for themselves. What they no longer say is gone.
          uint64_t end = 0;
          entries = EntriesOf(bytes, end);
          report.problems.push_back(
              fmt::format("{}{}: {}; {} intact records in front are kept", stem, suffix, footer.status().message(), entries.size()));
        }
      }
    }
    if (file.is_open) {
      uint64_t end = 0;
      DI_RETURN_IF_ERROR(SealOpenFile(files, stem, now_unix_ns, entries, end, report.cut_bytes));
      ++report.sealed_segments;
    }
    // Entries that point behind what is intact must go before those that are there come.
    if (is_known) {
      DI_ASSIGN_OR_RETURN(const std::vector<Key256> keys, index.KeysOf(row.id));
      std::map<std::string, uint64_t> intact;
      for (const FooterEntry& entry : entries) intact.emplace(entry.key.ToHex(), entry.offset);
      std::vector<Key256> gone;
      for (const Key256& key : keys) {
        DI_ASSIGN_OR_RETURN(const std::optional<BlockEntry> entry, index.Find(key));
        const auto at = intact.find(key.ToHex());
        if (!entry || at == intact.end() || at->second != entry->offset) gone.push_back(key);
      }
      DI_RETURN_IF_ERROR(index.Erase(gone));
    }
    if (entries.empty()) {
      if (is_known) DI_RETURN_IF_ERROR(index.DropSegment(row.id));
      if (!file.is_open) DI_RETURN_IF_ERROR(QuarantineFile(root, files, file.stem, suffix));
      continue;
    }
    std::error_code error;
    const uint64_t bytes = fs::file_size(stem + ".seg", error);
    if (!is_known) {
      row.stem = file.stem;
      row.retention = header.retention;
      row.created_s = static_cast<uint32_t>(header.created_unix_ns / 1'000'000'000);
      row.weights_digest = header.weights_digest;
      DI_ASSIGN_OR_RETURN(row.id, index.AddSegment(row));
      ++report.indexed_segments;
    }
    DI_RETURN_IF_ERROR(index.SealSegment(row.id, bytes));
    for (const FooterEntry& entry : entries) {
      NewBlock block;
      block.key = entry.key;
      block.entry = {.segment = row.id,
                     .offset = entry.offset,
                     .stored_len = entry.payload_len,
                     .block_index = entry.block_index,
                     .retention = header.retention,
                     .flags = static_cast<uint8_t>(entry.flags),
                     .layout_id = header.layout_id,
                     .created_s = row.created_s,
                     .last_use_s = row.created_s,
                     .parent_low64 = entry.parent_low64};
      missing.push_back(block);
    }
  }
  for (const auto& [stem, row] : known) {
    if (row.state != SegmentState::kDying) {
      ++report.lost_segments;
      report.problems.push_back(fmt::format("{}/{}: the file is gone; {} blocks are dropped", root.path(), stem, row.live_count));
    }
    DI_RETURN_IF_ERROR(index.DropSegment(row.id));
  }
  // Parents before children, whatever file they are in.
  std::stable_sort(missing.begin(), missing.end(),
                   [](const NewBlock& a, const NewBlock& b) { return a.entry.block_index < b.entry.block_index; });
  constexpr size_t kBatch = 4096;
  std::vector<CommitOutcome> outcomes;
  for (size_t begin = 0; begin < missing.size(); begin += kBatch) {
    const size_t count = std::min(kBatch, missing.size() - begin);
    DI_RETURN_IF_ERROR(index.Commit(std::span(missing).subspan(begin, count), outcomes));
    for (const CommitOutcome outcome : outcomes) {
      report.added_blocks += outcome == CommitOutcome::kStored || outcome == CommitOutcome::kReplaced ? 1 : 0;
    }
  }
  return Status::Ok();
}

}  // namespace deepinfer::kvstore
