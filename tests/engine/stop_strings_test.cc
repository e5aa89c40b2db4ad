// SPDX-License-Identifier: Apache-2.0
#include "engine/stop_strings.h"

#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace deepinfer::engine {
namespace {

struct Outcome {
  std::string text;
  int stop = -1;
  bool operator==(const Outcome&) const = default;
};

Outcome Feed(const std::vector<std::string>& stops, const std::vector<std::string>& pieces, bool include = false) {
  StopStrings matcher(stops, include);
  Outcome outcome;
  for (const std::string& piece : pieces) {
    outcome.stop = matcher.Push(piece, true, outcome.text);
    if (outcome.stop >= 0) return outcome;
  }
  matcher.Finish(outcome.text);
  return outcome;
}

TEST(StopStrings, CutsBeforeOrAfterTheMatch) {
  EXPECT_EQ(Feed({"END"}, {"abcENDdef"}), (Outcome{"abc", 0}));
  EXPECT_EQ(Feed({"END"}, {"abcENDdef"}, true), (Outcome{"abcEND", 0}));
  EXPECT_EQ(Feed({"END"}, {"abcEN"}), (Outcome{"abcEN", -1}));
}

TEST(StopStrings, TheEarliestEndWinsAndTiesGoByListOrder) {
  EXPECT_EQ(Feed({"bcd", "c"}, {"abcd"}), (Outcome{"ab", 1}));
  EXPECT_EQ(Feed({"bc", "c"}, {"abcd"}), (Outcome{"a", 0}));
  EXPECT_EQ(Feed({"c", "bc"}, {"abcd"}), (Outcome{"ab", 0}));
}

TEST(StopStrings, HoldsBackOnlyWhatCanStillMatch) {
  StopStrings matcher({"\n\nUser:"}, false);
  std::string out;
  EXPECT_EQ(matcher.Push("Paris.\n", true, out), -1);
  EXPECT_EQ(out, "Paris.");
  EXPECT_EQ(matcher.Push("It", true, out), -1);
  EXPECT_EQ(out, "Paris.\nIt");
}

TEST(StopStrings, UnsearchedTextIsNoMatchButMayBeginOne) {
  StopStrings matcher({"aa"}, false);
  std::string out;
  EXPECT_EQ(matcher.Push("xaa", false, out), -1);
  EXPECT_EQ(matcher.Push("a", true, out), 0);
  EXPECT_EQ(out, "xa");
}

TEST(StopStrings, AnyCuttingGivesTheSameResult) {
  std::mt19937 rng(5);
  for (int round = 0; round < 3000; ++round) {
    std::string text;
    for (int i = 0; i < 20; ++i) text += static_cast<char>('a' + rng() % 3);
    std::vector<std::string> stops;
    for (uint32_t i = 0; i < 1 + rng() % 3; ++i) {
      std::string stop;
      for (uint32_t j = 0; j < 1 + rng() % 5; ++j) stop += static_cast<char>('a' + rng() % 3);
      stops.push_back(stop);
    }
    std::vector<std::string> pieces;
    for (size_t i = 0; i < text.size();) {
      const size_t n = std::min<size_t>(1 + rng() % 5, text.size() - i);
      pieces.push_back(text.substr(i, n));
      i += n;
    }
    std::vector<std::string> bytes;
    for (const char c : text) bytes.push_back(std::string(1, c));
    ASSERT_EQ(Feed(stops, pieces), Feed(stops, {text})) << text;
    ASSERT_EQ(Feed(stops, bytes), Feed(stops, {text})) << text;
  }
}

}  // namespace
}  // namespace deepinfer::engine
