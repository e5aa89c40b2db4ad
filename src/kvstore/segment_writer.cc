// SPDX-License-Identifier: Apache-2.0
#include "kvstore/segment_writer.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include <fmt/format.h>

namespace deepinfer::kvstore {
namespace {

// Large enough that a write costs what the disk costs, small enough that the disk begins early.
constexpr size_t kBufferBytes = 4 << 20;

Status WriteError(const std::string& path, int error, const char* what) {
  const char* remedy = error == ENOSPC || error == EDQUOT ? "free space or lower the store's capacity" : "check the disk";
  return ResourceExhausted(fmt::format("cannot {} {}: {}; {}", what, path, std::strerror(error), remedy));
}

Status WriteAll(FileOps& files, int fd, const std::string& path, std::span<const uint8_t> bytes, uint64_t offset) {
  while (!bytes.empty()) {
    const ssize_t done = files.Pwrite(fd, bytes.data(), bytes.size(), static_cast<int64_t>(offset));
    if (done == -EINTR) continue;
    if (done < 0) return WriteError(path, static_cast<int>(-done), "write");
    if (done == 0) return WriteError(path, ENOSPC, "write");
    bytes = bytes.subspan(static_cast<size_t>(done));
    offset += static_cast<uint64_t>(done);
  }
  return Status::Ok();
}

// Footer, barrier, new name.
Status SealFile(FileOps& files, int fd, const std::string& stem, uint64_t end, const std::vector<FooterEntry>& entries,
                int64_t sealed_unix_ns) {
  const std::string path = stem + ".open";
  uint64_t live_bytes = 0;
  for (const FooterEntry& entry : entries) live_bytes += RecordBytes(entry.payload_len);
  const std::vector<uint8_t> footer =
      EncodeFooter({.entries = entries, .footer_offset = end, .live_bytes = live_bytes, .sealed_unix_ns = sealed_unix_ns});
  DI_RETURN_IF_ERROR(WriteAll(files, fd, path, footer, end));
  if (const int result = files.SyncData(fd); result < 0) return WriteError(path, -result, "flush");
  if (const int result = files.Rename(path, stem + ".seg"); result < 0) return WriteError(path, -result, "rename");
  const std::string directory = std::filesystem::path(stem).parent_path();
  if (const int result = files.SyncDirectory(directory); result < 0) return WriteError(directory, -result, "flush");
  return Status::Ok();
}

}  // namespace

Result<std::unique_ptr<SegmentWriter>> SegmentWriter::Create(FileOps& files, const std::string& stem, const SegmentHeader& header) {
  std::unique_ptr<SegmentWriter> writer(new SegmentWriter(files, stem));
  writer->fd_ = files.Create(stem + ".open");
  if (writer->fd_ < 0) return WriteError(stem + ".open", -writer->fd_, "create");
  writer->buffer_.resize(kBufferBytes);
  EncodeSegmentHeader(header, std::span(writer->buffer_).first(kSegmentHeaderBytes));
  writer->buffered_ = kSegmentHeaderBytes;
  // The name must be durable before a block of it is committed.
  const std::string directory = std::filesystem::path(stem).parent_path();
  if (const int result = files.SyncDirectory(directory); result < 0) return WriteError(directory, -result, "flush");
  return writer;
}

SegmentWriter::~SegmentWriter() {
  if (fd_ >= 0) files_.Close(fd_);
}

Result<uint64_t> SegmentWriter::Append(RecordHeader header, std::span<const uint8_t> payload) {
  header.payload_len = static_cast<uint32_t>(payload.size());
  header.raw_len = header.payload_len;
  header.payload_hash = PayloadHash(payload);
  const auto bytes = static_cast<size_t>(RecordBytes(header.payload_len));
  if (buffered_ + bytes > buffer_.size()) DI_RETURN_IF_ERROR(WriteOut());
  if (bytes > buffer_.size()) buffer_.resize(bytes);
  const uint64_t offset = size_bytes();
  const std::span<uint8_t> at = std::span(buffer_).subspan(buffered_, bytes);
  EncodeRecordHeader(header, at.first(kRecordHeaderBytes));
  std::copy(payload.begin(), payload.end(), at.begin() + kRecordHeaderBytes);
  std::fill(at.begin() + kRecordHeaderBytes + static_cast<std::ptrdiff_t>(payload.size()), at.end(), uint8_t{0});
  buffered_ += bytes;
  entries_.push_back(FooterEntryOf(header, offset));
  return offset;
}

Status SegmentWriter::WriteOut() {
  DI_RETURN_IF_ERROR(WriteAll(files_, fd_, stem_ + ".open", std::span(buffer_).first(buffered_), written_bytes_));
  written_bytes_ += buffered_;
  buffered_ = 0;
  return Status::Ok();
}

Status SegmentWriter::Barrier() {
  DI_RETURN_IF_ERROR(WriteOut());
  if (const int result = files_.SyncData(fd_); result < 0) return WriteError(stem_ + ".open", -result, "flush");
  return Status::Ok();
}

Status SegmentWriter::Seal(int64_t sealed_unix_ns) {
  DI_RETURN_IF_ERROR(Barrier());
  return SealFile(files_, fd_, stem_, written_bytes_, entries_, sealed_unix_ns);
}

Status SealRecovered(FileOps& files, const std::string& stem, uint64_t end, const std::vector<FooterEntry>& entries,
                     int64_t sealed_unix_ns) {
  const int fd = files.Open(stem + ".open");
  if (fd < 0) return WriteError(stem + ".open", -fd, "open");
  const int cut = files.Truncate(fd, static_cast<int64_t>(end));
  Status status = cut < 0 ? WriteError(stem + ".open", -cut, "cut") : SealFile(files, fd, stem, end, entries, sealed_unix_ns);
  files.Close(fd);
  return status;
}

}  // namespace deepinfer::kvstore
