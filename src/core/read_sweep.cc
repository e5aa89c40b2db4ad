// SPDX-License-Identifier: Apache-2.0
#include "core/read_sweep.h"

#include <algorithm>
#include <new>

#include "core/clock.h"
#include "core/cpu_features.h"
#include "core/memory_info.h"

namespace deepinfer {

namespace {

constexpr int64_t kTileWords = int64_t{1} << 17;  // 1 MiB

// Eight independent sums keep enough loads in flight.
[[gnu::always_inline]] inline uint64_t SumWords(const uint64_t* data) {
  uint64_t sums[8] = {};
  for (int64_t i = 0; i < kTileWords; i += 8) {
    for (int64_t j = 0; j < 8; ++j) sums[j] += data[i + j];
  }
  uint64_t total = 0;
  for (const uint64_t sum : sums) total += sum;
  return total;
}

#if defined(__x86_64__)
// Not by target_clones: what the loader calls to choose a clone is instrumented by ThreadSanitizer, before that is ready.
__attribute__((target("avx2"))) uint64_t SumAvx2(const uint64_t* data) { return SumWords(data); }
#endif

uint64_t Sum(const uint64_t* data) {
#if defined(__x86_64__)
  static const bool has_avx2 = CpuSupports(CpuIsa::kAvx2);
  if (has_avx2) return SumAvx2(data);
#endif
  return SumWords(data);
}

}  // namespace

ReadSweep::ReadSweep(ThreadPool& pool, int64_t max_bytes) : pool_(pool) {
  const int64_t bytes = std::min(max_bytes, ReadMemoryInfo().available_bytes / 4);
  const int64_t tiles = bytes / (kTileWords * 8);
  if (tiles < 16) return;
  data_.reset(new (std::nothrow) uint64_t[static_cast<size_t>(tiles * kTileWords)]);
  if (!data_) return;
  num_tiles_ = tiles;
  sums_.resize(static_cast<size_t>(tiles));
  pool_.ParallelFor(tiles, [&](int64_t tile, int) {
    std::fill_n(data_.get() + tile * kTileWords, kTileWords, static_cast<uint64_t>(tile));
  });
}

int64_t ReadSweep::bytes() const { return num_tiles_ * kTileWords * 8; }

double ReadSweep::Pass() {
  if (!is_ready()) return 0;
  const double start = Clock::Steady().NowSeconds();
  pool_.ParallelFor(num_tiles_, [&](int64_t tile, int) {
    sums_[static_cast<size_t>(tile)] = Sum(data_.get() + tile * kTileWords);
  });
  const double seconds = Clock::Steady().NowSeconds() - start;
  // The sums are observable, so the reads cannot be optimised away.
  volatile uint64_t sink = 0;
  for (const uint64_t sum : sums_) sink = sink + sum;
  return static_cast<double>(bytes()) / seconds;
}

}  // namespace deepinfer
