// SPDX-License-Identifier: Apache-2.0
//
// Asynchronous reads through io_uring. Submitters put chunks into the ring while it has room, under the mutex; one thread
// sleeps in the kernel for completions, continues short reads and refills the ring. The submission side is only touched
// under the mutex, the completion side only by that thread.
#include "core/async_reader_impl.h"

#if DEEPINFER_HAVE_URING

#include <liburing.h>
#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <thread>
#include <vector>

#include <fmt/format.h>

namespace deepinfer::async_read {
namespace {

// The kernel takes registered buffers of at most 1 GiB each, and 16384 of them.
constexpr int64_t kMaxRegisteredBytes = int64_t{1} << 30;
constexpr int64_t kMaxRegistered = 16384;

class UringReader final : public AsyncReader {
 public:
  static Result<std::unique_ptr<AsyncReader>> Create(const AsyncReaderOptions& options) {
    std::unique_ptr<UringReader> reader(new UringReader(options));
    const int error = -io_uring_queue_init(static_cast<unsigned>(options.queue_depth + 1), &reader->ring_, 0);
    if (error != 0) {
      const char* remedy = error == ENOSYS   ? "the kernel has none"
                           : error == EPERM  ? "the system forbids it (kernel.io_uring_disabled or a container's filter)"
                           : error == ENOMEM ? "raise the limit of locked memory (ulimit -l)"
                                             : "see kernel.io_uring_disabled";
      return Unavailable(fmt::format("io_uring cannot be used: {}; {}", std::strerror(error), remedy));
    }
    reader->is_open_ = true;
    io_uring_probe* const probe = io_uring_get_probe_ring(&reader->ring_);
    const bool can_read = probe != nullptr && io_uring_opcode_supported(probe, IORING_OP_READ) != 0 &&
                          io_uring_opcode_supported(probe, IORING_OP_READ_FIXED) != 0;
    if (probe != nullptr) io_uring_free_probe(probe);
    if (!can_read) return Unavailable("io_uring cannot be used: this kernel's has no plain reads; Linux 5.6 has them");
    reader->slots_.resize(static_cast<size_t>(options.queue_depth));
    for (int i = 0; i < options.queue_depth; ++i) reader->free_slots_.push_back(i);
    try {
      reader->thread_ = std::thread([r = reader.get()] { r->Reap(); });
    } catch (const std::exception& e) {
      return Unavailable(fmt::format("io_uring cannot be used: no thread for it: {}", e.what()));
    }
    return std::unique_ptr<AsyncReader>(std::move(reader));
  }

  ~UringReader() override {
    if (thread_.joinable()) {
      {
        const std::lock_guard<std::mutex> lock(mutex_);
        stops_ = true;
        while (!queue_.empty()) {
          const Chunk chunk = queue_.Pop();
          chunk.batch->EndPart(chunk.read_idx, Cancelled("the read was cancelled"));
        }
        io_uring_sqe* sqe = io_uring_get_sqe(&ring_);  // the ring has an entry more than slots
        io_uring_prep_nop(sqe);
        io_uring_sqe_set_data64(sqe, kWakeUp);
        SubmitToKernel();
      }
      thread_.join();
    }
    if (is_open_) io_uring_queue_exit(&ring_);
  }

  std::string_view name() const override { return "uring"; }
  std::string note() const override {
    const std::lock_guard<std::mutex> lock(mutex_);
    return note_;
  }

  void Submit(std::span<const FileRead> reads, ReadBatch& batch, ReadPriority priority) override {
    std::deque<Chunk> chunks;
    Split(reads, batch, options_.chunk_bytes, chunks);
    if (chunks.empty()) return;
    const std::lock_guard<std::mutex> lock(mutex_);
    for (const Chunk& chunk : chunks) queue_.Push(chunk, priority);
    Refill();
    SubmitToKernel();
  }

  void Promote(const ReadBatch& batch) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    queue_.Promote(batch);
  }

