// SPDX-License-Identifier: Apache-2.0
//
// A pass of plain reads over memory much larger than the caches: the yardstick of every bandwidth figure. Measurements
// interleave passes with what they measure and report the ratio.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "core/threads.h"

namespace deepinfer {

class ReadSweep {
 public:
  // Takes at most `max_bytes`, and no more than a quarter of the memory that is available. is_ready() is false when that
  // is too little to measure with.
  ReadSweep(ThreadPool& pool, int64_t max_bytes = int64_t{512} << 20);

  bool is_ready() const { return num_tiles_ > 0; }
  int64_t bytes() const;
  // One pass; bytes per second, 0 when not ready.
  double Pass();

 private:
  ThreadPool& pool_;
  int64_t num_tiles_ = 0;
  std::unique_ptr<uint64_t[]> data_;
  std::vector<uint64_t> sums_;
};

}  // namespace deepinfer
