// SPDX-License-Identifier: Apache-2.0
#include "engine/verify_schedule.h"

#include <cmath>
#include <random>

#include <gtest/gtest.h>

#include "engine/batch_buckets.h"

namespace deepinfer::engine {
namespace {

DecodeCostModel Costs(std::vector<std::pair<int64_t, double>> points, int64_t max_size = 64) {
  return DecodeCostModel(CostCurve(std::move(points)), CostCurve({{1, 1.0}}), BatchBuckets(max_size, 1));
}

TEST(CostCurve, LinesBetweenPointsAndTheLastSlopeBehind) {
  const CostCurve curve({{1, 2.0}, {4, 5.0}, {8, 7.0}});
  EXPECT_DOUBLE_EQ(curve.Ms(1), 2.0);
  EXPECT_DOUBLE_EQ(curve.Ms(2), 3.0);
  EXPECT_DOUBLE_EQ(curve.Ms(6), 6.0);
  EXPECT_DOUBLE_EQ(curve.Ms(16), 11.0);
  EXPECT_DOUBLE_EQ(CostCurve({{1, 5.0}, {4, 3.0}}).Ms(100), 3.0) << "never below the last point";
  EXPECT_TRUE(CostCurve({{4, 1.0}, {1, 1.0}}).is_empty());
  EXPECT_TRUE(CostCurve({{1, -1.0}}).is_empty());
  EXPECT_TRUE(CostCurve({{1, std::nan("")}}).is_empty());
  EXPECT_TRUE(CostCurve({{0, 1.0}}).is_empty());
}

// Every choice of lengths, by its own confidences.
double BestByHand(const std::vector<std::vector<float>>& rates, const DecodeCostModel& costs) {
  double best = 0;
  std::vector<size_t> taken(rates.size(), 0);
  for (;;) {
    double expected = 0;
    int64_t rows = 0;
    for (size_t i = 0; i < rates.size(); ++i) {
      expected += 1;
      rows += 1 + static_cast<int64_t>(taken[i]);
      for (size_t j = 0; j < taken[i]; ++j) expected += static_cast<double>(rates[i][j]);
    }
    best = std::max(best, expected / costs.ForwardMs(costs.Bucket(rows)));
    size_t i = 0;
    while (i < taken.size() && taken[i] == rates[i].size()) taken[i++] = 0;
    if (i == taken.size()) return best;
    ++taken[i];
  }
}

TEST(VerifyPlanner, AsGoodAsTheBestOfAllLengths) {
  std::mt19937_64 rng(3);
  std::uniform_real_distribution<double> uniform(0, 1);
  VerifyPlanner planner;
  for (int round = 0; round < 2000; ++round) {
    std::vector<std::vector<float>> rates(1 + rng() % 4);
    for (auto& of_sequence : rates) {
      float rate = 1;
      for (uint64_t j = rng() % 4; j > 0; --j) of_sequence.push_back(rate *= static_cast<float>(uniform(rng)));
    }
    std::vector<std::pair<int64_t, double>> points;
    double ms = 1;
    for (int64_t size = 1; size <= 16; ++size) points.emplace_back(size, ms += uniform(rng) * uniform(rng));
    const DecodeCostModel costs = Costs(points);
    std::vector<VerifyCandidate> candidates;
    for (const auto& of_sequence : rates) candidates.push_back({of_sequence, of_sequence});
    const VerifyChoice choice = planner.ChooseNumRows(candidates, costs);
    EXPECT_NEAR(choice.tokens_per_ms, BestByHand(rates, costs), 1e-6);

    std::vector<int32_t> lengths(rates.size());
    planner.DistributeRows(candidates, choice.num_rows, lengths);
    int64_t total = 0;
    double expected = 0;
    for (size_t i = 0; i < rates.size(); ++i) {
      ASSERT_GE(lengths[i], 1);
      ASSERT_LE(static_cast<size_t>(lengths[i]), rates[i].size() + 1);
      total += lengths[i];
      expected += 1;
      for (int32_t j = 0; j + 1 < lengths[i]; ++j) expected += static_cast<double>(rates[i][static_cast<size_t>(j)]);
    }
    EXPECT_EQ(total, choice.num_rows);
    EXPECT_NEAR(expected, choice.expected_tokens, 1e-5);
  }
}

TEST(VerifyPlanner, TiesGoToTheFirstSequenceAndTheFewestRows) {
  VerifyPlanner planner;
  const std::vector<float> half = {0.5f, 0.5f};
  const std::vector<VerifyCandidate> candidates = {{half, half}, {half, half}};
  std::vector<int32_t> lengths(2);
  planner.DistributeRows(candidates, 3, lengths);
  EXPECT_EQ(lengths, (std::vector<int32_t>{2, 1}));
  planner.DistributeRows(candidates, 5, lengths);
  EXPECT_EQ(lengths, (std::vector<int32_t>{3, 2}));
  // Twice the tokens for twice the time: the smaller step is the first best one.
  const std::vector<float> sure = {1.0f};
  EXPECT_EQ(planner.ChooseNumRows(std::vector<VerifyCandidate>{{sure, sure}}, Costs({{1, 1.0}, {2, 2.0}})).num_rows, 1);
  EXPECT_EQ(planner.ChooseNumRows(std::vector<VerifyCandidate>{{sure, sure}}, Costs({{1, 1.0}, {2, 1.9}})).num_rows, 2);
}

TEST(VerifyPlanner, StepsThatNoBucketHoldsAreNotChosen) {
  VerifyPlanner planner;
  const std::vector<float> sure = {1.0f, 1.0f, 1.0f};
  const DecodeCostModel costs = Costs({{1, 1.0}}, 2);
  EXPECT_EQ(planner.ChooseNumRows(std::vector<VerifyCandidate>{{sure, sure}}, costs).num_rows, 2);
}

TEST(DecodeCostModel, LearnsFromSteps) {
  DecodeCostModel costs(CostCurve({{1, 1.0}, {64, 1.0}}), CostCurve({{1, 0.5}}), BatchBuckets(64, 1));
  EXPECT_DOUBLE_EQ(costs.ForwardMs(8), 1.0);
  EXPECT_DOUBLE_EQ(costs.SamplerMs(2), 0.0);
  EXPECT_DOUBLE_EQ(costs.DraftMs(2), 0.5);
  for (int i = 0; i < 30; ++i) costs.Add(8, 2, 1.0 + 8 * 0.25, 0.1, 1.0);
  EXPECT_DOUBLE_EQ(costs.ForwardMs(8), 3.0);
  EXPECT_DOUBLE_EQ(costs.ForwardMs(16), 5.0);
  EXPECT_DOUBLE_EQ(costs.SamplerMs(2), 0.1);
  EXPECT_DOUBLE_EQ(costs.SamplerMs(5), 0.1) << "other sizes: the median over all";
  EXPECT_DOUBLE_EQ(costs.DraftMs(2), 1.0);
  // One size counts once, however often it ran; a few samples of a size say nothing.
  for (int i = 0; i < 9; ++i) costs.Add(64, 2, 100.0, 0.1, 1.0);
  EXPECT_DOUBLE_EQ(costs.ForwardMs(16), 5.0);
  // Steps faster than the curve lower it everywhere.
  DecodeCostModel fast(CostCurve({{1, 1.0}, {64, 1.0}}), CostCurve(), BatchBuckets(64, 1));
  for (int i = 0; i < 30; ++i) fast.Add(8, 2, 0.5, 0.1, 0);
  EXPECT_DOUBLE_EQ(fast.ForwardMs(8), 0.5);
  EXPECT_DOUBLE_EQ(fast.ForwardMs(16), 0.5);
  EXPECT_FALSE(DecodeCostModel().has_curve());
}

TEST(DraftPause, PausesAfterEightWorseStepsAndProbesMoreAndMoreRarely) {
  DraftPause pause;
  for (int i = 0; i < 100; ++i) EXPECT_TRUE(pause.Update(2, 1));
  for (int i = 0; i < 7; ++i) EXPECT_TRUE(pause.Update(1, 2));
  EXPECT_TRUE(pause.Update(2, 1)) << "in a row";
  for (int i = 0; i < 7; ++i) EXPECT_TRUE(pause.Update(1, 2));
  EXPECT_FALSE(pause.Update(1, 2));
  EXPECT_TRUE(pause.is_paused());
  for (const int steps : {64, 128, 256, 512, 512}) {
    for (int i = 0; i < steps - 1; ++i) EXPECT_FALSE(pause.Update(1, 2)) << i;
    EXPECT_TRUE(pause.Update(1, 2)) << "a probe";
  }
  EXPECT_FALSE(pause.Update(1, 2));
  EXPECT_TRUE(pause.Update(2, 2)) << "as good is good enough";
  EXPECT_FALSE(pause.is_paused());
}

TEST(MeanRates, FollowWhatStepsShow) {
  MeanRates mean(3);
  EXPECT_EQ(std::vector<float>(mean.rates().begin(), mean.rates().end()), (std::vector<float>{1, 1, 1})) << "worth a try";
  mean.Add(std::vector<double>{0.5, 0.25, 0.125}, false);
  EXPECT_FLOAT_EQ(mean.rates()[0], 0.5f);
  mean.Add(std::vector<double>{1.0, 0.25, 0.125}, false);
  EXPECT_FLOAT_EQ(mean.rates()[0], 0.55f);
  mean.Add(std::vector<double>{0.95, 0.25}, true);
  EXPECT_FLOAT_EQ(mean.rates()[0], 0.75f);
  EXPECT_FLOAT_EQ(mean.rates()[2], 0.125f) << "fewer drafts than it could have been";
}

}  // namespace
}  // namespace deepinfer::engine
