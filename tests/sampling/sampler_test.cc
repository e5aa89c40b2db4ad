// SPDX-License-Identifier: Apache-2.0
#include "sampling/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <set>
#include <vector>

#include <gtest/gtest.h>

#include "sampling/params.h"
#include "sampling/row_ops.h"

namespace deepinfer::sampling {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

std::vector<float> RandomLogits(int n, uint32_t seed, float scale = 3.0f) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal(0.0f, scale);
  std::vector<float> row(static_cast<size_t>(n));
  for (float& x : row) x = normal(rng);
  return row;
}

SampledToken SampleOk(Sampler& sampler, const std::vector<float>& logits, const SamplingParams& params,
                      const RowContext& context = {}) {
  Result<SampledToken> token = sampler.Sample(logits, Normalized(params), context);
  EXPECT_TRUE(token.ok()) << token.status().ToString();
  return token.ok() ? *token : SampledToken{};
}

std::set<int32_t> Kept(Sampler& sampler, const std::vector<float>& logits, const SamplingParams& params) {
  const auto row = sampler.Process(logits, Normalized(params), {});
  EXPECT_TRUE(row.ok()) << row.status().ToString();
  std::set<int32_t> kept;
  if (!row.ok()) return kept;
  for (size_t i = 0; i < row->size(); ++i) {
    if ((*row)[i] > -kInfinity) kept.insert(static_cast<int32_t>(i));
  }
  return kept;
}

