// SPDX-License-Identifier: Apache-2.0
#include "engine/stats_line.h"

#include <iterator>

#include <fmt/format.h>

namespace deepinfer::engine {
namespace {

// 0 where there is nothing to divide by.
template <typename A, typename B>
double Ratio(A part, B whole) {
  return whole != 0 ? static_cast<double>(part) / static_cast<double>(whole) : 0.0;
}

std::string Head(const StatsLine& line, const char* what) {
  return fmt::format("RANK {}, GPU {}, step {}, [{}] ", line.rank, line.device_idx, line.step, what);
}

}  // namespace

std::string FormatStats(const StatsLine& l) {
  int64_t verified = 0, accepted = 0;
  std::string by_position;
  for (size_t i = 0; i < l.num_verified.size(); ++i) {
    verified += l.num_verified[i];
    accepted += l.num_accepted[i];
    fmt::format_to(std::back_inserter(by_position), "{}{:.1f}%", i > 0 ? " " : "", 100 * Ratio(l.num_accepted[i], l.num_verified[i]));
  }
  const double seconds = 1e-9 * static_cast<double>(l.timers[0].sum_ns);
  std::string out = Head(l, "stats");
  const auto add = [&](const char* format, const auto&... values) { fmt::format_to(std::back_inserter(out), fmt::runtime(format), values...); };
  add("(is_prompt={}, cur_SPS={:.2f}, avg_SPS={:.2f}, cur_TPS={:.1f}, prompt_TPS={:.1f}, completion_TPS={:.1f}, ", l.is_prompt ? 1 : 0,
      l.cur_steps_per_s, l.avg_steps_per_s, l.tokens_per_s, l.prompt_tokens_per_s, l.output_tokens_per_s);
  add("avg_nextn_accept_rate={:.1f}%, nextn_accept_rate=[{}], verified_tokens={}, accepted_tokens={}, ",
      100 * Ratio(accepted, l.num_verify_rows - l.num_verify_requests), by_position, verified, accepted);
  add("avg_verified_len={:.2f}, avg_confidence_error={:.3f}, moe_lb={:.2f}, ", Ratio(l.num_verify_rows, l.num_verify_requests),
      Ratio(l.confidence_error_sum, verified), l.moe_max_over_mean);
  add("running={}, pending={}, chunked={}, num_batched_tokens={}[{:.1f}%], KV_cache_usage={:.1f}%, state_cache_usage={:.1f}%, ", l.num_running,
      l.num_waiting, l.num_partial, l.num_batched_tokens, 100 * Ratio(l.num_batched_tokens, l.max_batched_tokens), 100 * l.kv_usage,
      100 * l.state_usage);
  const int64_t step_ns = l.prefill_ns + l.decode_ns;
  add("prefill_time={:.1f}%, decode_time={:.1f}%, prefill_caching_rate={:.1f}%, ", 100 * Ratio(l.prefill_ns, step_ns),
      100 * Ratio(l.decode_ns, step_ns), 100 * Ratio(l.num_cached_tokens, l.num_prompt_tokens));
  add("TTFT(max={:.1f}ms, mean={:.1f}ms), avg_length(input={:.1f}, output={:.1f}), finished={}, preempted={}, aborted={}, ", 1e3 * l.ttft_max_s,
      1e3 * Ratio(l.ttft_sum_s, l.num_first_tokens), Ratio(l.input_sum, l.num_ended), Ratio(l.output_sum, l.num_ended), l.num_finished,
      l.num_preempted, l.num_aborted);
  add("sum_seqlen_qxk={}, max_seqlen_k={}, min_seqlen_k={}, attn_TFLOPs={:.3g}, ", l.sum_qk, l.max_k, l.min_k,
      1e-12 * Ratio(l.attention_flop, seconds));
  if (l.bf16_peak_flops > 0) {
    add("MFU={:.2f}%)", 100 * Ratio(l.fp8_equivalent_flop, seconds * 2 * l.bf16_peak_flops));
  } else {
    out += "MFU=-)";
  }
  return out;
}

std::string FormatTimers(const StatsLine& line) {
  std::string out = Head(line, "cpu");
  const char* separator = "";
  for (const StepTimer& timer : line.timers) {
    const auto ms = [](double ns) { return 1e-6 * ns; };
    fmt::format_to(std::back_inserter(out), "{}{} {:.3f}/{:.3f}/{:.3f} ms, {} calls, {:.1f}%", separator, timer.name,
                   ms(static_cast<double>(timer.cur_ns)), ms(Ratio(timer.sum_ns, timer.num_calls)), ms(static_cast<double>(timer.max_ns)),
                   timer.num_calls, 100 * Ratio(timer.sum_ns, line.timers[0].sum_ns));
    separator = "; ";
  }
  return out;
}

}  // namespace deepinfer::engine
