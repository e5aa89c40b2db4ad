// SPDX-License-Identifier: Apache-2.0
//
// T9: a prompt in chunks of any size, by budget or by checkpoints, ends with the logits of one pass.
#include <random>

#include "engine/acceptance/step_loop.h"
#include "engine/real_models.h"

namespace deepinfer::engine {
namespace {

constexpr int64_t kMaxLen = 1024;

std::vector<int32_t> RandomPrompt(std::mt19937_64& rng, int64_t length) {
  std::vector<int32_t> prompt;
  for (int64_t i = 0; i < length; ++i) prompt.push_back(static_cast<int32_t>(3 + rng() % 400));
  return prompt;
}

// Prompts through the scheduler with the ends of chunks that `checkpoints` gives for a length; number of prefill rows.
template <typename Checkpoints>
int64_t RunPrompts(StepModel& model, const std::vector<std::vector<int32_t>>& prompts, SchedulerOptions options, Checkpoints&& checkpoints) {
  StepLoop loop(model, options, true);
  int64_t num_chunks = 0;
  loop.on_plan = [&](const StepPlan& plan) { num_chunks += plan.kind == StepKind::kPrefill ? static_cast<int64_t>(plan.rows.size()) : 0; };
  for (const auto& prompt : prompts) loop.Add(prompt, 3, checkpoints(static_cast<int64_t>(prompt.size())));
  loop.Run();
  return num_chunks;
}

class T9 : public ::testing::TestWithParam<model::DecoderReplay> {};
INSTANTIATE_TEST_SUITE_P(DecoderReplay, T9, ::testing::Values(model::DecoderReplay::kOff, model::DecoderReplay::kCompact),
                         [](const auto& test) { return std::string(test.param == model::DecoderReplay::kOff ? "off" : "compact"); });

TEST_P(T9, AnyChunksGiveTheLogitsOfOnePass) {
  const auto model = LoadNano({GetParam(), GetParam() == model::DecoderReplay::kOff ? 0 : kNanoKeep, 1});
  std::mt19937_64 rng(9);
  std::vector<std::vector<int32_t>> prompts;
  for (const int64_t length : {1, 15, 128, 129, 333, 700}) prompts.push_back(RandomPrompt(rng, length));
  SchedulerOptions o = RealModelOptions(model->decoder_keep()).scheduler;
  o.max_num_batched_tokens = 2048;  // all prompts in one pass
  o.max_decode_gap_ms = 0;
  LogitsLedger ledger;
  auto slots = ModelSlots::Create(*model, o.num_blocks, o.num_state_slots(), 0).value();
  o.prefix_cache.num_state_records = 0;
  LedgerModel watched(*slots, ledger, o.num_state_slots());
  const auto none = [](int64_t) { return std::vector<int64_t>(); };
  EXPECT_EQ(RunPrompts(watched, prompts, o, none), static_cast<int64_t>(prompts.size()));
  const int64_t num_rows = ledger.num_rows();
  ASSERT_EQ(num_rows, 3 * static_cast<int64_t>(prompts.size()));

  // Checkpoints at every multiple of a size.
  for (const int64_t size : {16, 17, 31, 64, 127, 128, 129, 256, 500, 699}) {
    SCOPED_TRACE(size);
    RunPrompts(watched, prompts, o, [&](int64_t length) {
      std::vector<int64_t> marks;
      for (int64_t at = size; at < length; at += size) marks.push_back(at);
      return marks;
    });
  }
  // Checkpoints anywhere, and with a budget that cuts too.
  for (int round = 0; round < 4; ++round) {
    SCOPED_TRACE(round);
    SchedulerOptions cut = o;
    if (round % 2 == 1) cut.max_num_batched_tokens = static_cast<int64_t>(128 + rng() % 200);
    RunPrompts(watched, prompts, cut, [&](int64_t length) {
      std::vector<int64_t> marks;
      for (int64_t at = static_cast<int64_t>(1 + rng() % 200); at < length; at += static_cast<int64_t>(1 + rng() % 200)) marks.push_back(at);
      return marks;
    });
  }
  // The budget alone: the smallest to the largest.
  int64_t num_chunks = 0;
  for (const int64_t budget : {128, 129, 255, 333, 512, 1000}) {
    SCOPED_TRACE(budget);
    SchedulerOptions cut = o;
    cut.max_num_batched_tokens = budget;
    num_chunks += RunPrompts(watched, prompts, cut, none);
  }
  EXPECT_GT(num_chunks, 6 * static_cast<int64_t>(prompts.size()) + 10);
  EXPECT_EQ(ledger.num_different(), 0);
  EXPECT_EQ(ledger.num_rows(), num_rows);
  EXPECT_EQ(ledger.num_compared(), 20 * num_rows);
}

}  // namespace
}  // namespace deepinfer::engine
