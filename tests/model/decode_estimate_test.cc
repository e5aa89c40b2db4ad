// SPDX-License-Identifier: Apache-2.0
#include "model/decode_estimate.h"

#include <gtest/gtest.h>

#include "model/released_config.h"

namespace deepinfer::model {
namespace {

ModelConfig Released() { return ModelConfig::FromJson(ReleasedConfigJson(), "released").value(); }

// The table of bytes and operations of the specification (performance.md 1).
TEST(DecodeEstimate, MovesWhatTheSpecificationSays) {
  const ModelConfig config = Released();
  const InventorySummary summary = SummarizeInventory(config, false);
  const StepWork one = EstimateStep(config, summary, 1, 8192);
  EXPECT_NEAR(static_cast<double>(one.dense_bytes) * 1e-9, 8.53, 0.02);
  EXPECT_NEAR(static_cast<double>(one.expert_bytes) * 1e-9, 4.512, 0.005);
  EXPECT_NEAR(static_cast<double>(one.context_bytes) * 1e-6, 8.3 + 3.6, 0.2);
  EXPECT_NEAR(static_cast<double>(one.memory_bytes()) * 1e-9, 13.05, 0.02);
  EXPECT_EQ(one.table_bytes, 48 * 264);
  EXPECT_NEAR(one.flop * 1e-9, 35.9, 0.3);
  EXPECT_NEAR(EstimateStep(config, summary, 1, 1 << 20).flop * 1e-9, 57.5, 0.5);
  EXPECT_NEAR(static_cast<double>(EstimateStep(config, summary, 1, 1 << 20).context_bytes) * 1e-6, 8.3 + 183, 10);
  const StepWork many = EstimateStep(config, summary, 8, 8192);
  EXPECT_NEAR(many.experts_per_layer, 45.5, 0.1);
  EXPECT_NEAR(static_cast<double>(many.memory_bytes()) * 1e-9, 42.8, 0.1);
}

TEST(DecodeEstimate, TheSlowestOfMemoryArithmeticAndDiskDecides) {
  StepWork work;
  work.dense_bytes = 60;
  work.expert_bytes = 40;
  work.flop = 100;
  const MachineRates rates{.memory_bytes_per_s = 100, .flop_per_s = 1000, .disk_bytes_per_s = 10};
  DecodeEstimate estimate = EstimateDecode(work, 1, rates, 1, 1);
  EXPECT_DOUBLE_EQ(estimate.step_s, 1);
  EXPECT_EQ(estimate.bound, DecodeEstimate::Bound::kMemory);
  estimate = EstimateDecode(work, 2, {.memory_bytes_per_s = 100, .flop_per_s = 50, .disk_bytes_per_s = 10}, 1, 1);
  EXPECT_DOUBLE_EQ(estimate.tokens_per_s, 1);
  EXPECT_EQ(estimate.bound, DecodeEstimate::Bound::kArithmetic);
  estimate = EstimateDecode(work, 1, rates, 0.5, 1);  // 20 bytes at 10 a second
  EXPECT_DOUBLE_EQ(estimate.step_s, 2);
  EXPECT_EQ(estimate.bound, DecodeEstimate::Bound::kDisk);
  EXPECT_DOUBLE_EQ(EstimateDecode(work, 1, rates, 0.5, 0).step_s, 3);
  EXPECT_DOUBLE_EQ(EstimateDecode(work, 1, rates, 0.5, 0.25).step_s, 2.75);
  EXPECT_EQ(EstimateDecode(work, 1, {.memory_bytes_per_s = 100, .flop_per_s = 1000}, 0.5, 1).tokens_per_s, 0);
  EXPECT_GT(EstimateDecode(work, 1, {.memory_bytes_per_s = 100, .flop_per_s = 1000}, 1, 1).tokens_per_s, 0);
}

}  // namespace
}  // namespace deepinfer::model
