// SPDX-License-Identifier: Apache-2.0
#include "model/memory_estimate.h"

#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/memory_info.h"
#include "model/released_config.h"
#include "model/streaming_forecast.h"

namespace deepinfer::model {
namespace {

ModelConfig Released() {
  return ModelConfig::FromJson(ReleasedConfigJson(), "released").value();
}

TEST(MemoryEstimate, CacheBytesPerTokenOfTheReleasedModel) {
  // Three ratio-2 sources and one of ratio 1: 2.5 records of keys and index keys a token.
  EXPECT_EQ(CacheBytesPerToken(Released(), Numerics::kRelease, true), 890);    // 2.5 * (288 + 68)
  EXPECT_EQ(CacheBytesPerToken(Released(), Numerics::kRelease, false), 1490);  // 2.5 * (528 + 68)
  EXPECT_EQ(CacheBytesPerToken(Released(), Numerics::kPlain, true), 6400);  // 2.5 * 4 * (512 + 128)
}

TEST(MemoryEstimate, WeightsWithoutTheMappedTables) {
  MemoryPlan plan;
  const MemoryNeed text = EstimateMemory(Released(), plan);
  const int64_t embedding = int64_t{129'280} * 5120 * 2;
  EXPECT_EQ(text.mapped_bytes, 202'758'032'400 + embedding);
  EXPECT_EQ(text.weight_bytes, 510'286'023'000 - 202'758'032'400 - 970'536'960 - embedding);
  plan.maps_embedding = false;  // a GPU holds it
  EXPECT_EQ(EstimateMemory(Released(), plan).mapped_bytes, 202'758'032'400);
  EXPECT_EQ(EstimateMemory(Released(), plan).weight_bytes, text.weight_bytes + embedding);
  plan.maps_embedding = true;
  plan.with_draft = false;
  EXPECT_EQ(EstimateMemory(Released(), plan).weight_bytes, text.weight_bytes - 7'932'874'632);
}

TEST(MemoryEstimate, TheMessageNamesBothNumbersAndTheRemedy) {
  const MemoryNeed need = EstimateMemory(Released(), {});
  EXPECT_TRUE(CheckMemory(need, need.total()).ok());
  const Status status = CheckMemory(need, 23'000'000'000);
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(status.message(), ::testing::HasSubstr("305.7 GB"));
  EXPECT_THAT(status.message(), ::testing::HasSubstr("23.0 GB is available"));
  EXPECT_THAT(status.message(), ::testing::HasSubstr("use a machine with more memory"));
}

TEST(Residency, ExpertsThatDoNotFitAreStreamed) {
  const ModelConfig config = Released();
  const InventorySummary summary = SummarizeInventory(config, false);
  MemoryPlan plan;
  plan.with_draft = false;
  const MemoryNeed need = EstimateMemory(config, summary, plan);
  const int64_t gib = int64_t{1} << 30;

  const auto all = PlanResidency(config, summary, plan, need, 0, 400 * gib);
  ASSERT_TRUE(all.ok());
  EXPECT_FALSE(all->streams_experts);
  EXPECT_EQ(all->fixed_bytes + all->expert_bytes, need.total());

  for (const auto& [budget, available] : {std::pair{64 * gib, 400 * gib}, {int64_t{0}, 64 * gib}, {200 * gib, 64 * gib}}) {
    const auto some = PlanResidency(config, summary, plan, need, budget, available);
    ASSERT_TRUE(some.ok()) << some.status().ToString();
    EXPECT_TRUE(some->streams_experts);
    EXPECT_EQ(some->fixed_bytes + some->expert_budget + some->cache_share, 64 * gib);
    EXPECT_LT(some->fixed_bytes, 13 * gib);
    const StepWork work = EstimateStep(config, summary, 1, 8192);
    const MachineRates rates = {.memory_bytes_per_s = 2e11, .flop_per_s = 1e15, .disk_bytes_per_s = 7e9};
    const StreamingForecast f = ForecastStreaming(config, summary, *some, true, work, rates);
    EXPECT_EQ(f.num_experts, 40 * 384);
    EXPECT_EQ(f.expert_bytes, 18'800'640);
    EXPECT_NEAR(f.hit_rate, static_cast<double>(some->expert_budget) / static_cast<double>(some->expert_bytes), 0.001);
    EXPECT_EQ(work.expert_bytes, 240 * int64_t{18'800'640});
    EXPECT_NEAR(f.decode.disk_s * 7e9, 240.0 * 18'800'640 * (1 - f.hit_rate) + static_cast<double>(work.table_bytes), 1e6);
    EXPECT_NEAR(1 / f.decode.tokens_per_s, f.decode.disk_s + static_cast<double>(work.memory_bytes()) / 2e11, 1e-6);
  }

  const Status low = PlanResidency(config, summary, plan, need, 4 * gib, 400 * gib).status();
  EXPECT_EQ(low.code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(low.message(), ::testing::HasSubstr("the memory budget is 4.3 GB but at least "));
  EXPECT_THAT(low.message(), ::testing::HasSubstr("raise --memory-budget or lower --max-model-len"));
  const Status small = PlanResidency(config, summary, plan, need, 0, 4 * gib).status();
  EXPECT_THAT(small.message(), ::testing::HasSubstr("even with experts read from disk"));
}

TEST(MemoryInfo, KnowsThisMachine) {
  const MemoryInfo info = ReadMemoryInfo();
  EXPECT_GT(info.total_bytes, 0);
  EXPECT_GT(info.available_bytes, 0);
  EXPECT_LE(info.available_bytes, info.total_bytes);
}

}  // namespace
}  // namespace deepinfer::model
