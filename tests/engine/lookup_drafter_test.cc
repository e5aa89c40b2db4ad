// SPDX-License-Identifier: Apache-2.0
#include "engine/lookup_drafter.h"

#include <algorithm>
#include <optional>
#include <random>
#include <vector>

#include <gtest/gtest.h>

namespace deepinfer::engine {
namespace {

using Ids = std::vector<int32_t>;

Ids Propose(const LookupDrafter& drafter, int32_t slot, int32_t newest, size_t count = 5) {
  Ids drafts(count);
  drafts.resize(drafter.Propose(slot, newest, drafts));
  return drafts;
}

TEST(LookupDrafter, WhatFollowedTheNewestOccurrence) {
  LookupDrafter drafter(2);
  drafter.Bind(1, Ids{1, 2, 3, 4, 5, 1, 2, 3, 6, 7, 8, 9, 1, 2});
  EXPECT_EQ(Propose(drafter, 1, 3), (Ids{6, 7, 8, 9, 1}));
  EXPECT_EQ(Propose(drafter, 1, 3, 2), (Ids{6, 7}));
  EXPECT_EQ(Propose(drafter, 1, 4), Ids{}) << "1 2 4 was never said";
  EXPECT_EQ(Propose(drafter, 0, 3), Ids{}) << "another slot";
}

TEST(LookupDrafter, ALoopGoesOnBehindTheEnd) {
  LookupDrafter drafter(1);
  drafter.Bind(0, Ids{5, 6, 7, 5, 6});
  EXPECT_EQ(Propose(drafter, 0, 7), (Ids{5, 6, 7, 5, 6}));
  drafter.Bind(0, Ids{4, 4, 4, 4});
  EXPECT_EQ(Propose(drafter, 0, 4), (Ids{4, 4, 4, 4, 4}));
}

TEST(LookupDrafter, WhatWasTakenBackIsNotFound) {
  LookupDrafter drafter(3);
  drafter.Bind(0, Ids{1, 2, 3});
  drafter.Append(0, Ids{8, 9, 10, 11});
  drafter.Truncate(0, 4);  // 1 2 3 8
  drafter.Append(0, Ids{20, 8, 9});
  EXPECT_EQ(Propose(drafter, 0, 10), Ids{}) << "8 9 10 was taken back";
  drafter.Copy(0, 2, 4);
  drafter.Append(2, Ids{1, 2});
  EXPECT_EQ(Propose(drafter, 2, 3, 2), (Ids{8, 1}));
}

TEST(LookupDrafter, AcceptanceFollowsWhatHappens) {
  LookupDrafter drafter(1);
  drafter.Bind(0, Ids{1, 2, 3});
  const float expected = drafter.acceptance(0);
  for (int i = 0; i < 20; ++i) drafter.Report(0, 5, 5);
  EXPECT_GT(drafter.acceptance(0), 0.99f);
  for (int i = 0; i < 20; ++i) drafter.Report(0, 5, 0);
  EXPECT_LT(drafter.acceptance(0), 0.01f);
  drafter.Report(0, 0, 0);
  for (int i = 0; i < 1000; ++i) drafter.Forget(0);
  EXPECT_NEAR(drafter.acceptance(0), expected, 1e-3f);
}

// Against a search through everything, while tokens come and go.
TEST(LookupDrafter, AgreesWithASearch) {
  std::mt19937_64 rng(3);
  LookupDrafter drafter(1);
  Ids text;
  drafter.Bind(0, text);
  int num_found = 0, num_missed = 0;
  for (int step = 0; step < 4000; ++step) {
    if (text.size() > 8 && rng() % 4 == 0) {
      text.resize(text.size() - rng() % 6);
      drafter.Truncate(0, static_cast<int64_t>(text.size()));
    }
    Ids more(1 + rng() % 6);
    for (int32_t& id : more) id = static_cast<int32_t>(rng() % 9);
    text.insert(text.end(), more.begin(), more.end());
    drafter.Append(0, more);
    const int32_t newest = static_cast<int32_t>(rng() % 9);
    Ids whole = text;
    whole.push_back(newest);
    std::optional<size_t> at;
    for (size_t i = 2; i + 1 < whole.size(); ++i)
      if (std::equal(whole.end() - 3, whole.end(), whole.begin() + static_cast<std::ptrdiff_t>(i) - 2)) at = i;
    const Ids drafts = Propose(drafter, 0, newest);
    if (drafts.empty()) {
      num_missed += at ? 1 : 0;  // its place in the table was taken, or taken back
      continue;
    }
    ++num_found;
    ASSERT_TRUE(at) << "step " << step;
    // Any occurrence is right; what is proposed has to follow one.
    bool follows = false;
    for (size_t i = 2; i + 1 < whole.size() && !follows; ++i) {
      if (!std::equal(whole.end() - 3, whole.end(), whole.begin() + static_cast<std::ptrdiff_t>(i) - 2)) continue;
      Ids next = whole;
      for (size_t k = 0; k < drafts.size(); ++k) next.push_back(next[i + 1 + k]);
      follows = std::equal(drafts.begin(), drafts.end(), next.end() - static_cast<std::ptrdiff_t>(drafts.size()));
    }
    EXPECT_TRUE(follows) << "step " << step;
  }
  EXPECT_GT(num_found, 1000);
  EXPECT_LT(num_missed, num_found / 4);
}

}  // namespace
}  // namespace deepinfer::engine
