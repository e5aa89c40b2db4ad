// SPDX-License-Identifier: Apache-2.0
//
// T18 of engine.md 23: the window rings. 900 tokens are decoded with wrong drafts taken back at every step, and what no step
// may read is poisoned before it: ring slots outside the window, compressor rows outside the open group. The logits equal
// those of one pass over all tokens, which reads no ring at all.
#include <random>

#include "model/golden_support.h"

namespace deepinfer::model {

// A friend of Sequence.
struct ModelAccess {
  // Every byte that tokens from the present length on may not depend on becomes 0xFF: NaN in each of the formats.
  static void PoisonStaleState(Sequence& sequence, const ModelConfig& config) {
    auto* state = sequence.state_.as<uint8_t>();
    const CacheLayout& layout = sequence.layout_;
    const int64_t length = sequence.length();
    for (const device::WindowRing& ring : layout.rings) {
      const int64_t record = device::KeyRecordBytes(ring.format, config.head_dim);
      // The next token sees itself and the window - 1 before it.
      for (int64_t back = ring.window; back <= ring.rows; ++back) {
        const int64_t slot = (length - back + 100 * ring.rows) % ring.rows;
        std::memset(state + ring.offset + slot * record, 0xFF, static_cast<size_t>(record));
      }
    }
    for (size_t i = 0; i < layout.owners.size(); ++i) {
      if (layout.compressor_offset[i] < 0) continue;
      const int64_t row = int64_t{2} * layout.owners[i].head_dim * 4;
      // An odd length leaves the first half of a pair open.
      for (int64_t back = length % 2 == 1 ? 2 : 1; back <= layout.compressor_rows; ++back) {
        const int64_t slot = (length - back + 100 * layout.compressor_rows) % layout.compressor_rows;
        std::memset(state + layout.compressor_offset[i] + slot * row, 0xFF, static_cast<size_t>(row));
      }
    }
  }
};

namespace {

constexpr size_t kPromptLength = 40, kLength = kPromptLength + 900;

class RingTest : public testing::TestWithParam<Numerics> {};
INSTANTIATE_TEST_SUITE_P(Arithmetics, RingTest, testing::Values(Numerics::kPlain, Numerics::kFp32, Numerics::kRelease),
                         [](const auto& test) { return std::string(FileName(test.param)); });

TEST_P(RingTest, NineHundredTokensWithBacktrackingAndPoison) {
  if (!TestsRunOnCpu()) GTEST_SKIP() << "writes into the caches of the CPU";
  const auto model = LoadNano(GetParam(), 1, 1024);
  const size_t v = static_cast<size_t>(model->config().vocab_size);
  std::mt19937 random(18);
  std::vector<int32_t> ids;
  for (size_t i = 0; i < kLength; ++i) ids.push_back(static_cast<int32_t>(3 + random() % 400));
  const auto whole = FullLogits(*model, ids);

  auto sequence = NewSequence(*model);
  ASSERT_EQ(sequence->max_backtracking(), 6);
  SequenceChunk prompt{.sequence = sequence.get(), .ids = std::span(ids).first(kPromptLength)};
  ASSERT_TRUE(model->Forward({&prompt, 1}).ok());
  size_t num_taken_back = 0;
  for (size_t done = kPromptLength; done < kLength;) {
    ModelAccess::PoisonStaleState(*sequence, model->config());
    // Up to 6 rows that are right, then up to 6 that are not: one step holds at most as many as may be taken back, plus one.
    const size_t right = std::min<size_t>(1 + random() % 6, kLength - done), wrong = random() % (8 - right);
    std::vector<int32_t> step(ids.begin() + static_cast<long>(done), ids.begin() + static_cast<long>(done + right));
    for (size_t i = 0; i < wrong && done + step.size() < 1024; ++i) step.push_back(static_cast<int32_t>(random() % v));
    num_taken_back += step.size() - right;
    SequenceChunk chunk{.sequence = sequence.get(), .ids = step, .all_logits = true};
    const auto logits = model->Forward({&chunk, 1});
    ASSERT_TRUE(logits.ok()) << logits.status().ToString();
    ASSERT_EQ(std::memcmp(logits->data(), whole.data() + done * v, right * v * sizeof(float)), 0) << "after " << done << " tokens";
    done += right;
    ASSERT_TRUE(sequence->Truncate(static_cast<int64_t>(done)).ok());
  }
  EXPECT_GT(num_taken_back, 400u);
}

// The poison is seen: a byte too much of it changes the logits.
TEST(RingPoison, ReachesTheLogitsOneSlotFurther) {
  if (!TestsRunOnCpu()) GTEST_SKIP() << "writes into the caches of the CPU";
  const auto model = LoadNano(Numerics::kPlain, 1, 1024);
  std::vector<int32_t> ids;
  for (int32_t i = 0; i < 60; ++i) ids.push_back(3 + i);
  auto sequence = NewSequence(*model);
  SequenceChunk chunk{.sequence = sequence.get(), .ids = std::span(ids).first(59)};
  ASSERT_TRUE(model->Forward({&chunk, 1}).ok());
  // Poisoned for a sequence one token longer, where the oldest key of the window is not needed any more.
  SequenceChunk next{.sequence = sequence.get(), .ids = std::span(ids).last(1)};
  ASSERT_TRUE(model->Forward({&next, 1}).ok());
  ModelAccess::PoisonStaleState(*sequence, model->config());
  ASSERT_TRUE(sequence->Truncate(59).ok());
  const auto logits = model->Forward({&next, 1});
  EXPECT_TRUE(!logits.ok() || std::isnan(logits->front()));
}

}  // namespace
}  // namespace deepinfer::model
