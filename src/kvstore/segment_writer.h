// SPDX-License-Identifier: Apache-2.0
//
// One segment being written: PATH.open until Seal() makes it PATH.seg. Records gather in memory and go to the file in big
// writes; what lies before the last successful Barrier() is durable. After an error the object is of no more use than to be
// destroyed: the file stays as it is and recovery cuts it. One thread.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "kvstore/file_ops.h"
#include "kvstore/segment_format.h"

namespace deepinfer::kvstore {

class SegmentWriter {
 public:
  // `stem` is the path without its suffix.
  static Result<std::unique_ptr<SegmentWriter>> Create(FileOps& files, const std::string& stem, const SegmentHeader& header);
  SegmentWriter(const SegmentWriter&) = delete;
  SegmentWriter& operator=(const SegmentWriter&) = delete;
  ~SegmentWriter();

  // Fills in length and checksum of `header`; returns the record's offset.
  Result<uint64_t> Append(RecordHeader header, std::span<const uint8_t> payload);
  Status Barrier();
  // Includes a barrier. The new name is durable when it returns.
  Status Seal(int64_t sealed_unix_ns);

  const std::string& stem() const { return stem_; }
  uint64_t size_bytes() const { return written_bytes_ + buffered_; }
  size_t num_records() const { return entries_.size(); }

 private:
  SegmentWriter(FileOps& files, std::string stem) : files_(files), stem_(std::move(stem)) {}
  Status WriteOut();

  FileOps& files_;
  std::string stem_;
  int fd_ = -1;
  std::vector<uint8_t> buffer_;
  size_t buffered_ = 0;
  uint64_t written_bytes_ = 0;
  std::vector<FooterEntry> entries_;
};

// Adds the footer to a file that was never sealed, cut to `end`, and renames it.
Status SealRecovered(FileOps& files, const std::string& stem, uint64_t end, const std::vector<FooterEntry>& entries,
                     int64_t sealed_unix_ns);

}  // namespace deepinfer::kvstore
