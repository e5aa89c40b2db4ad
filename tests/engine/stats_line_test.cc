// SPDX-License-Identifier: Apache-2.0
#include "engine/stats_line.h"

#include <gtest/gtest.h>

namespace deepinfer::engine {
namespace {

TEST(StatsLine, EveryFieldInOrder) {
  StatsLine l;
  l.rank = 2;
  l.device_idx = 1;
  l.step = 300;
  l.is_prompt = true;
  l.cur_steps_per_s = 12.345;
  l.avg_steps_per_s = 10;
  l.tokens_per_s = 150.25;
  l.prompt_tokens_per_s = 100;
  l.output_tokens_per_s = 50.25;
  l.num_verified = {10, 8};
  l.num_accepted = {9, 4};
  l.num_verify_rows = 28;
  l.num_verify_requests = 10;
  l.confidence_error_sum = 1.8;
  l.moe_max_over_mean = 1.25;
  l.num_running = 3;
  l.num_waiting = 4;
  l.num_partial = 1;
  l.num_batched_tokens = 512;
  l.max_batched_tokens = 2048;
  l.kv_usage = 0.5;
  l.state_usage = 0.125;
  l.prefill_ns = 3'000'000;
  l.decode_ns = 1'000'000;
  l.num_prompt_tokens = 1000;
  l.num_cached_tokens = 384;
  l.ttft_max_s = 0.25;
  l.ttft_sum_s = 0.3;
  l.num_first_tokens = 2;
  l.num_ended = 4;
  l.input_sum = 4000;
  l.output_sum = 402;
  l.num_finished = 3;
  l.num_preempted = 2;
  l.num_aborted = 1;
  l.sum_qk = 123456;
  l.max_k = 900;
  l.min_k = 3;
  l.attention_flop = 2e9;
  l.fp8_equivalent_flop = 4e9;
  l.bf16_peak_flops = 1e12;
  l.timers[0] = {"engine_step", 4'000'000, 4'000'000, 4'000'000, 1};
  EXPECT_EQ(FormatStats(l),
            "RANK 2, GPU 1, step 300, [stats] (is_prompt=1, cur_SPS=12.35, avg_SPS=10.00, cur_TPS=150.2, prompt_TPS=100.0, "
            "completion_TPS=50.2, avg_nextn_accept_rate=72.2%, nextn_accept_rate=[90.0% 50.0%], verified_tokens=18, accepted_tokens=13, "
            "avg_verified_len=2.80, avg_confidence_error=0.100, moe_lb=1.25, running=3, pending=4, chunked=1, "
            "num_batched_tokens=512[25.0%], KV_cache_usage=50.0%, state_cache_usage=12.5%, prefill_time=75.0%, decode_time=25.0%, "
            "prefill_caching_rate=38.4%, TTFT(max=250.0ms, mean=150.0ms), avg_length(input=1000.0, output=100.5), finished=3, "
            "preempted=2, aborted=1, sum_seqlen_qxk=123456, max_seqlen_k=900, min_seqlen_k=3, attn_TFLOPs=0.5, MFU=50.00%)");
}

TEST(StatsLine, NothingHasHappened) {
  EXPECT_EQ(FormatStats(StatsLine()),
            "RANK 0, GPU 0, step 0, [stats] (is_prompt=0, cur_SPS=0.00, avg_SPS=0.00, cur_TPS=0.0, prompt_TPS=0.0, completion_TPS=0.0, "
            "avg_nextn_accept_rate=0.0%, nextn_accept_rate=[], verified_tokens=0, accepted_tokens=0, avg_verified_len=0.00, "
            "avg_confidence_error=0.000, moe_lb=0.00, running=0, pending=0, chunked=0, num_batched_tokens=0[0.0%], KV_cache_usage=0.0%, "
            "state_cache_usage=0.0%, prefill_time=0.0%, decode_time=0.0%, prefill_caching_rate=0.0%, TTFT(max=0.0ms, mean=0.0ms), "
            "avg_length(input=0.0, output=0.0), finished=0, preempted=0, aborted=0, sum_seqlen_qxk=0, max_seqlen_k=0, min_seqlen_k=0, "
            "attn_TFLOPs=0, MFU=-)");
}

TEST(StatsLine, Timers) {
  StatsLine l;
  l.step = 7;
  l.timers[0] = {"engine_step", 1'000'000, 6'000'000, 2'000'000, 4};
  l.timers[1] = {"schedule", 500'000, 1'500'000, 800'000, 3};
  l.timers[2].name = "forward";
  l.timers[3].name = "process";
  l.timers[4].name = "output";
  EXPECT_EQ(FormatTimers(l),
            "RANK 0, GPU 0, step 7, [cpu] engine_step 1.000/1.500/2.000 ms, 4 calls, 100.0%; schedule 0.500/0.500/0.800 ms, 3 calls, 25.0%; "
            "forward 0.000/0.000/0.000 ms, 0 calls, 0.0%; process 0.000/0.000/0.000 ms, 0 calls, 0.0%; output 0.000/0.000/0.000 ms, 0 calls, 0.0%");
}

}  // namespace
}  // namespace deepinfer::engine
