// SPDX-License-Identifier: Apache-2.0
#include "sampling/verify.h"

#include <cmath>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

namespace deepinfer::sampling {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

std::vector<float> Logs(const std::vector<double>& probs) {
  std::vector<float> logs;
  for (const double p : probs) logs.push_back(p > 0 ? static_cast<float>(std::log(p)) : -kInfinity);
  return logs;
}

const std::vector<double> kTarget = {0.4, 0.05, 0.25, 0.1, 0.0, 0.15, 0.03, 0.02};
const std::vector<double> kDraft = {0.1, 0.3, 0.25, 0.05, 0.2, 0.05, 0.05, 0.0};

// Draws a draft from the draft distribution, verifies it, and counts what is emitted: 200,000 rounds, 6 degrees of freedom,
// p = 0.001 at 22.5.
TEST(Verify, RejectionEmitsTheTargetDistribution) {
  const std::vector<float> target = Logs(kTarget);
  const std::vector<float> draft = Logs(kDraft);
  std::vector<uint32_t> draft_weights(draft.size());
  WeightsFromLogprobs(draft, draft_weights);
  DrawWorkspace workspace;
  std::vector<int> counts(target.size());
  constexpr int kRounds = 200000;
  int num_accepted = 0;
  for (int32_t position = 0; position < kRounds; ++position) {
    const int32_t d =
        DrawInverseCdf(draft_weights, PhiloxStream(11 + kDraftSeedOffset, position, DrawCase::kTarget), workspace);
    const VerifiedRow row = VerifyByRejection(target, d, draft, 11, position, workspace);
    if (row.is_accepted) {
      EXPECT_EQ(row.id, d);
    }
    num_accepted += row.is_accepted ? 1 : 0;
    ++counts[static_cast<size_t>(row.id)];
  }
  EXPECT_EQ(counts[4], 0);
  double chi_square = 0;
  double overlap = 0;
  for (size_t i = 0; i < kTarget.size(); ++i) {
    overlap += std::min(kTarget[i], kDraft[i]);
    if (kTarget[i] == 0) continue;
    const double expected = kRounds * kTarget[i];
    chi_square += (counts[i] - expected) * (counts[i] - expected) / expected;
  }
  EXPECT_LT(chi_square, 22.5);
  EXPECT_NEAR(static_cast<double>(num_accepted) / kRounds, overlap, 0.005);
}

// Drafts that nobody drew: always the same token, with certainty.
TEST(Verify, RejectionOfCertainDraftsEmitsTheTargetDistribution) {
  const std::vector<float> target = Logs(kTarget);
  DrawWorkspace workspace;
  for (const int32_t d : {0, 1, 4, 7}) {
    std::vector<double> certain(kTarget.size(), 0.0);
    certain[static_cast<size_t>(d)] = 1.0;
    const std::vector<float> draft = Logs(certain);
    std::vector<int> counts(target.size());
    constexpr int kRounds = 200000;
    for (int32_t position = 0; position < kRounds; ++position)
      ++counts[static_cast<size_t>(VerifyByRejection(target, d, draft, 12, position, workspace).id)];
    EXPECT_EQ(counts[4], 0);
    double chi_square = 0;
    for (size_t i = 0; i < kTarget.size(); ++i) {
      const double expected = kRounds * kTarget[i];
      if (expected > 0) chi_square += (counts[i] - expected) * (counts[i] - expected) / expected;
    }
    EXPECT_LT(chi_square, 22.5) << d;
  }
}

TEST(Verify, EqualDistributionsAcceptAlways) {
  const std::vector<float> target = Logs({0.5, 0.3, 0.2});
  DrawWorkspace workspace;
  for (int32_t position = 0; position < 2000; ++position) {
    const VerifiedRow row = VerifyByRejection(target, position % 3, target, 5, position, workspace);
    // u can be exactly 1, which never accepts; no position here draws it.
    EXPECT_TRUE(row.is_accepted);
    EXPECT_NEAR(row.estimated_acceptance, 1.0f, 1e-4);
  }
}

TEST(Verify, MissingDraftIsReplacedByATargetDraw) {
  const std::vector<float> target = Logs({0, 0, 1});
  DrawWorkspace workspace;
  const VerifiedRow row = VerifyByRejection(target, -1, {}, 5, 0, workspace);
  EXPECT_FALSE(row.is_accepted);
  EXPECT_EQ(row.id, 2);
}

TEST(Verify, DraftOutsideTheTargetIsRejected) {
  const std::vector<float> target = Logs({0, 1, 0});
  const std::vector<float> draft = Logs({1, 0, 0});
  DrawWorkspace workspace;
  for (int32_t position = 0; position < 100; ++position) {
    const VerifiedRow row = VerifyByRejection(target, 0, draft, 5, position, workspace);
    EXPECT_FALSE(row.is_accepted);
    EXPECT_EQ(row.id, 1);
    EXPECT_NEAR(row.estimated_acceptance, 0.0f, 1e-6);
  }
}

TEST(Verify, ExactEmitsTheUnspeculatedToken) {
  const std::vector<float> target = Logs(kTarget);
  std::vector<uint32_t> weights(target.size());
  WeightsFromLogprobs(target, weights);
  DrawWorkspace workspace;
  for (int32_t position = 0; position < 500; ++position) {
    const int32_t want = DrawRace(weights, PhiloxStream(3, position, DrawCase::kTarget), workspace);
    for (const int32_t d : {-1, 0, 2, want}) {
      const VerifiedRow row = VerifyExactly(target, d, 3, position, workspace);
      EXPECT_EQ(row.id, want);
      EXPECT_EQ(row.is_accepted, d == want);
    }
  }
}

TEST(Verify, GreedyTakesTheLowestArgmax) {
  const std::vector<float> logits = {1, 4, 4, 0};
  EXPECT_TRUE(VerifyGreedily(logits, 1).is_accepted);
  const VerifiedRow row = VerifyGreedily(logits, 2);
  EXPECT_FALSE(row.is_accepted);
  EXPECT_EQ(row.id, 1);
}

}  // namespace
}  // namespace deepinfer::sampling