// The definition, by sorting: order by (p desc, id asc), keep token k iff k < top_k and the mass before it is below the
// limit; then min-p.
std::set<int32_t> KeptBySorting(const std::vector<float>& logits, const SamplingParams& params) {
  const RowOps& ops = GetRowOps();
  const int n = static_cast<int>(logits.size());
  Sampler sampler(n);
  SamplingParams plain;
  plain.temperature = params.temperature;
  const auto row = sampler.Process(logits, plain, {});
  std::vector<float> p;
  for (const float l : *row) p.push_back(ops.exp(l));
  std::vector<int32_t> order(p.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int32_t>(i);
  std::stable_sort(order.begin(), order.end(),
                   [&](int32_t a, int32_t b) { return p[static_cast<size_t>(a)] > p[static_cast<size_t>(b)]; });
  const uint64_t limit = params.top_p < 1 ? static_cast<uint64_t>(std::floor(params.top_p * 2147483648.0)) + 1
                                          : std::numeric_limits<uint64_t>::max();
  const float p_max = p[static_cast<size_t>(order[0])];
  uint64_t mass = 0;
  std::set<int32_t> kept;
  for (size_t k = 0; k < order.size(); ++k) {
    const size_t id = static_cast<size_t>(order[k]);
    if (params.top_k > 0 && k >= static_cast<size_t>(params.top_k)) break;
    if (mass >= limit) break;
    mass += static_cast<uint32_t>(static_cast<double>(p[id]) * 2147483648.0);
    if ((*row)[id] == -kInfinity) continue;
    if (params.min_p > 0 && p[id] < static_cast<float>(params.min_p) * p_max) continue;
    kept.insert(order[k]);
  }
  return kept;
}

TEST(Sampler, GreedyTakesTheLowestIdOfEqualLogits) {
  Sampler sampler(6);
  SamplingParams greedy;
  greedy.temperature = 0;
  EXPECT_EQ(SampleOk(sampler, {0, 3, 1, 3, 3, -1}, greedy).id, 1);
  greedy.temperature = 9e-6;
  EXPECT_EQ(SampleOk(sampler, {0, 3, 1, 3, 3.5f, -1}, greedy).id, 4);
}

TEST(Sampler, GreedyLogprobIsThatOfTemperature1em5) {
  Sampler sampler(4);
  SamplingParams greedy;
  greedy.temperature = 0;
  EXPECT_NEAR(SampleOk(sampler, {1, 1, 0, 0}, greedy).logprob, -std::log(2.0f), 1e-6);
  RowContext raw;
  raw.logprobs_mode = LogprobsMode::kRaw;
  EXPECT_NEAR(SampleOk(sampler, {1, 1, 0, 0}, greedy, raw).logprob, 1 - std::log(2 * std::exp(1.0f) + 2), 1e-6);
}

TEST(Sampler, CutoffsAgreeWithSorting) {
  std::mt19937 rng(1);
  for (int round = 0; round < 300; ++round) {
    const int n = std::uniform_int_distribution<int>(1, 400)(rng);
    std::vector<float> logits = RandomLogits(n, static_cast<uint32_t>(round), round % 3 == 0 ? 0.01f : 3.0f);
    if (round % 2 == 0) {
      for (float& x : logits) x = std::round(x * 2) / 2;  // many ties
    }
    if (round % 5 == 0) {
      for (size_t i = 1; i < logits.size(); i += 3) logits[i] = -kInfinity;
    }
    SamplingParams params;
    const double top_ps[] = {1.0, 0.9, 0.5, 1e-9, 0.999999, 0.1};
    const int64_t top_ks[] = {-1, 1, 3, 40, 100000};
    const double min_ps[] = {0.0, 0.0, 0.05, 1.0};
    params.top_p = top_ps[round % 6];
    params.top_k = top_ks[round % 5];
    params.min_p = min_ps[round % 4];
    params.temperature = round % 7 == 0 ? 0.3 : 1.0;
    Sampler sampler(n);
    EXPECT_EQ(Kept(sampler, logits, params), KeptBySorting(logits, params))
        << "round " << round << " n " << n << " top_p " << params.top_p << " top_k " << params.top_k << " min_p "
        << params.min_p;
  }
}

TEST(Sampler, TiesAtTheThresholdAreKeptByAscendingId) {
  Sampler sampler(8);
  SamplingParams params;
  params.top_p = 0.5;
  EXPECT_EQ(Kept(sampler, std::vector<float>(8, 0.0f), params), (std::set<int32_t>{0, 1, 2, 3, 4}));
  params.top_p = 0.49;
  EXPECT_EQ(Kept(sampler, std::vector<float>(8, 0.0f), params), (std::set<int32_t>{0, 1, 2, 3}));
  params.top_p = 1;
  params.top_k = 3;
  EXPECT_EQ(Kept(sampler, std::vector<float>(8, 0.0f), params), (std::set<int32_t>{0, 1, 2}));
}

TEST(Sampler, OneHotAndMaskedRows) {
  Sampler sampler(5);
  SamplingParams params;
  params.top_p = 0.9;
  EXPECT_EQ(Kept(sampler, {-kInfinity, 7, -kInfinity, -kInfinity, -kInfinity}, params), (std::set<int32_t>{1}));
  params.top_p = 1e-9;
  EXPECT_EQ(Kept(sampler, {0, 0.1f, 0.2f, 0.1f, 0}, params), (std::set<int32_t>{2}));
}

TEST(Sampler, RenormalisedLogprobsSumToOne) {
  Sampler sampler(1000);
  SamplingParams params;
  params.top_p = 0.7;
  const auto row = sampler.Process(RandomLogits(1000, 4), params, {});
  ASSERT_TRUE(row.ok());
  double sum = 0;
  for (const float l : *row) sum += std::exp(static_cast<double>(l));
  EXPECT_NEAR(sum, 1.0, 1e-6);
}

TEST(Sampler, MasksBiasAndAllowedIds) {
  Sampler sampler(40);
  SamplingParams greedy;
  greedy.temperature = 0;
  std::vector<float> logits(40, 0.0f);
  logits[35] = 5;
  logits[7] = 4;
  logits[9] = 3;
  RowContext context;
  const std::vector<uint32_t> mask = {0xffffffffu, 0xffffffffu & ~(1u << 3)};  // bans 35
  context.allowed_mask = mask;
  EXPECT_EQ(SampleOk(sampler, logits, greedy, context).id, 7);
  const std::vector<int32_t> banned = {7};
  context.banned_ids = banned;
  EXPECT_EQ(SampleOk(sampler, logits, greedy, context).id, 9);
  greedy.logit_bias[11] = 3.5;
  EXPECT_EQ(SampleOk(sampler, logits, greedy, context).id, 11);
  greedy.logit_bias[12] = 1000;  // clamped to 100
  greedy.logit_bias[13] = 100;
  EXPECT_EQ(SampleOk(sampler, logits, greedy, context).id, 12);
  greedy.logit_bias.clear();
  greedy.allowed_token_ids = std::vector<int32_t>{2, 3};
  EXPECT_EQ(SampleOk(sampler, logits, greedy, context).id, 2);
  const std::vector<uint32_t> grammar = {~(1u << 2), ~0u};
  context.grammar_mask = grammar;
  EXPECT_EQ(SampleOk(sampler, logits, greedy, context).id, 3);
}

TEST(Sampler, Penalties) {
  Sampler sampler(4);
  TokenCounts counts(4);
  counts.AddPrompt(std::vector<int32_t>{0, 1});
  counts.AddOutput(1);
  counts.AddOutput(1);
  RowContext context;
  context.counts = &counts;
  const std::vector<float> logits = {2, 2, -2, 0};
  SamplingParams params;
  params.temperature = 1;
  params.repetition_penalty = 2;
  params.frequency_penalty = 0.5;
  params.presence_penalty = 0.25;
  // 0: 2 / 2 = 1; 1: 2 / 2 - 2 * 0.5 - 0.25 = -0.25; 2, 3 unseen.
  const auto row = sampler.Process(logits, params, context);
  ASSERT_TRUE(row.ok());
  EXPECT_NEAR((*row)[0] - (*row)[3], 1.0f, 1e-6);
  EXPECT_NEAR((*row)[1] - (*row)[3], -0.25f, 1e-6);
  EXPECT_NEAR((*row)[2] - (*row)[3], -2.0f, 1e-6);
  // A draft before this row counts as output: token 2 is seen now.
  const std::vector<int32_t> drafts = {2};
  context.drafts_before = drafts;
  const auto with_draft = sampler.Process(logits, params, context);
  ASSERT_TRUE(with_draft.ok());
  EXPECT_NEAR((*with_draft)[2] - (*with_draft)[3], -2.0f * 2 - 0.5f - 0.25f, 1e-6);
}

TEST(Sampler, ForcedTokenKeepsItsLogprob) {
  Sampler sampler(3);
  SamplingParams params;
  RowContext context;
  context.forced_id = 2;
  const SampledToken token = SampleOk(sampler, {0, 0, 0}, params, context);
  EXPECT_EQ(token.id, 2);
  EXPECT_NEAR(token.logprob, -std::log(3.0f), 1e-6);
}

TEST(Sampler, TopLogprobsAndSumOfSmallerProbabilities) {
  Sampler sampler(5);
  SamplingParams params;
  params.top_logprobs = 3;
  RowContext context;
  context.compute_sum_smaller_probs = true;
  context.forced_id = 1;
  const SampledToken token = SampleOk(sampler, {1, 2, 2, 0, 3}, params, context);
  EXPECT_EQ(token.top_ids, (std::vector<int32_t>{4, 1, 2}));
  EXPECT_EQ(token.top_logprobs[1], token.top_logprobs[2]);
  EXPECT_EQ(token.logprob, token.top_logprobs[1]);
  const double total = std::exp(1) + 2 * std::exp(2) + 1 + std::exp(3);
  EXPECT_NEAR(token.sum_smaller_probs, (std::exp(1) + std::exp(2) + 1) / total, 1e-6);
  params.top_k = 1;
  const SampledToken dropped = SampleOk(sampler, {1, 2, 2, 0, 3}, params, context);
  EXPECT_EQ(dropped.logprob, kLogprobFloor);
}

TEST(Sampler, InvalidLogitsAreAnError) {
  Sampler sampler(3);
  SamplingParams params;
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const std::vector<float>& row : std::vector<std::vector<float>>{
           {nan, nan, nan}, {0, nan, 1}, {0, -nan, 1}, {0, kInfinity, 1}, {-kInfinity, -kInfinity, -kInfinity}}) {
    const auto token = sampler.Sample(row, params, {});
    ASSERT_FALSE(token.ok());
    EXPECT_EQ(token.status().code(), StatusCode::kInternal);
    EXPECT_NE(token.status().message().find("invalid logits"), std::string::npos);
  }
}