  bool RegisterMemory(void* data, int64_t bytes) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!regions_.empty() || bytes <= 0) return false;  // once
    std::vector<iovec> pieces;
    for (int64_t at = 0; at < bytes; at += kMaxRegisteredBytes)
      pieces.push_back({static_cast<uint8_t*>(data) + at, static_cast<size_t>(std::min(kMaxRegisteredBytes, bytes - at))});
    int error = static_cast<int64_t>(pieces.size()) > kMaxRegistered ? E2BIG : 0;
    if (error == 0) error = -io_uring_register_buffers(&ring_, pieces.data(), static_cast<unsigned>(pieces.size()));
    if (error != 0) {
      rlimit limit{};
      getrlimit(RLIMIT_MEMLOCK, &limit);
      note_ = fmt::format("buffers are not registered: {}{}", std::strerror(error),
                          error == ENOMEM ? fmt::format("; the limit of locked memory is {} KiB (ulimit -l)", limit.rlim_cur >> 10) : "");
      return false;
    }
    regions_ = std::move(pieces);
    return true;
  }

 private:
  static constexpr uint64_t kWakeUp = ~uint64_t{0};

  explicit UringReader(const AsyncReaderOptions& options) : options_(options) {}

  // Index of the registered piece that holds the range, or -1.
  int RegisteredPiece(const uint8_t* begin, int64_t bytes) const {
    if (regions_.empty()) return -1;
    const int64_t at = begin - static_cast<const uint8_t*>(regions_[0].iov_base);
    if (at < 0) return -1;
    const int64_t piece = at / kMaxRegisteredBytes;
    if (piece >= static_cast<int64_t>(regions_.size())) return -1;
    const int64_t inside = at - piece * kMaxRegisteredBytes;
    return inside + bytes <= static_cast<int64_t>(regions_[static_cast<size_t>(piece)].iov_len) ? static_cast<int>(piece) : -1;
  }

  // The rest of functions: under the mutex.
  void Prepare(int slot) {
    Chunk& chunk = slots_[static_cast<size_t>(slot)];
    io_uring_sqe* sqe = io_uring_get_sqe(&ring_);  // there is one entry per slot
    const int fd = chunk.TakeDescriptor();
    const auto bytes = static_cast<unsigned>(chunk.next_bytes());
    const auto offset = static_cast<uint64_t>(chunk.next_offset());
    if (const int piece = RegisteredPiece(chunk.next_buffer(), chunk.next_bytes()); piece >= 0) {
      io_uring_prep_read_fixed(sqe, fd, chunk.next_buffer(), bytes, offset, piece);
    } else {
      io_uring_prep_read(sqe, fd, chunk.next_buffer(), bytes, offset);
    }
    io_uring_sqe_set_data64(sqe, static_cast<uint64_t>(slot));
  }

  void Refill() {
    while (!free_slots_.empty() && !queue_.empty()) {
      const int slot = free_slots_.back();
      free_slots_.pop_back();
      slots_[static_cast<size_t>(slot)] = queue_.Pop();
      Prepare(slot);
    }
  }

  void SubmitToKernel() {
    // Entries that the kernel does not take now (out of memory) go with the next call; the thread below calls again after
    // every completion, and at least one is under way whenever that happens.
    while (io_uring_sq_ready(&ring_) > 0) {
      const int taken = io_uring_submit(&ring_);
      if (taken >= 0 || taken == -EINTR) continue;
      if (io_uring_sq_ready(&ring_) >= static_cast<unsigned>(options_.queue_depth) - static_cast<unsigned>(free_slots_.size())) {
        std::this_thread::yield();  // nothing is under way that could call again
        continue;
      }
      return;
    }
  }

  void Reap() {
    while (true) {
      io_uring_cqe* cqe = nullptr;
      const int waited = io_uring_wait_cqe(&ring_, &cqe);
      if (waited < 0) continue;  // EINTR
      const uint64_t data = io_uring_cqe_get_data64(cqe);
      const int64_t raw = cqe->res;
      io_uring_cqe_seen(&ring_, cqe);
      std::unique_lock<std::mutex> lock(mutex_);
      if (data != kWakeUp) {
        Chunk& chunk = slots_[static_cast<size_t>(data)];  // of this thread until the slot is free
        int64_t result = raw;
        if (options_.filter != nullptr) {
          lock.unlock();
          result = options_.filter->Filter(*chunk.file, chunk.next_offset(), chunk.next_bytes(), raw);
          lock.lock();
        }
        Status status;
        if (TakeResult(chunk, result, status)) {
          ReadBatch* batch = chunk.batch;
          const int64_t read_idx = chunk.read_idx;
          free_slots_.push_back(static_cast<int>(data));
          Refill();
          SubmitToKernel();
          batch->EndPart(read_idx, status);
        } else {
          Prepare(static_cast<int>(data));
          SubmitToKernel();
        }
      }
      if (stops_ && free_slots_.size() == slots_.size()) return;
    }
  }

  const AsyncReaderOptions options_;
  io_uring ring_{};
  bool is_open_ = false;
  std::vector<iovec> regions_;
  mutable std::mutex mutex_;
  std::string note_;
  ChunkQueue queue_;
  std::vector<Chunk> slots_;
  std::vector<int> free_slots_;
  bool stops_ = false;
  std::thread thread_;
};

}  // namespace

Result<std::unique_ptr<AsyncReader>> MakeUringReader(const AsyncReaderOptions& options) { return UringReader::Create(options); }

}  // namespace deepinfer::async_read

#else

namespace deepinfer::async_read {

Result<std::unique_ptr<AsyncReader>> MakeUringReader(const AsyncReaderOptions&) {
  return Unavailable("io_uring cannot be used: the program was built without liburing (DEEPINFER_URING)");
}

}  // namespace deepinfer::async_read

#endif
