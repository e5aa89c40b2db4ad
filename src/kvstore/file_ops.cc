// SPDX-License-Identifier: Apache-2.0
#include "kvstore/file_ops.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>

namespace deepinfer::kvstore {
namespace {

int ErrnoOr(int result) { return result < 0 ? -errno : result; }

}  // namespace

int FileOps::Create(const std::string& path) { return ErrnoOr(::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600)); }
int FileOps::Open(const std::string& path) { return ErrnoOr(::open(path.c_str(), O_RDWR | O_CLOEXEC)); }
int FileOps::Close(int fd) { return ErrnoOr(::close(fd)); }
ssize_t FileOps::Pwrite(int fd, const void* data, size_t bytes, int64_t offset) {
  const ssize_t done = ::pwrite(fd, data, bytes, offset);
#ifdef SYNC_FILE_RANGE_WRITE
  // The disk begins now; the barrier then waits for less. A hint: its failure changes nothing.
  constexpr ssize_t kBigWrite = 1 << 20;
  if (done >= kBigWrite) (void)::sync_file_range(fd, offset, done, SYNC_FILE_RANGE_WRITE);
#endif
  return done < 0 ? -errno : done;
}
int FileOps::Truncate(int fd, int64_t bytes) { return ErrnoOr(::ftruncate(fd, bytes)); }
int FileOps::SyncData(int fd) { return ErrnoOr(::fdatasync(fd)); }
int FileOps::Rename(const std::string& from, const std::string& to) { return ErrnoOr(std::rename(from.c_str(), to.c_str())); }
int FileOps::Unlink(const std::string& path) { return ErrnoOr(::unlink(path.c_str())); }
int FileOps::SyncDirectory(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return -errno;
  const int result = ErrnoOr(::fsync(fd));
  ::close(fd);
  return result;
}

FileOps& FileOps::System() {
  static FileOps ops;
  return ops;
}

}  // namespace deepinfer::kvstore
