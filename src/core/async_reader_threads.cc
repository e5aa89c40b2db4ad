// SPDX-License-Identifier: Apache-2.0
//
// Asynchronous reads by threads that call pread: they sleep in the read or on the queue.
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <exception>
#include <thread>
#include <vector>

#include "core/async_reader_impl.h"
#include "core/check.h"

namespace deepinfer::async_read {
namespace {

// More threads than this gain nothing: each holds one chunk under way.
constexpr int kMaxThreads = 32;

class ThreadReader final : public AsyncReader {
 public:
  ThreadReader(const AsyncReaderOptions& options, std::string note) : options_(options), note_(std::move(note)) {
    const int count = std::min(options.queue_depth, kMaxThreads);
    for (int i = 0; i < count; ++i) {
      try {  // a limit on threads may refuse some; one is enough
        threads_.emplace_back([this] { Work(); });
      } catch (const std::exception&) {
        break;
      }
    }
  }

  ~ThreadReader() override {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      stops_ = true;
      while (!queue_.empty()) {
        const Chunk chunk = queue_.Pop();
        chunk.batch->EndPart(chunk.read_idx, Cancelled("the read was cancelled"));
      }
    }
    has_work_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  std::string_view name() const override { return "threads"; }
  std::string note() const override { return note_; }

  void Submit(std::span<const FileRead> reads, ReadBatch& batch, ReadPriority priority) override {
    std::deque<Chunk> chunks;
    Split(reads, batch, options_.chunk_bytes, chunks);
    if (chunks.empty()) return;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      for (const Chunk& chunk : chunks) queue_.Push(chunk, priority);
    }
    if (threads_.empty()) {  // not one thread was to be had: the caller reads
      Work(true);
    } else if (chunks.size() == 1) {
      has_work_.notify_one();
    } else {
      has_work_.notify_all();
    }
  }

  void Promote(const ReadBatch& batch) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    queue_.Promote(batch);
  }

  bool RegisterMemory(void*, int64_t) override { return false; }

 private:
  void Work(bool until_empty = false) {
    while (true) {
      std::unique_lock<std::mutex> lock(mutex_);
      if (!until_empty) has_work_.wait(lock, [this] { return stops_ || !queue_.empty(); });
      if (queue_.empty()) return;
      Chunk chunk = queue_.Pop();
      lock.unlock();
      Status status;
      while (true) {
        int64_t result = ::pread(chunk.TakeDescriptor(), chunk.next_buffer(), static_cast<size_t>(chunk.next_bytes()), chunk.next_offset());
        if (result < 0) result = -errno;
        if (options_.filter != nullptr) result = options_.filter->Filter(*chunk.file, chunk.next_offset(), chunk.next_bytes(), result);
        if (TakeResult(chunk, result, status)) break;
      }
      chunk.batch->EndPart(chunk.read_idx, status);
    }
  }

  const AsyncReaderOptions options_;
  const std::string note_;
  std::mutex mutex_;
  std::condition_variable has_work_;
  ChunkQueue queue_;
  bool stops_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace

std::unique_ptr<AsyncReader> MakeThreadReader(const AsyncReaderOptions& options, std::string note) {
  return std::make_unique<ThreadReader>(options, std::move(note));
}

}  // namespace deepinfer::async_read
