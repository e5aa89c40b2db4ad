// SPDX-License-Identifier: Apache-2.0
//
// StatsLine: the numbers of one statistics line (engine.md 20 of the specification) and their text. Rates and counts are of
// the steps since the line before; avg_steps_per_s and `step` are of the engine's whole life.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace deepinfer::engine {

struct StepTimer {
  const char* name = "";
  int64_t cur_ns = 0, sum_ns = 0, max_ns = 0, num_calls = 0;

  void Add(int64_t ns) {
    cur_ns = ns;
    sum_ns += ns;
    max_ns = ns > max_ns ? ns : max_ns;
    ++num_calls;
  }
  void Clear() { cur_ns = sum_ns = max_ns = num_calls = 0; }
};

struct StatsLine {
  int rank = 0, device_idx = 0;
  uint64_t step = 0;  // from 0
  bool is_prompt = false;  // the newest step was a prefill step
  double cur_steps_per_s = 0, avg_steps_per_s = 0;
  double tokens_per_s = 0, prompt_tokens_per_s = 0, output_tokens_per_s = 0;
  // Speculation: drafts that were verified, by position.
  std::vector<int64_t> num_verified, num_accepted;
  int64_t num_verify_rows = 0, num_verify_requests = 0;
  double confidence_error_sum = 0;  // of |accepted probability - confidence| over verified drafts
  double moe_max_over_mean = 0;     // load of the busiest expert group; 0 = not measured
  int64_t num_running = 0, num_waiting = 0, num_partial = 0;
  int64_t num_batched_tokens = 0, max_batched_tokens = 0;  // of the newest step
  double kv_usage = 0, state_usage = 0;  // 0..1
  int64_t prefill_ns = 0, decode_ns = 0;  // shares of the engine_step time
  int64_t num_prompt_tokens = 0, num_cached_tokens = 0;  // of sequences that got caches
  double ttft_max_s = 0, ttft_sum_s = 0;
  int64_t num_first_tokens = 0;
  int64_t num_ended = 0, input_sum = 0, output_sum = 0;  // lengths of samples that ended
  int64_t num_finished = 0, num_preempted = 0, num_aborted = 0;
  int64_t sum_qk = 0, max_k = 0, min_k = 0;  // query rows times visible tokens
  double attention_flop = 0, fp8_equivalent_flop = 0, bf16_peak_flops = 0;  // peak 0 = unknown
  // engine_step, schedule, forward, process, output.
  std::array<StepTimer, 5> timers{};
};

// "RANK 0, GPU 0, step 100, [stats] (is_prompt=0, ...)"
std::string FormatStats(const StatsLine& line);
// "RANK 0, GPU 0, step 100, [cpu] engine_step 1.000/1.100/2.000 ms, 100 calls, 100.0%; ..."
std::string FormatTimers(const StatsLine& line);

}  // namespace deepinfer::engine
