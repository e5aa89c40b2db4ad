// SPDX-License-Identifier: Apache-2.0
//
// No allocation in a steady decode step of the scheduler and the executor, none per token on the way of the output:
// operator new is counted for the whole program.
#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "constrain/fake_grammar.h"
#include "core/metrics.h"
#include "count_allocations.h"
#include "engine/async_engine.h"
#include "engine/batch_sampler.h"
#include "engine/scheduler.h"
#include "engine/step_executor.h"
#include "sampling/params.h"

namespace deepinfer::engine {
namespace {

// Every token is as likely as every other.
class ConstantModel : public StepModel {
 public:
  explicit ConstantModel(int vocab_size) : vocab_size_(vocab_size), logits_(static_cast<size_t>(vocab_size) * 64, 0.5f) {}
  int vocab_size() const override { return vocab_size_; }
  int64_t max_model_len() const override { return 4096; }
  ThreadPool& pool() override { return pool_; }
  void Bind(int32_t, std::span<const int32_t>, int64_t, int64_t) override {}
  void SaveState(int32_t, int32_t) override {}
  void LoadState(int32_t, int32_t) override {}
  void CopyState(int32_t, int32_t, int64_t) override {}
  void CopyBlock(int32_t, int32_t) override {}
  void SetBlocks(int32_t, int64_t, std::span<const int32_t>) override {}
  int64_t length(int32_t) const override { return 64; }
  void Truncate(int32_t, int64_t) override {}
  Result<std::span<const float>> Forward(std::span<const SlotChunk>) override { return std::span<const float>(logits_); }

