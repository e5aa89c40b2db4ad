// SPDX-License-Identifier: Apache-2.0
//
// The system calls that change files of the store, as a seam: tests fail them, cut them short or end the process between
// two of them. All return 0 or a count, or -errno. Thread-safe.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>

namespace deepinfer::kvstore {

class FileOps {
 public:
  virtual ~FileOps() = default;
  virtual int Create(const std::string& path);  // mode 0600, must not exist; returns the descriptor
  virtual int Open(const std::string& path);    // for writing
  virtual int Close(int fd);
  virtual ssize_t Pwrite(int fd, const void* data, size_t bytes, int64_t offset);
  virtual int Truncate(int fd, int64_t bytes);
  virtual int SyncData(int fd);
  virtual int Rename(const std::string& from, const std::string& to);
  virtual int Unlink(const std::string& path);
  // Makes renames and removals in a directory durable.
  virtual int SyncDirectory(const std::string& path);

  static FileOps& System();
};

}  // namespace deepinfer::kvstore
