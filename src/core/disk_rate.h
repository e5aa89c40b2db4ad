// SPDX-License-Identifier: Apache-2.0
//
// How fast a disk gives pieces of files, many at a time and past the page cache (O_DIRECT): the yardstick of everything that is
// read while a model runs, and what `doctor` predicts with. Bounded in time.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "core/status.h"

namespace deepinfer {

struct RandomReadOptions {
  std::string backend = "auto";           // of AsyncReader
  int64_t piece_bytes = int64_t{4} << 20;  // contiguous
  int64_t num_pieces = 48;
  double max_seconds = 3;                 // no more pieces are begun after it
  uint64_t seed = 1;
};

// Bytes per second. Errors: files that cannot be read, or are smaller than a piece.
Result<double> MeasureRandomReads(std::span<const std::string> paths, const RandomReadOptions& options);

// 1 MiB pieces, in order and at random.
struct DiskRate {
  double sequential_bytes_per_s = 0;
  double random_bytes_per_s = 0;
  int64_t file_bytes = 0;
  bool is_direct = false;     // false: the file system refuses O_DIRECT, so the page cache may have answered
  bool is_temporary = false;  // measured on a file written for the purpose
  std::string reader;         // of core/async_reader.h
};

// Of a file of at least 16 MiB that is there already.
Result<DiskRate> MeasureDiskRate(const std::string& path, double seconds);

// Of the disk of a folder, on a file that is written there (at most `bytes`, for at most half of `seconds`) and removed.
Result<DiskRate> MeasureDiskRateOfFolder(const std::string& folder, double seconds, int64_t bytes = int64_t{128} << 20);

}  // namespace deepinfer
