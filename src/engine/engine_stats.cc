// SPDX-License-Identifier: Apache-2.0
#include "engine/engine_stats.h"

#include <algorithm>
#include <utility>

namespace deepinfer::engine {

int64_t LoggingInterval(int64_t interval, bool is_prompt_engine) {
  if (interval <= 0) return 0;
  return is_prompt_engine ? std::max<int64_t>(1, interval / 5) : interval;
}

void RateWindow::Add(int64_t now_ns, int64_t num_prompt, int64_t num_output) {
  last_ns_ = now_ns;
  if (first_ns_ < 0) {
    first_ns_ = now_ns;
    return;
  }
  ++num_steps_;
  num_prompt_ += num_prompt;
  num_output_ += num_output;
}

double RateWindow::Rate(int64_t count) const {
  return last_ns_ > first_ns_ ? static_cast<double>(count) / (1e-9 * static_cast<double>(last_ns_ - first_ns_)) : 0;
}

EngineStats::EngineStats(int64_t logging_interval, StatsOptions options, const SchedulerOptions& scheduler)
    : options_(std::move(options)),
      interval_(LoggingInterval(logging_interval, options_.is_prompt_engine)),
      max_batched_tokens_(scheduler.max_num_batched_tokens),
      num_draft_positions_(std::min(static_cast<size_t>(std::max(scheduler.num_drafts, 0)), kMaxDraftPositions)),
      num_blocks_(static_cast<double>(scheduler.num_blocks - 1)),
      num_slots_(static_cast<double>(scheduler.num_state_slots() - 1)) {
  if (options_.registry != nullptr) metrics_ = std::make_unique<EngineMetrics>(*options_.registry, options_.role, options_.build);
  if (options_.registry != nullptr && options_.expert_stats) expert_metrics_ = std::make_unique<ExpertMetrics>(*options_.registry);
  if (interval_ > 0) writer_ = std::make_unique<StatsWriter>(options_.sink);
  engine_step_.name = "engine_step";
  schedule_.name = "schedule";
  forward_.name = "forward";
  process_.name = "process";
  output_.name = "output";
}

void EngineStats::OnStep(const StepSample& sample) {
  if (expert_metrics_ != nullptr) expert_metrics_->Update(options_.expert_stats());
  if (metrics_ != nullptr) metrics_->OnStep(sample, previous_, static_cast<double>(sample.num_used_blocks) / num_blocks_);
  const StepTiming& t = sample.timing;
  if (t.kind != StepKind::kNone && interval_ > 0) {
    const bool is_prefill = t.kind == StepKind::kPrefill;
    const int64_t num_prompt = is_prefill ? t.num_tokens : 0;
    const int64_t num_output = sample.stats.num_output_tokens - previous_.stats.num_output_tokens;
    all_.Add(t.process_end_ns, num_prompt, num_output);
    window_.Add(t.process_end_ns, num_prompt, num_output);
    // Steps overlap: one lasts from the end of the one before, if that was later than its own begin.
    const int64_t step_ns = t.process_end_ns - std::max(t.schedule_begin_ns, previous_.timing.process_end_ns);
    engine_step_.Add(step_ns);
    schedule_.Add(t.schedule_end_ns - t.schedule_begin_ns);
    forward_.Add(t.run_end_ns - t.run_begin_ns);
    process_.Add(t.process_end_ns - t.process_begin_ns);
    (is_prefill ? sums_.prefill_ns : sums_.decode_ns) += step_ns;
    sums_.sum_qk += sample.sum_qk;
    sums_.max_k = std::max(sums_.max_k, sample.max_k);
    sums_.min_k = engine_step_.num_calls == 1 ? sample.min_k : std::min(sums_.min_k, sample.min_k);
    flops_ += sample.flops;
    sums_.num_verify_rows += sample.num_verify_rows;
    sums_.num_verify_requests += sample.num_verify_requests;
    sums_.confidence_error_sum += sample.confidence_error;
    for (size_t i = 0; i < num_draft_positions_; ++i) {
      num_verified_[i] += sample.num_verified[i];
      num_accepted_[i] += sample.num_accepted[i];
    }
    if ((t.number - 1) % static_cast<uint64_t>(interval_) == 0) Emit(sample);
  }
  const StepTiming last = t.kind != StepKind::kNone ? t : previous_.timing;
  previous_ = sample;
  previous_.timing = last;
}

void EngineStats::OnOutput(RequestTimes& times, int sample, bool has_token, int64_t num_cached, FinishReason reason, int64_t now_ns) {
  RequestTimes::Sample& s = times.samples[static_cast<size_t>(sample)];
  const auto seconds_since = [now_ns](int64_t begin_ns) { return 1e-9 * static_cast<double>(now_ns - begin_ns); };
  if (has_token) {
    if (++s.num_tokens > 1) {
      if (metrics_ != nullptr) metrics_->OnTokenGap(seconds_since(s.last_token_ns));
    } else if (!times.has_first) {
      times.has_first = true;
      num_cached = std::max<int64_t>(num_cached, 0);
      const double ttft_s = seconds_since(times.submit_ns);
      ++sums_.num_first_tokens;
      sums_.ttft_sum_s += ttft_s;
      sums_.ttft_max_s = std::max(sums_.ttft_max_s, ttft_s);
      if (metrics_ != nullptr) metrics_->OnFirstToken(ttft_s, times.num_prompt, num_cached);
    }
    s.last_token_ns = now_ns;
    if (metrics_ != nullptr) metrics_->OnToken();
  }
  if (reason == FinishReason::kNone) return;
  ++sums_.num_ended;
  sums_.input_sum += times.num_prompt;
  sums_.output_sum += s.num_tokens;
  const bool is_over = --times.num_open == 0;
  if (metrics_ == nullptr) return;
  metrics_->OnSampleEnd(reason);
  if (is_over) metrics_->OnRequestEnd(seconds_since(times.submit_ns));
}

void EngineStats::Emit(const StepSample& sample) {
  StatsLine line = std::move(sums_);
  const StepTiming& t = sample.timing;
  const SchedulerStats &now = sample.stats, &base = line_base_;
  line.rank = options_.rank;
  line.device_idx = options_.device_idx;
  line.step = t.number - 1;
  line.is_prompt = t.kind == StepKind::kPrefill;
  line.cur_steps_per_s = window_.steps_per_s();
  line.avg_steps_per_s = all_.steps_per_s();
  line.prompt_tokens_per_s = window_.prompt_tokens_per_s();
  line.output_tokens_per_s = window_.output_tokens_per_s();
  line.tokens_per_s = line.prompt_tokens_per_s + line.output_tokens_per_s;
  line.num_verified.assign(num_verified_.begin(), num_verified_.begin() + static_cast<std::ptrdiff_t>(num_draft_positions_));
  line.num_accepted.assign(num_accepted_.begin(), num_accepted_.begin() + static_cast<std::ptrdiff_t>(num_draft_positions_));
  line.num_running = sample.num_running;
  line.num_waiting = sample.num_waiting;
  line.num_partial = sample.num_partial;
  line.num_batched_tokens = t.num_tokens;
  line.max_batched_tokens = max_batched_tokens_;
  line.kv_usage = static_cast<double>(sample.num_used_blocks) / num_blocks_;
  line.state_usage = static_cast<double>(sample.num_used_slots) / num_slots_;
  line.num_prompt_tokens = now.num_bound_tokens - base.num_bound_tokens;
  line.num_cached_tokens = now.num_cached_tokens - base.num_cached_tokens;
  line.num_aborted = now.num_aborted - base.num_aborted;
  line.num_finished = now.num_finished - base.num_finished - line.num_aborted;
  line.num_preempted = now.num_preempted - base.num_preempted;
  if (options_.flops != nullptr) {
    const model::Flops flops = options_.flops->Evaluate(flops_);
    line.attention_flop = 2 * flops.of(model::FlopsPart::kAttention);
    line.fp8_equivalent_flop = flops.fp8_equivalent();
  }
  line.bf16_peak_flops = options_.bf16_peak_flops;
  line.timers = {engine_step_, schedule_, forward_, process_, output_};
  writer_->Push(std::move(line));
  sums_ = StatsLine();
  flops_ = {};
  num_verified_.fill(0);
  num_accepted_.fill(0);
  line_base_ = now;
  window_.Clear();
  for (StepTimer* timer : {&engine_step_, &schedule_, &forward_, &process_, &output_}) timer->Clear();
}

}  // namespace deepinfer::engine
