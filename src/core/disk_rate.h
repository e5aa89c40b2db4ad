// SPDX-License-Identifier: Apache-2.0
//
// How fast a disk gives 1 MiB pieces past the page cache (O_DIRECT), in order and at random: the yardstick of the streaming
// tier, and what `doctor` predicts with. Bounded in time, not in bytes.
#pragma once

#include <cstdint>
#include <string>

#include "core/status.h"

namespace deepinfer {

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
