// SPDX-License-Identifier: Apache-2.0
#include "core/progress.h"

#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace deepinfer {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(Progress, WritesAPlainLineEveryFiveSeconds) {
  FakeClock clock;
  std::vector<std::string> lines;
  Progress progress("loading", {.quiet = false, .unit = ProgressUnit::kBytes, .clock = &clock,
                                .write_line = [&](std::string_view line) { lines.emplace_back(line); }});
  progress.Update(0, 100'000'000);
  clock.AdvanceMs(4999);
  progress.Update(10'000'000, 100'000'000);
  EXPECT_THAT(lines, IsEmpty());
  clock.AdvanceMs(1);
  progress.Update(20'000'000, 100'000'000);
  clock.AdvanceMs(3000);
  progress.Update(30'000'000, 100'000'000);
  clock.AdvanceMs(2000);
  progress.Update(40'000'000, 100'000'000);
  EXPECT_THAT(lines, ElementsAre("loading: 20 % (20.0 MB of 100.0 MB, 4.0 MB/s, 20 s left)",
                                 "loading: 40 % (40.0 MB of 100.0 MB, 4.0 MB/s, 15 s left)"));
}

TEST(Progress, QuietWritesNothing) {
  FakeClock clock;
  int num_lines = 0;
  Progress progress("loading", {.quiet = true, .unit = ProgressUnit::kItems, .clock = &clock,
                                .write_line = [&](std::string_view) { ++num_lines; }});
  clock.AdvanceMs(60'000);
  progress.Update(1, 2);
  EXPECT_EQ(num_lines, 0);
}

TEST(Progress, BarFitsEveryWidth) {
  for (const int columns : {1, 10, 40, 80, 200}) {
    for (const int64_t done : {0, 1, 50, 100, 250}) {
      const std::string bar = Progress::FormatBar("loading", done, 100, 2.0, ProgressUnit::kItems, columns);
      EXPECT_LT(bar.size(), static_cast<size_t>(columns)) << bar;
    }
  }
  EXPECT_EQ(Progress::FormatBar("load", 50, 100, 0, ProgressUnit::kItems, 50), "load  50 % [=============>            ] 50 of 100");
}

TEST(Progress, UnknownTotal) {
  EXPECT_EQ(Progress::FormatLine("reading", 5, 0, 0.1, ProgressUnit::kItems), "reading: 5");
}

TEST(FormatBytes, UsesDecimalUnits) {
  EXPECT_EQ(FormatBytes(0), "0 B");
  EXPECT_EQ(FormatBytes(999), "999 B");
  EXPECT_EQ(FormatBytes(1000), "1.0 kB");
  EXPECT_EQ(FormatBytes(999'960), "1.0 MB");
  EXPECT_EQ(FormatBytes(159'000'000'000), "159.0 GB");
}

TEST(FormatDuration, PicksTwoUnits) {
  EXPECT_EQ(FormatDuration(0.2), "0 s");
  EXPECT_EQ(FormatDuration(125), "2 min 5 s");
  EXPECT_EQ(FormatDuration(3780), "1 h 3 min");
  EXPECT_EQ(FormatDuration(-1), "unknown time");
}

}  // namespace
}  // namespace deepinfer
