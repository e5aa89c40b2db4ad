// SPDX-License-Identifier: Apache-2.0
//
// Positioned file reads that run beside the caller: io_uring where it exists, a pool of pread threads elsewhere. Open the
// files (InputFile), submit reads in batches, wait for a batch (ReadBatch::Wait sleeps, it never spins). Any thread may
// submit. Big reads are cut into chunks; short reads, EINTR and EAGAIN are continued inside; a batch ends when all its
// reads have ended and carries the error of its first failed read. Priorities: chunks of demand reads start before those
// of prefetch reads.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>

#include "core/status.h"

namespace deepinfer {

// A regular file open for positioned reads. Thread-safe. It stays the file that was opened even if the path is replaced; a
// file that is changed in place is an error of the next read.
class InputFile {
 public:
  // What offsets, sizes and buffers of direct reads are multiples of. Other reads go through the page cache.
  static constexpr int64_t kAlignment = 4096;

  // direct: read past the page cache (O_DIRECT) where the file system allows it.
  static Result<std::shared_ptr<InputFile>> Open(const std::string& path, bool direct);
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;
  ~InputFile();

  const std::string& path() const { return path_; }
  int64_t size() const { return size_; }
  bool is_direct() const { return direct_fd_ >= 0 && !direct_refused_.load(std::memory_order_relaxed); }
  // kBadModel when the file has another size or change time than when it was opened.
  Status CheckUnchanged() const;
  // Another file has taken the path since (no error: reads still come from the file that was opened).
  bool IsReplaced() const;

  // For the back ends: the descriptor that suits a read.
  int DescriptorFor(int64_t offset, int64_t bytes, const void* buffer) const;
  bool IsDirectDescriptor(int fd) const { return fd >= 0 && fd == direct_fd_; }
  // A direct read was refused (EINVAL): all later ones go through the page cache.
  void RefuseDirect() { direct_refused_.store(true, std::memory_order_relaxed); }

 private:
  InputFile() = default;
  std::string path_;
  int fd_ = -1;
  int direct_fd_ = -1;
  int64_t size_ = 0;
  dev_t device_ = 0;
  ino_t inode_ = 0;
  int64_t modified_ns_ = 0;
  std::atomic<bool> direct_refused_{false};
};

struct FileRead {
  InputFile* file = nullptr;
  int64_t offset = 0;
  int64_t bytes = 0;
  void* buffer = nullptr;
  // The bytes that must be there, counted from `offset`; a direct read may reach past the end of the file. < 0: all.
  int64_t min_bytes = -1;
};

// What was submitted together; Reset() makes it ready for the next use. The destructor waits.
class ReadBatch {
 public:
  ReadBatch() = default;
  ReadBatch(const ReadBatch&) = delete;
  ReadBatch& operator=(const ReadBatch&) = delete;
  ~ReadBatch() { Wait(); }

  // True when nothing is under way: the buffers belong to the caller again.
  bool is_done() const;
  void Wait() const;
  // False if it is not done after that long.
  bool WaitFor(std::chrono::nanoseconds duration) const;
  // Of the failed read that was submitted first; valid when done.
  Status status() const;
  // Forgets the error. When done only.
  void Reset();

  // For the back ends: `num_parts` parts of `num_reads` more reads are under way (returns the number of the first of those
  // reads); one of them ended.
  int64_t Begin(int64_t num_reads, int64_t num_parts);
  void EndPart(int64_t read_idx, const Status& status);

 private:
  mutable std::mutex mutex_;
  mutable std::condition_variable done_;
  int64_t num_reads_ = 0;
  int64_t pending_ = 0;
  int64_t error_read_ = -1;
  Status status_;
};

// Sees the result of every operating system read and may replace it: how tests inject errors, short reads and delays (it
// may block). Called without locks from the threads that finish reads.
class ReadFilter {
 public:
  virtual ~ReadFilter() = default;
  // result: bytes read, or -errno. Returns what the reader shall see.
  virtual int64_t Filter(const InputFile& file, int64_t offset, int64_t bytes, int64_t result) = 0;
};

enum class ReadPriority { kDemand, kPrefetch };

struct AsyncReaderOptions {
  std::string backend = "auto";  // auto, uring, threads
  int queue_depth = 32;          // chunks under way at once
  int64_t chunk_bytes = 512 << 10;
  ReadFilter* filter = nullptr;  // outlives the reader
};

class AsyncReader {
 public:
  // auto: io_uring, or threads where it is missing or refused (note() says why). kInvalidArgument: an unknown name;
  // kUnavailable: uring was asked for by name and cannot be had.
  static Result<std::unique_ptr<AsyncReader>> Create(const AsyncReaderOptions& options);
  // Finishes what is under way; chunks that have not begun end as kCancelled.
  virtual ~AsyncReader() = default;

  virtual std::string_view name() const = 0;  // "uring", "threads"
  // What is not as fast as it could be and why, for logs and doctor; empty = nothing.
  virtual std::string note() const = 0;

  // Starts the reads. `batch` ends when they and all that it already holds have ended. Files and buffers must live until
  // then.
  virtual void Submit(std::span<const FileRead> reads, ReadBatch& batch, ReadPriority priority = ReadPriority::kDemand) = 0;
  // Chunks of `batch` that wait with prefetch priority become demand reads.
  virtual void Promote(const ReadBatch& batch) = 0;
  // Registers memory that reads will often go to (io_uring pins its pages once). False where that is not possible: reads
  // work all the same.
  virtual bool RegisterMemory(void* data, int64_t bytes) = 0;
};

// True when this program can use io_uring here; `why_not` (optional) gets the reason otherwise.
bool IsUringAvailable(std::string* why_not = nullptr);

}  // namespace deepinfer
