// SPDX-License-Identifier: Apache-2.0
#include "core/async_reader.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "core/async_reader_impl.h"
#include "core/check.h"
#include "core/escape.h"

namespace deepinfer {
namespace {

int64_t ModifiedNs(const struct stat& st) { return int64_t{st.st_mtim.tv_sec} * 1'000'000'000 + st.st_mtim.tv_nsec; }

Status OpenError(const std::string& path, int error) {
  const char* remedy = error == EMFILE || error == ENFILE ? "raise the limit of open files (ulimit -n)"
                       : error == ENOENT                  ? "check the path"
                       : error == EACCES                  ? "check its permissions"
                                                          : "check the file and its disk";
  return BadModel(fmt::format("cannot read {}: {}; {}", path, std::strerror(error), remedy));
}

}  // namespace

// ---- files --------------------------------------------------------------------------------------------------------------

Result<std::shared_ptr<InputFile>> InputFile::Open(const std::string& path, bool direct) {
  std::shared_ptr<InputFile> file(new InputFile());
  file->path_ = path;
  file->fd_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file->fd_ < 0) return OpenError(path, errno);
  struct stat st {};
  if (::fstat(file->fd_, &st) != 0) return OpenError(path, errno);
  if (!S_ISREG(st.st_mode)) return BadModel(fmt::format("cannot read {}: not a regular file; name one", path));
  // It kept a pipe from blocking the open; reads shall wait for the disk.
  if (const int flags = ::fcntl(file->fd_, F_GETFL); flags >= 0) ::fcntl(file->fd_, F_SETFL, flags & ~O_NONBLOCK);
  file->size_ = st.st_size;
  file->device_ = st.st_dev;
  file->inode_ = st.st_ino;
  file->modified_ns_ = ModifiedNs(st);
#ifdef O_DIRECT
  if (direct) {
    // Through the descriptor, so that both are the same file whatever happens to the path.
    const std::string same = fmt::format("/proc/self/fd/{}", file->fd_);
    file->direct_fd_ = ::open(same.c_str(), O_RDONLY | O_CLOEXEC | O_DIRECT);
    struct stat direct_st {};
    if (file->direct_fd_ >= 0 && (::fstat(file->direct_fd_, &direct_st) != 0 || direct_st.st_ino != st.st_ino || direct_st.st_dev != st.st_dev)) {
      ::close(file->direct_fd_);
      file->direct_fd_ = -1;
    }
  }
#else
  (void)direct;
#endif
  return file;
}

InputFile::~InputFile() {
  if (direct_fd_ >= 0) ::close(direct_fd_);
  if (fd_ >= 0) ::close(fd_);
}

Status InputFile::CheckUnchanged() const {
  struct stat st {};
  if (::fstat(fd_, &st) != 0) return OpenError(path_, errno);
  if (st.st_size < size_)
    return BadModel(fmt::format("{} was truncated while it was in use: it has {} bytes instead of {}; restore the file and start again", path_,
                                st.st_size, size_));
  if (st.st_size != size_ || ModifiedNs(st) != modified_ns_)
    return BadModel(fmt::format("{} was changed while it was in use; let nothing write to it and start again", path_));
  return Status::Ok();
}

bool InputFile::IsReplaced() const {
  struct stat st {};
  return ::stat(path_.c_str(), &st) != 0 || st.st_ino != inode_ || st.st_dev != device_;
}

int InputFile::DescriptorFor(int64_t offset, int64_t bytes, const void* buffer) const {
  const bool is_aligned = (static_cast<uint64_t>(offset) | static_cast<uint64_t>(bytes) | reinterpret_cast<uintptr_t>(buffer)) % kAlignment == 0;
  return is_aligned && is_direct() ? direct_fd_ : fd_;
}

// ---- batches ------------------------------------------------------------------------------------------------------------

bool ReadBatch::is_done() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return pending_ == 0;
}

void ReadBatch::Wait() const {
  std::unique_lock<std::mutex> lock(mutex_);
  done_.wait(lock, [this] { return pending_ == 0; });
}

bool ReadBatch::WaitFor(std::chrono::nanoseconds duration) const {
  std::unique_lock<std::mutex> lock(mutex_);
  return done_.wait_for(lock, duration, [this] { return pending_ == 0; });
}

Status ReadBatch::status() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return status_;
}

void ReadBatch::Reset() {
  const std::lock_guard<std::mutex> lock(mutex_);
  DI_CHECK(pending_ == 0) << "reads are under way";
  num_reads_ = 0;
  error_read_ = -1;
  status_ = Status::Ok();
}

int64_t ReadBatch::Begin(int64_t num_reads, int64_t num_parts) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const int64_t first = num_reads_;
  num_reads_ += num_reads;
  pending_ += num_parts;
  return first;
}

void ReadBatch::EndPart(int64_t read_idx, const Status& status) {
  // Notified under the lock: the waiter may destroy the batch as soon as it can take it.
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!status.ok() && (error_read_ < 0 || read_idx < error_read_)) {
    error_read_ = read_idx;
    status_ = status;
  }
  if (--pending_ == 0) done_.notify_all();
}

