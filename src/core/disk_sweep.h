// SPDX-License-Identifier: Apache-2.0
//
// How fast a disk gives random pieces of files, many at a time and past the page cache: the yardstick of everything that is
// read while a model runs.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "core/status.h"

namespace deepinfer {

struct DiskSweepOptions {
  std::string backend = "auto";           // of AsyncReader
  int64_t piece_bytes = int64_t{4} << 20;  // contiguous
  int64_t num_pieces = 48;
  double max_seconds = 3;                 // no more pieces are begun after it
  uint64_t seed = 1;
};

// Bytes per second. Errors: files that cannot be read, or are smaller than a piece.
Result<double> MeasureRandomReads(std::span<const std::string> paths, const DiskSweepOptions& options);

}  // namespace deepinfer
