// SPDX-License-Identifier: Apache-2.0
//
// Owned raw memory aligned to a cache line; large buffers are aligned to 2 MiB and ask for huge pages. Zero-filled when
// allocated, not when reused.
#pragma once

#include <cstddef>
#include <cstdint>

namespace deepinfer::cpu {

class AlignedBuffer {
 public:
  AlignedBuffer() = default;
  explicit AlignedBuffer(int64_t bytes) { Allocate(bytes); }
  AlignedBuffer(AlignedBuffer&& other) noexcept;
  AlignedBuffer& operator=(AlignedBuffer&& other) noexcept;
  ~AlignedBuffer();

  // Discards the content.
  void Allocate(int64_t bytes);
  // The same for memory that lives as long as the model: small buffers share huge pages, of which a step then touches few.
  void AllocateLasting(int64_t bytes);
  // Keeps the memory when it is large enough (the content is then unspecified).
  void EnsureCapacity(int64_t bytes) {
    if (bytes > bytes_) Allocate(bytes);
  }

  uint8_t* data() { return data_; }
  const uint8_t* data() const { return data_; }
  int64_t bytes() const { return bytes_; }

 private:
  void Free();
  uint8_t* data_ = nullptr;
  int64_t bytes_ = 0;       // asked for
  int64_t mapped_bytes_ = 0;  // > 0: from mmap
  void* region_ = nullptr;    // set: part of a shared region; neither: from aligned_alloc
};

}  // namespace deepinfer::cpu
