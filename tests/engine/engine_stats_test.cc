// SPDX-License-Identifier: Apache-2.0
//
// Windows, lines and metrics from samples and outputs that are made by hand.
#include "engine/engine_stats.h"

#include <stdexcept>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace deepinfer::engine {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr int64_t kMs = 1'000'000;

SchedulerOptions Sizes() {
  SchedulerOptions o;
  o.num_blocks = 101;
  o.max_num_seqs = 10;
  o.state_slots_ratio = 1.0;
  o.max_num_batched_tokens = 256;
  return o;
}

// A step of 8 ms on the device that ends at `end_ms`.
StepSample Step(uint64_t number, StepKind kind, int64_t num_tokens, int64_t end_ms) {
  StepSample s;
  s.timing.number = number;
  s.timing.kind = kind;
  s.timing.num_rows = 1;
  s.timing.num_tokens = num_tokens;
  s.timing.process_end_ns = s.now_ns = end_ms * kMs;
  s.timing.process_begin_ns = s.timing.run_end_ns = (end_ms - 1) * kMs;
  s.timing.run_begin_ns = s.timing.schedule_end_ns = (end_ms - 9) * kMs;
  s.timing.schedule_begin_ns = (end_ms - 10) * kMs;
  s.sum_qk = num_tokens * 100;
  s.max_k = 100 + num_tokens;
  s.min_k = num_tokens;
  return s;
}

// Lines are written by another thread: they are there when the statistics are gone.
std::vector<std::string> LinesOf(int64_t interval, StatsOptions options, const std::function<void(EngineStats&)>& run) {
  std::vector<std::string> lines;
  options.sink = [&](std::string_view line) { lines.emplace_back(line); };
  {
    EngineStats stats(interval, options, Sizes());
    run(stats);
  }
  return lines;
}

