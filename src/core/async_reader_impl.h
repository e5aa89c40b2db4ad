// SPDX-License-Identifier: Apache-2.0
//
// Private to the back ends of core/async_reader.h: the chunks of reads, the queue of those that wait, and what the result
// of an operating system read means.
#pragma once

#include <deque>
#include <memory>
#include <span>
#include <string>

#include "core/async_reader.h"

namespace deepinfer::async_read {

struct Chunk {
  ReadBatch* batch;
  InputFile* file;
  int64_t offset;
  int64_t bytes;
  int64_t min_bytes;
  uint8_t* buffer;
  int64_t read_idx;
  int64_t done = 0;
  int num_retries = 0;
  bool was_direct = false;  // the read under way goes past the page cache

  int64_t next_offset() const { return offset + done; }
  int64_t next_bytes() const { return bytes - done; }
  uint8_t* next_buffer() const { return buffer + done; }
  int TakeDescriptor() {
    const int fd = file->DescriptorFor(next_offset(), next_bytes(), next_buffer());
    was_direct = file->IsDirectDescriptor(fd);
    return fd;
  }
};

// Takes the result (bytes or -errno) of a read of chunk.next_*(). True: the chunk has ended and `status` says how; false:
// read on.
bool TakeResult(Chunk& chunk, int64_t result, Status& status);

// Chunks that wait. Not thread-safe.
class ChunkQueue {
 public:
  bool empty() const { return demand_.empty() && prefetch_.empty(); }
  void Push(const Chunk& chunk, ReadPriority priority) {
    (priority == ReadPriority::kDemand ? demand_ : prefetch_).push_back(chunk);
  }
  Chunk Pop();
  void Promote(const ReadBatch& batch);

 private:
  std::deque<Chunk> demand_;
  std::deque<Chunk> prefetch_;
};

// Cuts `reads` into chunks and begins them in `batch`. Reads of files that were changed end at once.
void Split(std::span<const FileRead> reads, ReadBatch& batch, int64_t chunk_bytes, std::deque<Chunk>& chunks);

std::unique_ptr<AsyncReader> MakeThreadReader(const AsyncReaderOptions& options, std::string note);
// kUnavailable with the reason when io_uring cannot be had.
Result<std::unique_ptr<AsyncReader>> MakeUringReader(const AsyncReaderOptions& options);

}  // namespace deepinfer::async_read
