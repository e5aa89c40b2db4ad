// SPDX-License-Identifier: Apache-2.0
//
// No allocation in a steady decode step of the scheduler and the executor: operator new is counted for the whole program.
#include <gtest/gtest.h>

#include "count_allocations.h"
#include "engine/batch_sampler.h"
#include "engine/scheduler.h"
#include "engine/step_executor.h"
#include "sampling/params.h"

namespace deepinfer::engine {
namespace {

constexpr int kVocab = 64;

class ConstantModel : public StepModel {
 public:
  ConstantModel() : logits_(static_cast<size_t>(kVocab) * 64, 0.5f) {}
  int vocab_size() const override { return kVocab; }
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
  ThreadPool pool_{1};
  std::vector<float> logits_;
};

TEST(Allocation, NoneInASteadyDecodeStep) {
  SchedulerOptions o;
  o.max_num_seqs = 32;
  o.num_blocks = 200;
  o.cache_mode = CacheMode::kReplay;
  FakeClock clock;
  Scheduler scheduler(o, clock);
  ConstantModel model;
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

}  // namespace
}  // namespace deepinfer::engine
