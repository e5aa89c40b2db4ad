// SPDX-License-Identifier: Apache-2.0
//
// PartialFile: a file that arrives in pieces, in any order, and survives the end of the process. Bytes go to
// `PATH.incomplete`; a journal beside it (`PATH.incomplete.json`) names the ranges that are safely on disk. Thread-safe.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "core/status.h"
#include "hub/byte_ranges.h"

namespace deepinfer::hub {

struct FileHashes {
  std::string sha256;
  std::string git_sha1;  // of "blob SIZE\0" and the bytes
};

// Reads the file once. `is_cancelled` may be null.
Result<FileHashes> HashFile(const std::string& path, const std::atomic<bool>* is_cancelled);

class PartialFile {
 public:
  // `tag`: of the content; a journal of another content or size is thrown away with its bytes.
  static Result<std::unique_ptr<PartialFile>> Open(const std::string& path, int64_t num_bytes, const std::string& tag);
  ~PartialFile();
  PartialFile(const PartialFile&) = delete;
  PartialFile& operator=(const PartialFile&) = delete;

  Status Write(int64_t offset, std::string_view data);
  // The bytes are flushed, then the journal names them.
  Status MarkDone(int64_t begin, int64_t end);
  std::vector<ByteRange> Missing(int64_t max_bytes) const;
  int64_t num_done() const;
  bool is_complete() const { return num_done() == num_bytes_; }

  const std::string& incomplete_path() const { return incomplete_path_; }
  // Gives the complete file its name.
  Status Publish();
  // Forgets everything; Open begins anew.
  void Discard();

 private:
  PartialFile(std::string path, int64_t num_bytes, std::string tag, int fd);
  void ReadJournal();

  const std::string path_, incomplete_path_, journal_path_, tag_;
  const int64_t num_bytes_;
  const int fd_;
  mutable std::mutex mutex_;
  ByteRanges done_;  // GUARDED_BY(mutex_)
};

}  // namespace deepinfer::hub