 private:
  const int vocab_size_;
  ThreadPool pool_{1};
  std::vector<float> logits_;
};

// `grammar`: of the requests; null = none.
void ExpectNoneInASteadyDecodeStep(std::shared_ptr<RequestGrammar> grammar) {
  SchedulerOptions o;
  o.max_num_seqs = 32;
  o.num_blocks = 200;
  o.cache_mode = CacheMode::kReplay;
  FakeClock clock;
  Scheduler scheduler(o, clock);
  ConstantModel model(64);
  BatchSampler sampler(model, o.num_state_slots(), {});
  StepExecutor executor(model, sampler, o.num_state_slots(), clock);
  for (uint64_t id = 1; id <= 32; ++id) {
    auto request = std::make_shared<SampledRequest>();
    request->first_id = id;
    request->prompt_ids = {1, 2, 3};
    request->params.max_tokens = 200;
    request->params.ignore_eos = true;
    request->params.top_k = 5;
    request->params.presence_penalty = 0.5;
    request->params.seq_seed = id;
    request->grammar = grammar;
    SequenceSpec spec;
    spec.id = id;
    spec.tokens = request->prompt_ids;
    spec.max_tokens = 200;
    spec.user = request;
    scheduler.Add(std::move(spec));
  }
  StepPlan plans[2];
  StepResult results[2];
  std::vector<SequenceEvent> events;
  const auto run = [&](int steps) {
    for (int i = 0; i < steps; ++i) {
      ASSERT_EQ(scheduler.Schedule(plans[i % 2]), StepKind::kDecode);
      executor.Run(plans[i % 2], results[i % 2]);
      if (i > 0) scheduler.Process(plans[(i + 1) % 2], results[(i + 1) % 2]);
      events.clear();
      scheduler.TakeEvents(events);
    }
    scheduler.Process(plans[(steps + 1) % 2], results[(steps + 1) % 2]);
  };
  ASSERT_EQ(scheduler.Schedule(plans[0]), StepKind::kPrefill);
  executor.Run(plans[0], results[0]);
  scheduler.Process(plans[0], results[0]);
  run(8);
  const int64_t before = num_allocations.load();
  run(100);  // inside the first block
  EXPECT_EQ(num_allocations.load() - before, 0);
}

TEST(Allocation, NoneInASteadyDecodeStep) { ExpectNoneInASteadyDecodeStep(nullptr); }

TEST(Allocation, NoneWithMasksEither) {
  auto grammar = std::make_shared<RequestGrammar>();
  constrain::FakeGrammarBackend backend(64, {3});
  grammar->spec.text = "1|2|4|8|16|32 ...";
  grammar->compiled = backend.Compile(grammar->spec).value();
  ExpectNoneInASteadyDecodeStep(grammar);
}

// ---- the threads of the engine, text layer and statistics included ---------------------------------------------------------

constexpr int kVocab = 4096;
constexpr int64_t kNumTokens = 110;  // with the prompt inside the first block
// Lists have doubled for the last time before the first of these tokens.
constexpr int64_t kFirstToken = 70, kLastToken = 100;

struct Fixture {
  Fixture() : model(kVocab) {
    AsyncEngineOptions o;
    o.core.scheduler.max_num_seqs = 8;
    o.core.scheduler.num_blocks = 64;
    o.core.logging_interval_steps = 1 << 20;
    o.core.stats.registry = &registry;
    o.core.stats.flops = std::make_shared<model::FlopsModel>(model::ModelConfig::Load(std::string(DEEPINFER_SOURCE_DIR) + "/models/demo").value());
    o.core.stats.sink = [](std::string_view) {};
    tokenizer = std::move(text::Tokenizer::Load(std::string(DEEPINFER_SOURCE_DIR) + "/models/demo")).value();
    engine = std::move(AsyncEngine::Create(model, *tokenizer, std::move(o))).value();
  }
  static TextRequest Request(uint64_t seed) {
    TextRequest request;
    request.prompt_ids = {300, 301, 302};
    request.params.max_tokens = kNumTokens;
    request.params.ignore_eos = true;
    request.params.top_p = 0.9;
    request.params.seq_seed = seed;
    request.params.stop = {"a text that does not come"};
    return request;
  }
  MetricsRegistry registry;
  ConstantModel model;
  std::unique_ptr<text::Tokenizer> tokenizer;
  std::unique_ptr<AsyncEngine> engine;
};

TEST(Allocation, NonePerTokenOnTheWayToCallbacks) {
  Fixture f;
  constexpr int kNumRequests = 8;
  std::atomic<int64_t> num_updates{0};
  int64_t first = 0, last = 0;
  std::vector<TextHandle> handles;
  for (int i = 0; i < kNumRequests; ++i) {
    handles.push_back(f.engine->Submit(Fixture::Request(static_cast<uint64_t>(i)), [&](int, const StreamUpdate&) {
      const int64_t n = ++num_updates;
      if (n == kNumRequests * kFirstToken) first = num_allocations.load();
      if (n == kNumRequests * kLastToken) last = num_allocations.load();
      return StreamAction::kContinue;
    }).value());
  }
  for (TextHandle& handle : handles) handle.Wait();
  // A text grows by doubling, and so do lists when their reader lags behind; one allocation a token would be 240.
  RecordProperty("allocations", static_cast<int>(last - first));
  ASSERT_GT(first, 0);
  EXPECT_LE(last - first, 3 * kNumRequests);
  for (TextHandle& handle : handles) {
    const Completion c = std::move(handle.TakeCompletions()[0]);
    EXPECT_EQ(static_cast<int64_t>(c.ids.size()), kNumTokens);
    EXPECT_GT(static_cast<int64_t>(c.text.size()), kNumTokens) << c.text;
  }
}

TEST(Allocation, NonePerTokenOnTheWayToAQueue) {
  Fixture f;
  TextHandle handle = f.engine->Submit(Fixture::Request(1)).value();
  int64_t first = 0, last = 0, n = 0;
  TextOutput output;
  while (handle.Next(output)) {
    ++n;
    if (n == kFirstToken) first = num_allocations.load();
    if (n == kLastToken) last = num_allocations.load();
  }
  EXPECT_GE(n, kNumTokens);
  ASSERT_GT(first, 0);
  RecordProperty("allocations", static_cast<int>(last - first));
  // The lists between the threads double when this one lags behind; one allocation a token would be 30.
  EXPECT_LE(last - first, 8);
}

}  // namespace
}  // namespace deepinfer::engine
