// SPDX-License-Identifier: Apache-2.0
#include "core/file.h"

#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fmt/format.h>

#include "core/mapping_guard.h"

namespace deepinfer {

namespace {

class FileDescriptor {
 public:
  explicit FileDescriptor(int fd) : fd_(fd) {}
  FileDescriptor(const FileDescriptor&) = delete;
  FileDescriptor& operator=(const FileDescriptor&) = delete;
  ~FileDescriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  int get() const { return fd_; }

 private:
  int fd_;
};

const char* RemedyOf(int error) {
  switch (error) {
    case ENOENT:
    case ENOTDIR: return "check the path";
    case EACCES:
    case EPERM: return "check its permissions";
    case EISDIR: return "name a file";
    case ENAMETOOLONG:
    case ELOOP: return "check the path and its links";
    case EMFILE:
    case ENFILE: return "raise the limit of open files (ulimit -n)";
    case EIO: return "check the disk";
    default: return "check the file and its disk";
  }
}

Status ReadError(const std::string& path, int error) {
  return BadModel(fmt::format("cannot read {}: {}; {}", path, std::strerror(error), RemedyOf(error)));
}

Result<int64_t> RegularFileSize(const std::string& path, int fd) {
  struct stat st {};
  if (::fstat(fd, &st) != 0) return ReadError(path, errno);
  if (S_ISDIR(st.st_mode)) return ReadError(path, EISDIR);
  if (!S_ISREG(st.st_mode))
    return BadModel(fmt::format("cannot read {}: not a regular file; name one", path));
  return int64_t{st.st_size};
}

}  // namespace

Result<std::string> ReadFile(const std::string& path, int64_t max_bytes) {
  // O_NONBLOCK keeps a FIFO in the model directory from hanging the open; it has no effect on
  // regular files.
  FileDescriptor fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (fd.get() < 0) return ReadError(path, errno);
  DI_ASSIGN_OR_RETURN(const int64_t size, RegularFileSize(path, fd.get()));
  if (size > max_bytes) {
    return BadModel(
        fmt::format("{} has {} bytes but at most {} are read; it is not the expected kind of file",
                    path,
                    size,
                    max_bytes));
  }
  std::string bytes(static_cast<size_t>(size), '\0');
  size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t n = ::read(fd.get(), bytes.data() + done, bytes.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return ReadError(path, errno);
    if (n == 0) return BadModel(fmt::format("{} shrank while it was read; try again when nothing writes to it", path));
    done += static_cast<size_t>(n);
  }
  return bytes;
}

Result<std::string> ReadModelFile(const std::string& model_dir, std::string_view name, int64_t max_bytes) {
  const std::string path = fmt::format("{}/{}", model_dir, name);
  if (::access(path.c_str(), F_OK) != 0) {
    return BadModel(fmt::format("cannot read {}: {}; a checkpoint directory holds config.json, tokenizer.json and the weights",
                                path, std::strerror(errno)));
  }
  return ReadFile(path, max_bytes);
}

Status WriteFileAtomically(const std::string& path, std::string_view bytes) {
  // A device, a pipe or a link is written through, never replaced.
  struct stat st {};
  const bool write_through = ::lstat(path.c_str(), &st) == 0 && !S_ISREG(st.st_mode);
  const std::string temporary = write_through ? path : fmt::format("{}.tmp-{}", path, ::getpid());
  const auto fail = [&](const char* what, int error) {
    if (!write_through) ::unlink(temporary.c_str());
    const char* remedy = error == ENOSPC || error == EDQUOT ? "free some space or choose another disk"
                         : error == EFBIG                   ? "raise the file size limit (ulimit -f)"
                         : error == ENOENT                  ? "create its folder first"
                                                            : "choose a place that can be written";
    return ResourceExhausted(fmt::format("cannot {} {}: {}; {}", what, path, std::strerror(error), remedy));
  };
  FileDescriptor fd(::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
  if (fd.get() < 0) return fail("create", errno);
  size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t n = ::write(fd.get(), bytes.data() + done, bytes.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return fail("write", errno);
    done += static_cast<size_t>(n);
  }
  if (write_through) return Status::Ok();
  if (::fsync(fd.get()) != 0) return fail("write", errno);
  if (::rename(temporary.c_str(), path.c_str()) != 0) return fail("rename to", errno);
  return Status::Ok();
}

Result<MappedFile> MappedFile::Open(const std::string& path) {
  FileDescriptor fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (fd.get() < 0) return ReadError(path, errno);
  DI_ASSIGN_OR_RETURN(const int64_t size, RegularFileSize(path, fd.get()));
  MappedFile file;
  file.path_ = path;
  file.size_ = size;
  if (size > 0) {
    void* mapped = ::mmap(nullptr, static_cast<size_t>(size), PROT_READ, MAP_PRIVATE, fd.get(), 0);
    if (mapped == MAP_FAILED && errno == ENOMEM) {
      return ResourceExhausted(fmt::format(
          "cannot map {} ({} bytes): no address space left; raise the limit (ulimit -v)",
          path,
          size));
    }
    if (mapped == MAP_FAILED) return ReadError(path, errno);
    file.data_ = static_cast<const uint8_t*>(mapped);
    GuardMapping(mapped, size);
  }
  return file;
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)),
      path_(std::move(other.path_)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(path_, other.path_);
  return *this;
}

bool MappedFile::is_damaged() const { return IsAnyMappingDamaged() && IsMappingDamaged(data_); }

MappedFile::~MappedFile() {
  if (data_ == nullptr) return;
  UnguardMapping(data_);
  ::munmap(const_cast<uint8_t*>(data_), static_cast<size_t>(size_));
}

}  // namespace deepinfer
