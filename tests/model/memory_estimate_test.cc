// SPDX-License-Identifier: Apache-2.0
#include "model/memory_estimate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/memory_info.h"
#include "model/released_config.h"

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
  EXPECT_EQ(text.mapped_bytes, 202'758'032'400);
  EXPECT_EQ(text.weight_bytes, 510'286'023'000 - 202'758'032'400 - 970'536'960);
  plan.with_draft = false;
  EXPECT_EQ(EstimateMemory(Released(), plan).weight_bytes, text.weight_bytes - 7'932'874'632);
}

TEST(MemoryEstimate, TheMessageNamesBothNumbersAndTheRemedy) {
  const MemoryNeed need = EstimateMemory(Released(), {});
  EXPECT_TRUE(CheckMemory(need, need.total()).ok());
  const Status status = CheckMemory(need, 23'000'000'000);
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(status.message(), ::testing::HasSubstr("307."));
  EXPECT_THAT(status.message(), ::testing::HasSubstr("23.0 GB is available"));
  EXPECT_THAT(status.message(), ::testing::HasSubstr("use a machine with more memory"));
}

TEST(MemoryInfo, KnowsThisMachine) {
  const MemoryInfo info = ReadMemoryInfo();
  EXPECT_GT(info.total_bytes, 0);
  EXPECT_GT(info.available_bytes, 0);
  EXPECT_LE(info.available_bytes, info.total_bytes);
}

}  // namespace
}  // namespace deepinfer::model