TEST(RateWindow, FirstSampleOnlyMarksTheStart) {
  RateWindow w;
  EXPECT_EQ(w.steps_per_s(), 0);
  w.Add(5'000'000'000, 1000, 1000);
  EXPECT_EQ(w.prompt_tokens_per_s(), 0);
  w.Add(6'000'000'000, 0, 30);
  w.Add(7'000'000'000, 50, 10);
  EXPECT_EQ(w.steps_per_s(), 1);
  EXPECT_EQ(w.prompt_tokens_per_s(), 25);
  EXPECT_EQ(w.output_tokens_per_s(), 20);
  w.Clear();
  w.Add(9'000'000'000, 1, 1);
  EXPECT_EQ(w.steps_per_s(), 0);
}

TEST(EngineStats, IntervalOfPromptEngines) {
  EXPECT_EQ(LoggingInterval(100, false), 100);
  EXPECT_EQ(LoggingInterval(100, true), 20);
  EXPECT_EQ(LoggingInterval(3, true), 1);
  EXPECT_EQ(LoggingInterval(0, true), 0);
  EXPECT_EQ(LoggingInterval(-5, false), 0);
}

TEST(EngineStats, LinesAtStepZeroAndEveryInterval) {
  const auto lines = LinesOf(3, {}, [](EngineStats& stats) {
    for (uint64_t n = 1; n <= 8; ++n) stats.OnStep(Step(n, StepKind::kDecode, 2, static_cast<int64_t>(10 * n)));
    StepSample state;  // no step
    state.now_ns = 100 * kMs;
    stats.OnStep(state);
  });
  ASSERT_EQ(lines.size(), 6u);
  EXPECT_THAT(lines[0], HasSubstr("step 0, [stats] (is_prompt=0, cur_SPS=0.00, avg_SPS=0.00"));
  EXPECT_THAT(lines[1], HasSubstr("step 0, [cpu] engine_step 10.000/10.000/10.000 ms, 1 calls, 100.0%; schedule 1.000"));
  EXPECT_THAT(lines[2], HasSubstr("step 3, [stats]"));
  EXPECT_THAT(lines[4], HasSubstr("step 6, [stats]"));
  EXPECT_THAT(LinesOf(0, {}, [](EngineStats& stats) { stats.OnStep(Step(1, StepKind::kDecode, 2, 10)); }), ::testing::IsEmpty());
}

TEST(EngineStats, WholeLine) {
  StatsOptions options;
  options.rank = 0;
  options.device_idx = 3;
  const auto lines = LinesOf(3, options, [](EngineStats& stats) {
    RequestTimes times;
    times.submit_ns = 2 * kMs;
    times.num_prompt = 200;
    times.num_open = 1;
    times.samples.resize(1);
    stats.OnStep(Step(1, StepKind::kDecode, 1, 20));
    StepSample s = Step(2, StepKind::kPrefill, 128, 40);
    s.stats.num_bound_tokens = 200;
    s.stats.num_lookup_tokens = 200;
    s.stats.num_cached_tokens = 50;
    stats.OnStep(s);
    stats.OnOutput(times, 0, true, 50, FinishReason::kNone, 42 * kMs);
    s = Step(3, StepKind::kDecode, 2, 50);
    s.stats.num_output_tokens = 1;
    stats.OnStep(s);
    stats.OnOutput(times, 0, true, -1, FinishReason::kLength, 52 * kMs);
    stats.OnDelivered(2 * kMs);
    s = Step(4, StepKind::kDecode, 4, 60);
    s.stats.num_output_tokens = 5;
    s.stats.num_bound_tokens = 200;
    s.stats.num_cached_tokens = 50;
    s.stats.num_finished = 3;
    s.stats.num_aborted = 1;
    s.stats.num_preempted = 2;
    s.num_running = 4;
    s.num_waiting = 5;
    s.num_partial = 1;
    s.num_used_blocks = 25;
    s.num_used_slots = 4;
    stats.OnStep(s);
  });
  ASSERT_EQ(lines.size(), 4u);
  // The window begins with step 2, which ends at 40 ms; the engine's life with step 1 at 20 ms.
  EXPECT_EQ(lines[2],
            "RANK 0, GPU 3, step 3, [stats] (is_prompt=0, cur_SPS=100.00, avg_SPS=75.00, cur_TPS=250.0, prompt_TPS=0.0, "
            "completion_TPS=250.0, avg_nextn_accept_rate=0.0%, nextn_accept_rate=[], verified_tokens=0, accepted_tokens=0, "
            "avg_verified_len=0.00, avg_confidence_error=0.000, moe_lb=0.00, running=4, pending=5, chunked=1, num_batched_tokens=4[1.6%], "
            "KV_cache_usage=25.0%, state_cache_usage=40.0%, prefill_time=33.3%, decode_time=66.7%, prefill_caching_rate=25.0%, "
            "TTFT(max=40.0ms, mean=40.0ms), avg_length(input=200.0, output=2.0), finished=2, preempted=2, aborted=1, "
            "sum_seqlen_qxk=13400, max_seqlen_k=228, min_seqlen_k=2, attn_TFLOPs=0, MFU=-)");
  EXPECT_EQ(lines[3],
            "RANK 0, GPU 3, step 3, [cpu] engine_step 10.000/10.000/10.000 ms, 3 calls, 100.0%; schedule 1.000/1.000/1.000 ms, 3 calls, "
            "10.0%; forward 8.000/8.000/8.000 ms, 3 calls, 80.0%; process 1.000/1.000/1.000 ms, 3 calls, 10.0%; output 2.000/2.000/2.000 ms, "
            "1 calls, 6.7%");
}

// Steps that overlap count the time between their ends.
TEST(EngineStats, OverlappingStepsAddUpToTheTimeThatPassed) {
  const auto lines = LinesOf(2, {}, [](EngineStats& stats) {
    for (uint64_t n = 1; n <= 3; ++n) stats.OnStep(Step(n, StepKind::kDecode, 2, static_cast<int64_t>(20 + 4 * n)));
  });
  EXPECT_THAT(lines.at(3), HasSubstr("[cpu] engine_step 4.000/4.000/4.000 ms, 2 calls, 100.0%"));
}

TEST(EngineStats, FlopsAndUtilisation) {
  model::ModelConfig config;
  config.vocab_size = 1000;
  config.hidden_size = 100;
  config.num_hidden_layers = 0;
  StatsOptions options;
  options.flops = std::make_shared<model::FlopsModel>(config);
  options.bf16_peak_flops = 1e9;
  const auto lines = LinesOf(1, options, [](EngineStats& stats) {
    StepSample s = Step(1, StepKind::kDecode, 2, 10);
    s.flops.logit_rows = 10;  // 10 x 1000 x 100 multiply-adds in BF16: 4e6 in 10 ms of twice 1e9
    stats.OnStep(s);
  });
  EXPECT_THAT(lines.at(0), HasSubstr("MFU=20.00%)"));
}

// Three rows of a step with two drafts: none, one and both of them accepted; one row of the next step had none to verify.
TEST(EngineStats, Drafts) {
  StepPlan plan;
  plan.kind = StepKind::kDecode;
  plan.rows.resize(4);
  StepResult result;
  result.Reset(4, 3);
  result.num_verified = {2, 2, 2, 0};
  result.num_tokens = {1, 2, 3, 1};
  result.confidence_error = 1.5;
  StepSample s = Step(1, StepKind::kDecode, 10, 20);
  SampleDrafts(plan, result, s);
  MetricsRegistry registry;
  StatsOptions options;
  options.registry = &registry;
  std::vector<std::string> lines;
  options.sink = [&](std::string_view line) { lines.emplace_back(line); };
  SchedulerOptions sizes = Sizes();
  sizes.num_drafts = 2;
  {
    EngineStats stats(1, options, sizes);
    stats.OnStep(s);
  }
  EXPECT_THAT(lines.at(0), HasSubstr("avg_nextn_accept_rate=50.0%, nextn_accept_rate=[66.7% 33.3%], verified_tokens=6, accepted_tokens=3, "
                                     "avg_verified_len=2.50, avg_confidence_error=0.250, moe_lb=0.00"));
  const std::string text = registry.TextExposition();
  for (const char* series : {"deepinfer_spec_draft_tokens_total 6", "deepinfer_spec_accepted_tokens_total 3", "deepinfer_spec_accept_len_count 3",
                             "deepinfer_spec_accept_len_bucket{le=\"1\"} 1", "deepinfer_spec_accept_len_bucket{le=\"2\"} 2",
                             "deepinfer_spec_accept_len_bucket{le=\"3\"} 3"})
    EXPECT_THAT(text, HasSubstr(series));
}

TEST(EngineStats, FailingSinkIsNotFatal) {
  StatsOptions options;
  options.sink = [](std::string_view) { throw std::runtime_error("disk full"); };
  EngineStats stats(1, options, Sizes());
  stats.OnStep(Step(1, StepKind::kDecode, 2, 10));
}

TEST(EngineMetrics, EverySeriesIsThereFromTheStart) {
  MetricsRegistry registry;
  StatsOptions options;
  options.registry = &registry;
  options.build = {"1.2", "abc", "cpu"};
  EngineStats stats(0, options, Sizes());
  const std::string text = registry.TextExposition();
  for (const char* series :
       {"deepinfer_requests_running 0", "deepinfer_request_seconds_count 0", "deepinfer_first_token_seconds_count{hit=\"high\"} 0",
        "deepinfer_first_token_seconds_count{hit=\"low\"} 0", "deepinfer_first_token_seconds_count{hit=\"none\"} 0",
        "deepinfer_token_gap_seconds_count 0", "deepinfer_prompt_tokens_total{kind=\"hit\"} 0", "deepinfer_prompt_tokens_total{kind=\"miss\"} 0",
        "deepinfer_output_tokens_total 0", "deepinfer_step_seconds_count{phase=\"prefill\",role=\"normal\"} 0",
        "deepinfer_step_seconds_count{phase=\"decode\",role=\"normal\"} 0", "deepinfer_batch_tokens_count 0", "deepinfer_kv_usage_ratio 0",
        "deepinfer_finish_total{reason=\"stop\"} 0", "deepinfer_finish_total{reason=\"abort\"} 0",
        "deepinfer_build_info{backend=\"cpu\",git=\"abc\",version=\"1.2\"} 1", "deepinfer_kv_hit_ratio{class=\"all\",window=\"1m\"} 0",
        "deepinfer_kv_lookup_tokens_total{class=\"all\",result=\"hit\",tier=\"device\"} 0",
        "deepinfer_kv_evicted_blocks_total{reason=\"size\"} 0"})
    EXPECT_THAT(text, HasSubstr(series));
  EXPECT_THAT(text, Not(HasSubstr("reason=\"\"")));
}

TEST(EngineMetrics, CountsWhatHappened) {
  MetricsRegistry registry;
  StatsOptions options;
  options.registry = &registry;
  EngineStats stats(0, options, Sizes());
  RequestTimes times;
  times.num_prompt = 100;
  times.num_open = 2;
  times.samples.resize(2);
  stats.OnOutput(times, 0, true, 60, FinishReason::kNone, 300 * kMs);
  stats.OnOutput(times, 1, true, 60, FinishReason::kNone, 310 * kMs);  // shares the prompt
  stats.OnOutput(times, 0, true, -1, FinishReason::kStop, 320 * kMs);
  stats.OnOutput(times, 1, false, -1, FinishReason::kAbort, 900 * kMs);
  StepSample s = Step(1, StepKind::kPrefill, 40, 50);
  s.stats.num_lookup_tokens = 100;
  s.stats.num_cached_tokens = 60;
  s.num_running = 2;
  s.num_used_blocks = 50;
  s.num_evicted_blocks = 7;
  stats.OnStep(s);
  StepSample after;
  after.now_ns = 60 * kMs;
  after.stats = s.stats;
  after.num_evicted_blocks = 7;
  std::string text = registry.TextExposition();
  for (const char* series :
       {"deepinfer_requests_running 2", "deepinfer_request_seconds_count 1", "deepinfer_request_seconds_bucket{le=\"0.8\"} 0",
        "deepinfer_request_seconds_bucket{le=\"1.5\"} 1", "deepinfer_first_token_seconds_count{hit=\"high\"} 1",
        "deepinfer_first_token_seconds_bucket{hit=\"high\",le=\"0.4\"} 1", "deepinfer_token_gap_seconds_count 1",
        "deepinfer_token_gap_seconds_bucket{le=\"0.025\"} 1", "deepinfer_prompt_tokens_total{kind=\"hit\"} 60",
        "deepinfer_prompt_tokens_total{kind=\"miss\"} 40", "deepinfer_output_tokens_total 3", "deepinfer_finish_total{reason=\"stop\"} 1",
        "deepinfer_finish_total{reason=\"abort\"} 1", "deepinfer_step_seconds_bucket{phase=\"prefill\",role=\"normal\",le=\"0.01\"} 1",
        "deepinfer_batch_tokens_bucket{le=\"32\"} 0", "deepinfer_batch_tokens_bucket{le=\"64\"} 1", "deepinfer_kv_usage_ratio 0.5",
        "deepinfer_kv_hit_ratio{class=\"all\",window=\"1m\"} 0.6", "deepinfer_kv_lookup_tokens_total{class=\"all\",result=\"miss\",tier=\"device\"} 40",
        "deepinfer_kv_evicted_blocks_total{reason=\"size\"} 7"})
    EXPECT_THAT(text, HasSubstr(series));
  stats.OnStep(after);
  text = registry.TextExposition();
  for (const char* series : {"deepinfer_requests_running 0", "deepinfer_kv_usage_ratio 0", "deepinfer_batch_tokens_count 1",
                             "deepinfer_kv_evicted_blocks_total{reason=\"size\"} 7"})
    EXPECT_THAT(text, HasSubstr(series));
}

// The hit ratio forgets what is older than two minutes.
TEST(EngineMetrics, HitRatioIsOfTheLastMinutes) {
  MetricsRegistry registry;
  StatsOptions options;
  options.registry = &registry;
  EngineStats stats(0, options, Sizes());
  StepSample s = Step(1, StepKind::kPrefill, 100, 1000);
  s.stats.num_lookup_tokens = 100;
  stats.OnStep(s);
  Gauge& ratio = registry.GetGauge("deepinfer_kv_hit_ratio", "", {{"window", "1m"}, {"class", "all"}});
  EXPECT_EQ(ratio.value(), 0);
  const auto hit = [&](uint64_t number, int64_t seconds) {
    const SchedulerStats before = s.stats;
    s = Step(number, StepKind::kPrefill, 100, seconds * 1000);
    s.stats = before;
    s.stats.num_lookup_tokens += 100;
    s.stats.num_cached_tokens += 100;
    stats.OnStep(s);
  };
  hit(2, 62);
  EXPECT_EQ(ratio.value(), 0.5);
  hit(3, 122);
  EXPECT_EQ(ratio.value(), 1);
  hit(4, 1000);
  EXPECT_EQ(ratio.value(), 1);
}

}  // namespace
}  // namespace deepinfer::engine
