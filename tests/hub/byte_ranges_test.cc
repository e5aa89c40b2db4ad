// SPDX-License-Identifier: Apache-2.0
#include "hub/byte_ranges.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace deepinfer::hub {
namespace {

// Against a plain list of bytes.
TEST(ByteRanges, RandomAdditions) {
  std::mt19937 random(5);
  for (int round = 0; round < 300; ++round) {
    const int64_t size = 1 + random() % 60;
    std::vector<bool> bytes(static_cast<size_t>(size));
    ByteRanges ranges;
    for (int i = 0; i < 12; ++i) {
      const int64_t begin = random() % static_cast<unsigned>(size), end = begin + random() % static_cast<unsigned>(size - begin + 1);
      ranges.Add(begin, end);
      std::fill(bytes.begin() + begin, bytes.begin() + end, true);
      ASSERT_EQ(ranges.num_bytes(), std::count(bytes.begin(), bytes.end(), true));
      for (size_t r = 1; r < ranges.ranges().size(); ++r) ASSERT_LT(ranges.ranges()[r - 1].end, ranges.ranges()[r].begin);
    }
    std::vector<bool> seen = bytes;
    for (const ByteRange& range : ranges.Missing(size, 7)) {
      ASSERT_LE(range.end - range.begin, 7);
      for (int64_t i = range.begin; i < range.end; ++i) {
        ASSERT_FALSE(seen[static_cast<size_t>(i)]);
        seen[static_cast<size_t>(i)] = true;
      }
    }
    ASSERT_EQ(std::count(seen.begin(), seen.end(), false), 0);
  }
}

}  // namespace
}  // namespace deepinfer::hub
