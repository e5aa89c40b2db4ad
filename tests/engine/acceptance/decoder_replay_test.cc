// SPDX-License-Identifier: Apache-2.0
//
// T17: decoder replay `mask` and `compact` with the smallest keep, window + 6, give the same logits, also where sequences
// are preempted and computed again.
#include <random>

#include "engine/acceptance/step_loop.h"
#include "engine/real_models.h"

namespace deepinfer::engine {
namespace {

constexpr int64_t kKeep = 16 + 6;

TEST(T17, MaskEqualsCompactAlsoWhenComputedAgain) {
  std::mt19937_64 rng(17);
  std::vector<std::vector<int32_t>> prompts;
  for (const int64_t length : {10, 22, 23, 100, 127, 180, 240, 320}) {
    std::vector<int32_t>& prompt = prompts.emplace_back();
    for (int64_t i = 0; i < length; ++i) prompt.push_back(static_cast<int32_t>(3 + rng() % 400));
  }
  LogitsLedger ledger;
  std::map<uint64_t, std::vector<int32_t>> first;
  int64_t num_rows = 0, num_runs = 0;
  for (const model::DecoderReplay replay : {model::DecoderReplay::kMask, model::DecoderReplay::kCompact}) {
    const auto model = LoadNano({replay, kKeep, 1});
    ASSERT_EQ(model->decoder_keep(), kKeep);
    for (const int64_t num_blocks : {200, 9}) {
      SCOPED_TRACE(num_blocks);
      SchedulerOptions o = RealModelOptions(kKeep).scheduler;
      o.num_blocks = num_blocks;
      o.prefix_cache.num_state_records = 0;
      auto slots = ModelSlots::Create(*model, o.num_blocks, o.num_state_slots(), 0).value();
      LedgerModel watched(*slots, ledger, o.num_state_slots());
      StepLoop loop(watched, o, true);
      for (const auto& prompt : prompts) loop.Add(prompt, 40);
      loop.Run();
      EXPECT_EQ(loop.scheduler().stats().num_preempted > 0, num_blocks == 9);
      if (num_runs++ == 0) {
        first = loop.tokens();
        num_rows = ledger.num_rows();
      }
      EXPECT_EQ(loop.tokens(), first);
    }
  }
  // The last prompt row and every row decoded after it.
  EXPECT_EQ(num_rows, 40 * static_cast<int64_t>(prompts.size()));
  EXPECT_EQ(ledger.num_rows(), num_rows);
  EXPECT_GE(ledger.num_compared(), 3 * num_rows);
  EXPECT_EQ(ledger.num_different(), 0);
}

}  // namespace
}  // namespace deepinfer::engine