TEST(Sampler, SeedAndPositionDecideTheToken) {
  Sampler sampler(500);
  const std::vector<float> logits = RandomLogits(500, 9, 1.0f);
  SamplingParams params;
  for (const DrawMode mode : {DrawMode::kInverseCdf, DrawMode::kRace}) {
    RowContext context;
    context.draw_mode = mode;
    context.seed = 42;
    std::set<int32_t> tokens;
    for (int32_t position = 0; position < 50; ++position) {
      context.position = position;
      const int32_t id = SampleOk(sampler, logits, params, context).id;
      EXPECT_EQ(SampleOk(sampler, logits, params, context).id, id);
      tokens.insert(id);
    }
    EXPECT_GT(tokens.size(), 20u);
  }
}

// 200,000 draws through the whole pipeline; 15 degrees of freedom at most, p = 0.001 at 37.7.
TEST(Sampler, SampledTokensFollowTheDistribution) {
  const int n = 16;
  Sampler sampler(n);
  const std::vector<float> logits = RandomLogits(n, 5, 1.0f);
  SamplingParams params;
  params.top_p = 0.95;
  params.temperature = 0.8;
  for (const DrawMode mode : {DrawMode::kInverseCdf, DrawMode::kRace}) {
    const auto processed = sampler.Process(logits, params, {});
    ASSERT_TRUE(processed.ok());
    const std::vector<float> row(processed->begin(), processed->end());
    std::vector<int> counts(n);
    constexpr int kDraws = 200000;
    RowContext context;
    context.draw_mode = mode;
    context.seed = 7;
    for (context.position = 0; context.position < kDraws; ++context.position) {
      const auto token = sampler.Sample(logits, params, context);
      ASSERT_TRUE(token.ok());
      ++counts[static_cast<size_t>(token->id)];
    }
    double chi_square = 0;
    for (size_t i = 0; i < n; ++i) {
      const double expected = kDraws * std::exp(static_cast<double>(row[i]));
      if (expected == 0) {
        EXPECT_EQ(counts[i], 0);
        continue;
      }
      chi_square += (counts[i] - expected) * (counts[i] - expected) / expected;
    }
    EXPECT_LT(chi_square, 37.7);
  }
}

TEST(Sampler, WideVocabulary) {
  const int n = 129280;
  Sampler sampler(n);
  const std::vector<float> logits = RandomLogits(n, 3, 2.0f);
  SamplingParams params;
  params.top_p = 0.9;
  params.top_k = 5000;
  EXPECT_EQ(Kept(sampler, logits, params), KeptBySorting(logits, params));
}

}  // namespace
}  // namespace deepinfer::sampling