// ---- chunks -------------------------------------------------------------------------------------------------------------

namespace async_read {
namespace {

// EINTR and EAGAIN in a row: more means that something other than bad luck is at work.
constexpr int kMaxRetries = 1000;

}  // namespace

bool TakeResult(Chunk& chunk, int64_t result, Status& status) {
  if (result > 0) {
    chunk.done += std::min(result, chunk.next_bytes());
    chunk.num_retries = 0;
    if (chunk.done < chunk.bytes) return false;
    status = Status::Ok();
    return true;
  }
  if (result == 0) {
    if (chunk.done >= chunk.min_bytes) {
      status = Status::Ok();
      return true;
    }
    status = chunk.file->CheckUnchanged();
    if (status.ok())
      status = BadModel(fmt::format("{} is truncated: it ends at byte {}, bytes up to {} are needed; restore the file and start again",
                                    chunk.file->path(), chunk.next_offset(), chunk.offset + chunk.min_bytes));
    return true;
  }
  const int error = static_cast<int>(-result);
  // ECANCELED: io_uring gives up what a thread that has ended had submitted.
  const bool is_transient = error == EINTR || error == EAGAIN || error == ECANCELED;
  // A file system that opens files for direct reads and then refuses them.
  const bool is_refused = error == EINVAL && chunk.was_direct;
  if ((is_transient || is_refused) && chunk.num_retries < kMaxRetries) {
    if (is_refused) chunk.file->RefuseDirect();
    ++chunk.num_retries;
    return false;
  }
  status = BadModel(fmt::format("cannot read {} at byte {}: {}; check the disk", chunk.file->path(), chunk.next_offset(), std::strerror(error)));
  return true;
}

Chunk ChunkQueue::Pop() {
  std::deque<Chunk>& from = demand_.empty() ? prefetch_ : demand_;
  const Chunk chunk = from.front();
  from.pop_front();
  return chunk;
}

void ChunkQueue::Promote(const ReadBatch& batch) {
  std::erase_if(prefetch_, [&](const Chunk& chunk) {
    if (chunk.batch != &batch) return false;
    demand_.push_back(chunk);
    return true;
  });
}

void Split(std::span<const FileRead> reads, ReadBatch& batch, int64_t chunk_bytes, std::deque<Chunk>& chunks) {
  std::vector<std::pair<int64_t, Status>> failed;
  Status unchanged;
  const InputFile* checked = nullptr;
  for (size_t i = 0; i < reads.size(); ++i) {
    const FileRead& read = reads[i];
    if (read.file != checked) {
      unchanged = read.file->CheckUnchanged();
      checked = read.file;
    }
    const int64_t idx = static_cast<int64_t>(i);
    if (!unchanged.ok()) {
      failed.emplace_back(idx, unchanged);
      continue;
    }
    const int64_t min_bytes = read.min_bytes < 0 ? read.bytes : read.min_bytes;
    for (int64_t at = 0; at < read.bytes; at += chunk_bytes) {
      const int64_t bytes = std::min(chunk_bytes, read.bytes - at);
      chunks.push_back({&batch, read.file, read.offset + at, bytes, std::clamp<int64_t>(min_bytes - at, 0, bytes),
                        static_cast<uint8_t*>(read.buffer) + at, idx});
    }
  }
  const int64_t first = batch.Begin(static_cast<int64_t>(reads.size()), static_cast<int64_t>(chunks.size() + failed.size()));
  for (Chunk& chunk : chunks) chunk.read_idx += first;
  for (const auto& [idx, status] : failed) batch.EndPart(first + idx, status);
}

}  // namespace async_read

Result<std::unique_ptr<AsyncReader>> AsyncReader::Create(const AsyncReaderOptions& options) {
  AsyncReaderOptions checked = options;
  checked.queue_depth = std::clamp(options.queue_depth, 1, 4096);
  // Chunk borders keep direct reads aligned.
  checked.chunk_bytes = std::max(InputFile::kAlignment, options.chunk_bytes / InputFile::kAlignment * InputFile::kAlignment);
  if (options.backend == "threads") return async_read::MakeThreadReader(checked, "");
  if (options.backend != "auto" && options.backend != "uring")
    return InvalidArgument(fmt::format("the back end of asynchronous reads is \"{}\" but must be auto, uring or threads", Escape(options.backend, 64)));
  auto uring = async_read::MakeUringReader(checked);
  if (uring.ok() || options.backend == "uring") return uring;
  return async_read::MakeThreadReader(checked, uring.status().message());
}

bool IsUringAvailable(std::string* why_not) {
  AsyncReaderOptions options;
  options.queue_depth = 1;
  const auto reader = async_read::MakeUringReader(options);
  if (!reader.ok() && why_not != nullptr) *why_not = reader.status().message();
  return reader.ok();
}

}  // namespace deepinfer
