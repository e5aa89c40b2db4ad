// SPDX-License-Identifier: Apache-2.0
//
// T12: six sequences in blocks for three of them: the longest output gives way, is computed again, and nobody's tokens or
// logits change.
#include <random>

#include "engine/acceptance/step_loop.h"
#include "engine/real_models.h"

namespace deepinfer::engine {
namespace {

constexpr int kNumSequences = 6;
constexpr int64_t kMaxTokens = 60;

std::vector<std::vector<int32_t>> Prompts() {
  std::mt19937_64 rng(12);
  std::vector<std::vector<int32_t>> prompts;
  for (int64_t i = 0; i < kNumSequences; ++i) {
    std::vector<int32_t>& prompt = prompts.emplace_back();
    for (int64_t k = 0; k < 80 + 7 * i; ++k) prompt.push_back(static_cast<int32_t>(3 + rng() % 400));
  }
  return prompts;
}

class T12 : public ::testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(Steps, T12, ::testing::Values(false, true), [](const auto& test) { return std::string(test.param ? "async" : "sync"); });

TEST_P(T12, SixSequencesInBlocksForThree) {
  const auto model = LoadNano();
  const auto prompts = Prompts();
  LogitsLedger ledger;
  const auto run = [&](int64_t num_blocks, int64_t* num_preempted) {
    SchedulerOptions o = RealModelOptions(kNanoKeep).scheduler;
    o.num_blocks = num_blocks;
    o.prefix_cache.num_state_records = 0;
    auto slots = ModelSlots::Create(*model, o.num_blocks, o.num_state_slots(), 0).value();
    LedgerModel watched(*slots, ledger, o.num_state_slots());
    StepLoop loop(watched, o, GetParam());
    std::vector<const Sequence*> decoding;  // of the last decode plan
    int64_t num_victims = 0;
    loop.on_plan = [&](const StepPlan& plan) {
      // Who was decoding and waits now was preempted. Nobody who goes on may have more output.
      for (const Sequence* victim : decoding) {
        if (victim->status != SequenceStatus::kWaiting) continue;
        ++num_victims;
        for (const Sequence* other : decoding) {
          if (other->status == SequenceStatus::kRunning) {
            EXPECT_GE(victim->output_len(), other->output_len());
          }
        }
      }
      decoding.clear();
      if (plan.kind != StepKind::kDecode) return;
      // Those that end with this step are gone before the next plan.
      for (const StepRow& row : plan.rows)
        if (row.sequence->output_len() + 2 < kMaxTokens) decoding.push_back(row.sequence);
    };
    // They arrive one after the other, so that their outputs differ in length.
    for (int i = 0; i < kNumSequences; ++i) {
      loop.Add(prompts[static_cast<size_t>(i)], kMaxTokens);
      for (int step = 0; step < 5; ++step) loop.StepOnce();
    }
    loop.Run();
    *num_preempted = loop.scheduler().stats().num_preempted;
    EXPECT_GE(*num_preempted, num_victims);
    EXPECT_EQ(num_victims > 0, *num_preempted > 0);
    EXPECT_EQ(loop.scheduler().stats().num_finished, kNumSequences);
    return loop.tokens();
  };
  int64_t num_preempted = 0;
  const auto roomy = run(200, &num_preempted);
  EXPECT_EQ(num_preempted, 0);
  const int64_t num_rows = ledger.num_rows();
  // Each sequence ends with two blocks.
  const auto crowded = run(1 + 3 * 2, &num_preempted);
  EXPECT_GE(num_preempted, 2);
  EXPECT_EQ(crowded, roomy);
  for (const auto& [id, tokens] : crowded) EXPECT_EQ(static_cast<int64_t>(tokens.size()), kMaxTokens) << id;
  EXPECT_EQ(ledger.num_different(), 0);
  EXPECT_EQ(ledger.num_rows(), num_rows);
}

TEST(T12Engine, SameAnswersAsWithoutPressureAndNothingIsLost) {
  const auto model = LoadNano();
  const auto prompts = Prompts();
  std::vector<EngineRequest> requests;
  for (const auto& prompt : prompts) {
    EngineRequest& r = requests.emplace_back();
    r.prompt_ids = prompt;
    r.params.max_tokens = kMaxTokens;
    r.params.ignore_eos = true;
    r.params.seq_seed = requests.size();
    r.params.presence_penalty = 0.5;
  }
  EngineCoreOptions o = RealModelOptions(kNanoKeep);
  o.scheduler.num_blocks = 1 + 3 * 2;
  RealEngine engine(*model, o);
  std::vector<std::shared_ptr<RequestHandle>> handles;
  for (const EngineRequest& request : requests) handles.push_back(engine.core->Submit(request).value());
  std::vector<Answer> answers;
  for (const auto& handle : handles) answers.push_back(Collect(*handle)[0]);
  EXPECT_GE(engine.Drain().stats.num_preempted, 2);
  for (size_t i = 0; i < requests.size(); ++i) ExpectSame(answers[i], RunAlone(*model, requests[i]), "request " + std::to_string(i));
}

}  // namespace
}  // namespace deepinfer::engine
