// SPDX-License-Identifier: Apache-2.0
#include "core/disk_rate.h"

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "temporary_dir.h"

namespace deepinfer {
namespace {

TEST(DiskRate, MeasuresAFolderAndLeavesNothingBehind) {
  const testing::TemporaryDir dir;
  const Result<DiskRate> rate = MeasureDiskRateOfFolder(dir.path(), 0.2, int64_t{16} << 20);
  ASSERT_TRUE(rate.ok()) << rate.status().message();
  EXPECT_GT(rate->sequential_bytes_per_s, 0);
  EXPECT_GT(rate->random_bytes_per_s, 0);
  EXPECT_EQ(rate->file_bytes, int64_t{16} << 20);
  EXPECT_TRUE(rate->is_temporary);
  EXPECT_TRUE(std::filesystem::is_empty(dir.path()));
}

TEST(DiskRate, RandomPiecesOfSeveralFiles) {
  const testing::TemporaryDir dir;
  const std::vector<std::string> paths = {dir.path() + "/large", dir.path() + "/small"};
  std::ofstream(paths[0]) << std::string(1 << 20, 'x');
  std::ofstream(paths[1]) << "few bytes";
  RandomReadOptions options;
  options.piece_bytes = 64 << 10;
  for (const int64_t pieces : {1, 3, 9}) {
    options.num_pieces = pieces;
    const Result<double> rate = MeasureRandomReads(paths, options);
    ASSERT_TRUE(rate.ok()) << rate.status().message();
    EXPECT_GT(*rate, 0);
  }
  EXPECT_FALSE(MeasureRandomReads({paths.data() + 1, 1}, options).ok());
}

TEST(DiskRate, RefusesWhatItCannotMeasure) {
  const testing::TemporaryDir dir;
  const std::string small = dir.path() + "/small";
  std::ofstream(small) << "few bytes";
  EXPECT_FALSE(MeasureDiskRate(small, 0.1).ok());
  EXPECT_FALSE(MeasureDiskRate(dir.path() + "/absent", 0.1).ok());
  EXPECT_FALSE(MeasureDiskRateOfFolder(dir.path() + "/absent", 0.1).ok());
}

}  // namespace
}  // namespace deepinfer
