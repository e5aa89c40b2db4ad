// SPDX-License-Identifier: Apache-2.0
#include "backends/cpu/kernels/aligned_buffer.h"

#include <sys/mman.h>

#include <cstdlib>
#include <cstring>
#include <utility>

#include "core/check.h"

namespace deepinfer::cpu {
namespace {

constexpr int64_t kHugePageBytes = int64_t{2} << 20;

int64_t RoundUp(int64_t value, int64_t unit) { return (value + unit - 1) / unit * unit; }

}  // namespace

AlignedBuffer::AlignedBuffer(AlignedBuffer&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)),
      mapped_bytes_(std::exchange(other.mapped_bytes_, 0)) {}

AlignedBuffer& AlignedBuffer::operator=(AlignedBuffer&& other) noexcept {
  if (this != &other) {
    Free();
    data_ = std::exchange(other.data_, nullptr);
    bytes_ = std::exchange(other.bytes_, 0);
    mapped_bytes_ = std::exchange(other.mapped_bytes_, 0);
  }
  return *this;
}

AlignedBuffer::~AlignedBuffer() { Free(); }

void AlignedBuffer::Free() {
  if (data_ == nullptr) return;
  if (mapped_bytes_ > 0) {
    munmap(data_, static_cast<size_t>(mapped_bytes_));
  } else {
    std::free(data_);
  }
  data_ = nullptr;
  bytes_ = 0;
  mapped_bytes_ = 0;
}

void AlignedBuffer::Allocate(int64_t bytes) {
  Free();
  if (bytes <= 0) return;
  if (bytes < kHugePageBytes) {
    const auto size = static_cast<size_t>(RoundUp(bytes, 64));
    data_ = static_cast<uint8_t*>(std::aligned_alloc(64, size));
    DI_CHECK(data_ != nullptr) << "out of memory: " << bytes << " bytes";
    std::memset(data_, 0, size);
  } else {
    // Over-allocate by one huge page, then give the unaligned ends back.
    const int64_t size = RoundUp(bytes, kHugePageBytes);
    void* raw = mmap(nullptr, static_cast<size_t>(size + kHugePageBytes), PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    DI_CHECK(raw != MAP_FAILED) << "out of memory: " << bytes << " bytes";
    const auto begin = reinterpret_cast<int64_t>(raw);
    const int64_t aligned = RoundUp(begin, kHugePageBytes);
    if (aligned > begin) munmap(raw, static_cast<size_t>(aligned - begin));
    const int64_t tail = begin + kHugePageBytes - aligned;
    if (tail > 0) munmap(reinterpret_cast<void*>(aligned + size), static_cast<size_t>(tail));
    data_ = reinterpret_cast<uint8_t*>(aligned);
    mapped_bytes_ = size;
    madvise(data_, static_cast<size_t>(size), MADV_HUGEPAGE);  // a hint; failure costs speed only
  }
  bytes_ = bytes;
}

}  // namespace deepinfer::cpu
