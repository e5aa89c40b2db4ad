// SPDX-License-Identifier: Apache-2.0
#include "backends/cpu/kernels/aligned_buffer.h"
#include "core/integers.h"

#include <sys/mman.h>

#include <cstdlib>
#include <cstring>
#include <mutex>
#include <new>
#include <utility>

namespace deepinfer::cpu {
namespace {

constexpr int64_t kHugePageBytes = int64_t{2} << 20;

constexpr int64_t kRegionBytes = 4 * kHugePageBytes;

// Zero-filled pages aligned to a huge page.
uint8_t* MapHugePages(int64_t size) {
  // Over-allocate by one huge page, then give the unaligned ends back.
  void* raw = mmap(nullptr, static_cast<size_t>(size + kHugePageBytes), PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (raw == MAP_FAILED) throw std::bad_alloc();
  const auto begin = reinterpret_cast<int64_t>(raw);
  const int64_t aligned = RoundUp(begin, kHugePageBytes);
  if (aligned > begin) munmap(raw, static_cast<size_t>(aligned - begin));
  const int64_t tail = begin + kHugePageBytes - aligned;
  if (tail > 0) munmap(reinterpret_cast<void*>(aligned + size), static_cast<size_t>(tail));
  auto* data = reinterpret_cast<uint8_t*>(aligned);
  madvise(data, static_cast<size_t>(size), MADV_HUGEPAGE);  // a hint; failure costs speed only
  return data;
}

// Memory that several buffers share, handed out from front to back and unmapped when the last of them goes.
struct Region {
  uint8_t* data;
  int64_t used;
  int64_t num_buffers;
};
std::mutex g_regions_mutex;
Region* g_open_region = nullptr;  // takes the next buffer; counts as one of its own buffers

void ReleaseRegion(Region* region) {  // under the mutex
  if (--region->num_buffers > 0) return;
  munmap(region->data, static_cast<size_t>(kRegionBytes));
  delete region;
}

}  // namespace

AlignedBuffer::AlignedBuffer(AlignedBuffer&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)),
      mapped_bytes_(std::exchange(other.mapped_bytes_, 0)),
      region_(std::exchange(other.region_, nullptr)) {}

AlignedBuffer& AlignedBuffer::operator=(AlignedBuffer&& other) noexcept {
  if (this != &other) {
    Free();
    data_ = std::exchange(other.data_, nullptr);
    bytes_ = std::exchange(other.bytes_, 0);
    mapped_bytes_ = std::exchange(other.mapped_bytes_, 0);
    region_ = std::exchange(other.region_, nullptr);
  }
  return *this;
}

AlignedBuffer::~AlignedBuffer() { Free(); }

void AlignedBuffer::Free() {
  if (data_ == nullptr) return;
  if (region_ != nullptr) {
    const std::lock_guard<std::mutex> lock(g_regions_mutex);
    ReleaseRegion(static_cast<Region*>(region_));
  } else if (mapped_bytes_ > 0) {
    munmap(data_, static_cast<size_t>(mapped_bytes_));
  } else {
    std::free(data_);
  }
  data_ = nullptr;
  bytes_ = 0;
  mapped_bytes_ = 0;
  region_ = nullptr;
}

void AlignedBuffer::Allocate(int64_t bytes) {
  Free();
  if (bytes <= 0) return;
  if (bytes < kHugePageBytes) {
    const auto size = static_cast<size_t>(RoundUp(bytes, 64));
    data_ = static_cast<uint8_t*>(std::aligned_alloc(64, size));
    if (data_ == nullptr) throw std::bad_alloc();  // like the containers; the program reports it as lack of memory
    std::memset(data_, 0, size);
  } else {
    mapped_bytes_ = RoundUp(bytes, kHugePageBytes);
    data_ = MapHugePages(mapped_bytes_);
  }
  bytes_ = bytes;
}

void AlignedBuffer::AllocateLasting(int64_t bytes) {
  if (bytes <= 0 || bytes >= kHugePageBytes) return Allocate(bytes);
  Free();
  const int64_t size = RoundUp(bytes, 64);
  const std::lock_guard<std::mutex> lock(g_regions_mutex);
  if (g_open_region != nullptr && g_open_region->used + size > kRegionBytes) {
    ReleaseRegion(g_open_region);
    g_open_region = nullptr;
  }
  if (g_open_region == nullptr) g_open_region = new Region{MapHugePages(kRegionBytes), 0, 1};
  data_ = g_open_region->data + g_open_region->used;
  g_open_region->used += size;
  ++g_open_region->num_buffers;
  region_ = g_open_region;
  bytes_ = bytes;
}

}  // namespace deepinfer::cpu
