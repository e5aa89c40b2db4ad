// SPDX-License-Identifier: Apache-2.0
//
// tests/golden/cases/13 on the demo model: greedy tokens and raw log probabilities of nine prompts are the same bits in all
// its arrangements. DEEPINFER_INVARIANCE_ROUNDS (any value) puts 31 neighbours beside every prompt, not only beside two.
#include <cstdlib>

#include "core/json.h"
#include "engine/acceptance/step_loop.h"
#include "engine/real_models.h"

namespace deepinfer::engine {
namespace {

class Case13 : public ::testing::Test {
 protected:
  Case13() : model_(LoadDemo()) {
    const Json json = ReadJsonFile(std::string(DEEPINFER_SOURCE_DIR) + "/tests/golden/cases/13-batch-invariance.json").value();
    const auto words = text::Tokenizer::Load(DemoDir()).value();
    for (const Json& prompt : json["prompts"]) {
      EngineRequest& r = requests_.emplace_back();
      r.prompt_ids = words->EncodeFull(prompt.get<std::string>());
      r.params.temperature = 0;
      r.params.max_tokens = 32;
    }
  }
  static EngineCoreOptions Options() {
    EngineCoreOptions o = RealModelOptions(kDemoKeep);
    o.scheduler.is_batch_invariant = true;
    o.scheduler.max_model_len = 4096;
    o.scheduler.max_num_batched_tokens = 2048;
    o.scheduler.max_num_seqs = 32;
    o.scheduler.num_blocks = 240;
    o.sampling.logprobs_mode = LogprobsMode::kRaw;
    return o;
  }
  std::shared_ptr<RequestHandle> Submit(RealEngine& engine, size_t i) { return engine.core->Submit(requests_[i]).value(); }
  void Check(RequestHandle& handle, size_t i, const std::string& arrangement) {
    ExpectSame(Collect(handle)[0], want_[i], arrangement + ", prompt " + std::to_string(i + 1));
  }

  std::unique_ptr<model::Model> model_;
  std::vector<EngineRequest> requests_;
  std::vector<Answer> want_;
  LogitsLedger ledger_;
};

TEST_F(Case13, SameBitsInEveryArrangement) {
  ASSERT_EQ(requests_.size(), 9u);
  RealEngine engine(*model_, Options(), &ledger_);
  for (size_t i = 0; i < 9; ++i) {
    want_.push_back(Collect(*Submit(engine, i))[0]);
    EXPECT_FALSE(want_.back().ids.empty());
  }
  // In one batch, in both orders.
  for (const bool is_reverse : {false, true}) {
    std::vector<std::shared_ptr<RequestHandle>> handles(9);
    for (size_t k = 0; k < 9; ++k) handles[is_reverse ? 8 - k : k] = Submit(engine, is_reverse ? 8 - k : k);
    for (size_t i = 0; i < 9; ++i) Check(*handles[i], i, is_reverse ? "reverse" : "together");
  }
  // Beside 31 copies of prompt 5.
  for (size_t i = 0; i < 9; ++i) {
    if (i != 0 && i != 8 && std::getenv("DEEPINFER_INVARIANCE_ROUNDS") == nullptr) continue;
    std::vector<std::shared_ptr<RequestHandle>> copies;
    for (int k = 0; k < 31; ++k) copies.push_back(Submit(engine, 4));
    const auto handle = Submit(engine, i);
    Check(*handle, i, "in a crowd");
    for (const auto& copy : copies) Check(*copy, 4, "copy");
  }
  // One after the other has begun.
  {
    std::vector<std::shared_ptr<RequestHandle>> handles;
    std::vector<Answer> answers(9);
    CoreOutput output;
    for (size_t i = 0; i < 9; ++i) {
      handles.push_back(Submit(engine, i));
      ASSERT_TRUE(handles.back()->Next(output));
      answers[i].ids.push_back(output.token.token_id);
      answers[i].logprobs.push_back(output.token.logprob);
      answers[i].reason = output.finish_reason;
    }
    for (size_t i = 0; i < 9; ++i) {
      while (handles[i]->Next(output)) {
        answers[i].ids.push_back(output.token.token_id);
        answers[i].logprobs.push_back(output.token.logprob);
        answers[i].reason = output.finish_reason;
      }
      ExpectSame(answers[i], want_[i], "staggered, prompt " + std::to_string(i + 1));
    }
  }
  engine.Drain();

  // In chunks of 64 (checkpoints), 128 (budget) and whole: the ledger knows every row.
  const int64_t num_rows = ledger_.num_rows();
  for (const int64_t chunk : {64, 128, 2048}) {
    SchedulerOptions o = Options().scheduler;
    o.max_num_batched_tokens = std::max<int64_t>(chunk, 128);
    o.prefix_cache.num_state_records = 0;
    auto slots = ModelSlots::Create(*model_, o.num_blocks, o.num_state_slots(), 0).value();
    LedgerModel watched(*slots, ledger_, o.num_state_slots());
    StepLoop loop(watched, o, true);
    for (size_t i = 0; i < 9; ++i) {
      std::vector<int64_t> marks;
      for (int64_t at = chunk; at < static_cast<int64_t>(requests_[i].prompt_ids.size()); at += chunk) marks.push_back(at);
      loop.Add(requests_[i].prompt_ids, static_cast<int64_t>(want_[i].ids.size()), marks);
    }
    loop.Run();
    for (size_t i = 0; i < 9; ++i) EXPECT_EQ(loop.tokens().at(i + 1), want_[i].ids) << "chunks of " << chunk << ", prompt " << i + 1;
  }

  // The first half in the prefix cache. Batch-invariant engines make `replay` exact.
  EngineCoreOptions o = Options();
  o.scheduler.cache_mode = CacheMode::kReplay;
  RealEngine cached(*model_, o, &ledger_);
  int64_t num_cached = 0;
  for (size_t i = 0; i < 9; ++i) {
    EngineRequest half = requests_[i];
    half.prompt_ids.resize((half.prompt_ids.size() + 1) / 2);
    half.params.max_tokens = 1;
    half.cache_root.bytes[0] = requests_[i].cache_root.bytes[0] = static_cast<uint8_t>(i + 1);
    Collect(*cached.core->Submit(half).value());
    const auto handle = Submit(cached, i);
    const Answer answer = Collect(*handle)[0];
    num_cached += answer.cached_tokens;
    ExpectSame(answer, want_[i], "cached, prompt " + std::to_string(i + 1));
  }
  EXPECT_GE(num_cached, 128);
  cached.Drain();
  EXPECT_EQ(ledger_.num_different(), 0);
  // New rows are those of the half prompts.
  EXPECT_LE(ledger_.num_rows(), num_rows + 9);
}

}  // namespace
}  // namespace deepinfer::engine
