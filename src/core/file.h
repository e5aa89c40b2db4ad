// SPDX-License-Identifier: Apache-2.0
//
// Files: whole-file reads with a size limit, atomic writes, and a read-only memory map. Errors name the path and the
// reason. A missing or unreadable file is kBadModel for reads (exit code 3), a failed write is kResourceExhausted (1).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "core/status.h"

namespace deepinfer {

Result<std::string> ReadFile(const std::string& path, int64_t max_bytes);

// The same for a file that every checkpoint directory holds: when it is missing, the error says so.
Result<std::string> ReadModelFile(const std::string& model_dir, std::string_view name, int64_t max_bytes);

// Writes to a temporary name beside `path`, flushes, renames: the old content stays until the new one is complete. What is
// no regular file (a device, a pipe, a symbolic link) is opened and written instead.
Status WriteFileAtomically(const std::string& path, std::string_view bytes);

// A whole regular file mapped read-only, guarded against becoming shorter (mapping_guard.h). Movable; unmaps in the destructor.
class MappedFile {
 public:
  static Result<MappedFile> Open(const std::string& path);
  MappedFile() = default;
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  const uint8_t* data() const { return data_; }
  int64_t size() const { return size_; }
  const std::string& path() const { return path_; }
  // Whether pages could not be read; they count as zeros since.
  bool is_damaged() const;

 private:
  const uint8_t* data_ = nullptr;
  int64_t size_ = 0;
  std::string path_;
};

}  // namespace deepinfer
