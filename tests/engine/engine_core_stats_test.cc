// SPDX-License-Identifier: Apache-2.0
//
// What a running engine says: lines, metrics that agree with what was delivered, health.
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/engine_core.h"
#include "fake_step_model.h"

namespace deepinfer::engine {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr int kVocab = 40;

// Another thread may look while it moves.
class SharedClock : public Clock {
 public:
  int64_t NowNs() const override { return now_ns_; }
  void AdvanceMs(int64_t ms) { now_ns_ += ms * 1'000'000; }

 private:
  std::atomic<int64_t> now_ns_{1'000'000'000'000};
};

EngineCoreOptions Options() {
  EngineCoreOptions o;
  o.scheduler.max_model_len = 640;
  o.scheduler.max_num_batched_tokens = 256;
  o.scheduler.max_num_seqs = 4;
  o.scheduler.num_blocks = 40;
  o.scheduler.cache_mode = CacheMode::kReplay;
  return o;
}

// Steps wait while it is closed.
class GatedModel : public FakeStepModel {
 public:
  explicit GatedModel(const EngineCoreOptions& o)
      : FakeStepModel(kVocab, o.scheduler.max_model_len, o.scheduler.num_blocks, o.scheduler.num_state_slots(), 0) {}
  Result<std::span<const float>> Forward(std::span<const SlotChunk> chunks) override {
    std::unique_lock lock(mutex_);
    ++num_arrived_;
    changed_.notify_all();
    changed_.wait(lock, [&] { return is_open_; });
    return FakeStepModel::Forward(chunks);
  }
  void SetOpen(bool is_open) {
    std::lock_guard lock(mutex_);
    is_open_ = is_open;
    changed_.notify_all();
  }
  void WaitForStep() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return num_arrived_ > 0; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_open_ = true;
  int num_arrived_ = 0;
};

EngineRequest Request(int64_t num_prompt, int64_t max_tokens) {
  EngineRequest request;
  for (int64_t i = 0; i < num_prompt; ++i) request.prompt_ids.push_back(static_cast<int32_t>(i * 7 % kVocab));
  request.params.max_tokens = max_tokens;
  request.params.ignore_eos = true;
  request.params.temperature = 0;
  return request;
}

TEST(EngineCoreStats, MetricsAgreeWithWhatWasDelivered) {
  MetricsRegistry registry;
  EngineCoreOptions options = Options();
  options.stats.registry = &registry;
  std::atomic<int> num_prefill{0}, num_decode{0};
  options.on_step = [&](const StepTiming& t) { ++(t.kind == StepKind::kPrefill ? num_prefill : num_decode); };
  GatedModel model(options);
  {
    auto core = std::move(EngineCore::Create(model, options)).value();
    const auto first = core->Submit(Request(300, 5)).value();
    first->Wait();
    EngineRequest forked = Request(300, 7);
    forked.params.n = 2;
    forked.params.temperature = 1;
    const auto second = core->Submit(forked).value();  // 256 tokens of its prompt are in the cache
    // The receiver ends this one.
    const auto third = core->Submit(Request(10, 50), [](const CoreOutput&) { return StreamAction::kStop; }).value();
    second->Wait();
    third->Wait();
    model.SetOpen(false);
    const auto fourth = core->Submit(Request(20, 5)).value();
    fourth->Cancel();
    model.SetOpen(true);
    fourth->Wait();
  }
  const std::string text = registry.TextExposition();
  for (const std::string& series : std::vector<std::string>{
           "deepinfer_finish_total{reason=\"length\"} 3", "deepinfer_finish_total{reason=\"stop\"} 1", "deepinfer_finish_total{reason=\"abort\"} 1",
           "deepinfer_prompt_tokens_total{kind=\"hit\"} 256", "deepinfer_first_token_seconds_count{hit=\"high\"} 1",
           "deepinfer_request_seconds_count 4", "deepinfer_requests_running 0", "deepinfer_kv_usage_ratio 0",
           "deepinfer_kv_lookup_tokens_total{class=\"all\",result=\"hit\",tier=\"device\"} 256",
           "deepinfer_step_seconds_count{phase=\"prefill\",role=\"normal\"} " + std::to_string(num_prefill),
           "deepinfer_step_seconds_count{phase=\"decode\",role=\"normal\"} " + std::to_string(num_decode)})
    EXPECT_THAT(text, HasSubstr(series + "\n"));
  const double output = registry.GetCounter("deepinfer_output_tokens_total", "").value();
  EXPECT_GE(output, 5 + 2 * 7 + 1);
  EXPECT_LE(output, 5 + 2 * 7 + 1 + 5);  // of the cancelled one, as far as it came
}

TEST(EngineCoreStats, LinesOfARun) {
  std::vector<std::string> lines;
  EngineCoreOptions options = Options();
  options.logging_interval_steps = 4;
  options.stats.sink = [&](std::string_view line) { lines.emplace_back(line); };
  GatedModel model(options);
  {
    auto core = std::move(EngineCore::Create(model, options)).value();
    core->Submit(Request(100, 10)).value()->Wait();
  }
  // One prefill step, then nine decode steps: 0, 4 and 8 of them.
  ASSERT_EQ(lines.size(), 6u);
  EXPECT_THAT(lines[0], StartsWith("RANK 0, GPU 0, step 0, [stats] (is_prompt=1, "));
  EXPECT_THAT(lines[0], HasSubstr("num_batched_tokens=100[39.1%], KV_cache_usage=2.6%, state_cache_usage=25.0%"));
  EXPECT_THAT(lines[0], HasSubstr("sum_seqlen_qxk=10000, max_seqlen_k=100, min_seqlen_k=100"));
  EXPECT_THAT(lines[1], StartsWith("RANK 0, GPU 0, step 0, [cpu] engine_step "));
  EXPECT_THAT(lines[2], StartsWith("RANK 0, GPU 0, step 4, [stats] (is_prompt=0, "));
  EXPECT_THAT(lines[2], HasSubstr("running=1, pending=0, chunked=0, num_batched_tokens=1[0.4%]"));
  EXPECT_THAT(lines[2], HasSubstr("sum_seqlen_qxk=410, max_seqlen_k=104, min_seqlen_k=101"));
  EXPECT_THAT(lines[4], StartsWith("RANK 0, GPU 0, step 8, [stats] "));
}

TEST(EngineCoreStats, Health) {
  SharedClock clock;
  EngineCoreOptions options = Options();
  options.clock = &clock;
  GatedModel model(options);
  auto core = std::move(EngineCore::Create(model, options)).value();
  EXPECT_TRUE(core->GetHealth().is_healthy());
  clock.AdvanceMs(3'600'000);  // idle for an hour
  EXPECT_FALSE(core->GetHealth().has_work);
  EXPECT_TRUE(core->GetHealth().is_healthy());

  model.SetOpen(false);
  const auto handle = core->Submit(Request(10, 3)).value();
  model.WaitForStep();
  EngineCore::Health health = core->GetHealth();
  EXPECT_TRUE(health.has_work);
  EXPECT_EQ(health.last_step_age_s, 0);
  clock.AdvanceMs(60'000);
  health = core->GetHealth();
  EXPECT_NEAR(health.last_step_age_s, 60, 1e-6);
  EXPECT_TRUE(health.is_healthy());
  clock.AdvanceMs(1);
  EXPECT_FALSE(core->GetHealth().is_healthy());
  model.SetOpen(true);
  handle->Wait();
  core->WaitIdle();
  EXPECT_TRUE(core->GetHealth().is_healthy());
  EXPECT_FALSE(core->GetHealth().has_work);
}

}  // namespace
}  // namespace deepinfer::engine
