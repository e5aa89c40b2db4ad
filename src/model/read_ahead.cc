// SPDX-License-Identifier: Apache-2.0
#include "model/read_ahead.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <system_error>
#include <utility>

namespace deepinfer::model {
namespace {

constexpr int64_t kWindowBytes = int64_t{768} << 20;
constexpr int64_t kChunkBytes = int64_t{8} << 20;

}  // namespace

ReadAhead::ReadAhead(std::vector<Extent> extents) : extents_(std::move(extents)) {
  // Without another thread loading is slower, nothing else.
  try {
    thread_ = std::thread([this] { Run(); });
  } catch (const std::system_error&) {
  }
}

ReadAhead::~ReadAhead() {
  {
    const std::lock_guard lock(mutex_);
    is_stopping_ = true;
  }
  changed_.notify_one();
  if (thread_.joinable()) thread_.join();
}

void ReadAhead::Advance(int64_t used_bytes) {
  {
    const std::lock_guard lock(mutex_);
    used_bytes_ = used_bytes;
  }
  changed_.notify_one();
}

void ReadAhead::Run() {
  const int64_t page = ::sysconf(_SC_PAGESIZE);
  int64_t asked_bytes = 0;
  for (const Extent& extent : extents_) {
    for (int64_t at = 0; at < extent.bytes; at += kChunkBytes) {
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [&] { return is_stopping_ || asked_bytes < used_bytes_ + kWindowBytes; });
        if (is_stopping_) return;
      }
      const int64_t bytes = std::min(kChunkBytes, extent.bytes - at);
      const auto begin = reinterpret_cast<uintptr_t>(extent.begin + at);
      const uintptr_t first = begin / static_cast<uintptr_t>(page) * static_cast<uintptr_t>(page);
      ::madvise(reinterpret_cast<void*>(first), static_cast<size_t>(begin - first) + static_cast<size_t>(bytes), MADV_WILLNEED);
      asked_bytes += bytes;
    }
  }
}

}  // namespace deepinfer::model
