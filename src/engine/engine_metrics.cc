// SPDX-License-Identifier: Apache-2.0
#include "engine/engine_metrics.h"

#include <string_view>

namespace deepinfer::engine {
namespace {

constexpr std::array<double, 15> kTokenBuckets = {1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384};
constexpr std::array<double, 8> kLengthBuckets = {1, 2, 3, 4, 5, 6, 7, 8};
constexpr int64_t kHitWindowNs = 60'000'000'000;
// Requests carry no traffic class yet.
constexpr const char* kClass = "all";

Counter& PromptTokens(MetricsRegistry& r, const char* kind) {
  return r.GetCounter("deepinfer_prompt_tokens_total", "Prompt tokens, found in the prefix cache or computed.", {{"kind", kind}});
}
Histogram& FirstToken(MetricsRegistry& r, const char* hit) {
  return r.GetHistogram("deepinfer_first_token_seconds", "From the arrival of a request to its first token.", SecondsBuckets(),
                        {{"hit", hit}});
}
Histogram& StepSeconds(MetricsRegistry& r, const std::string& role, const char* phase) {
  return r.GetHistogram("deepinfer_step_seconds", "Time of a step on the device.", SecondsBuckets(), {{"role", role}, {"phase", phase}});
}
Counter& LookupTokens(MetricsRegistry& r, const char* result) {
  return r.GetCounter("deepinfer_kv_lookup_tokens_total", "Prompt tokens looked up in the prefix cache.",
                      {{"result", result}, {"tier", "device"}, {"class", kClass}});
}

}  // namespace

EngineMetrics::EngineMetrics(MetricsRegistry& r, const std::string& role, const BuildLabels& build)
    : requests_running_(r.GetGauge("deepinfer_requests_running", "Sequences that are being decoded.")),
      kv_usage_(r.GetGauge("deepinfer_kv_usage_ratio", "Part of the cache blocks that is in use.")),
      kv_hit_ratio_(r.GetGauge("deepinfer_kv_hit_ratio", "Part of the looked up prompt tokens that was found.",
                               {{"window", "1m"}, {"class", kClass}})),
      request_seconds_(r.GetHistogram("deepinfer_request_seconds", "From the arrival of a request to its end.")),
      first_token_{&FirstToken(r, "none"), &FirstToken(r, "low"), &FirstToken(r, "high")},
      token_gap_(r.GetHistogram("deepinfer_token_gap_seconds", "Between two tokens of one sample.")),
      prompt_tokens_{&PromptTokens(r, "miss"), &PromptTokens(r, "hit")},
      output_tokens_(r.GetCounter("deepinfer_output_tokens_total", "Tokens delivered.")),
      step_seconds_{&StepSeconds(r, role, "prefill"), &StepSeconds(r, role, "decode")},
      batch_tokens_(r.GetHistogram("deepinfer_batch_tokens", "Tokens of a step.", kTokenBuckets)),
      draft_tokens_(r.GetCounter("deepinfer_spec_draft_tokens_total", "Drafts that were verified.")),
      accepted_tokens_(r.GetCounter("deepinfer_spec_accepted_tokens_total", "Drafts that were accepted.")),
      accept_len_(r.GetHistogram("deepinfer_spec_accept_len", "Tokens that a verified row gave, the sampled one included.", kLengthBuckets)),
      lookup_tokens_{&LookupTokens(r, "miss"), &LookupTokens(r, "hit")},
      evicted_blocks_(r.GetCounter("deepinfer_kv_evicted_blocks_total", "Cached blocks that gave way to new content.", {{"reason", "size"}})) {
  for (size_t i = 0; i < kNumReasons; ++i) {
    const std::string_view name = FinishReasonName(static_cast<FinishReason>(i));
    finish_[i] = i == 0 ? nullptr : &r.GetCounter("deepinfer_finish_total", "Samples that ended.", {{"reason", std::string(name)}});
  }
  r.GetGauge("deepinfer_build_info", "The program; always 1.", {{"version", build.version}, {"git", build.git}, {"backend", build.backend}}).Set(1);
}

void EngineMetrics::OnStep(const StepSample& sample, const StepSample& previous, double kv_usage) {
  requests_running_.Set(static_cast<double>(sample.num_running));
  kv_usage_.Set(kv_usage);
  const int64_t num_tokens = sample.stats.num_lookup_tokens - previous.stats.num_lookup_tokens;
  const int64_t num_hit = sample.stats.num_cached_tokens - previous.stats.num_cached_tokens;
  lookup_tokens_[0]->Add(static_cast<double>(num_tokens - num_hit));
  lookup_tokens_[1]->Add(static_cast<double>(num_hit));
  evicted_blocks_.Add(static_cast<double>(sample.num_evicted_blocks - previous.num_evicted_blocks));
  if (minute_begin_ns_ < 0) minute_begin_ns_ = sample.now_ns;
  if (const int64_t minutes = (sample.now_ns - minute_begin_ns_) / kHitWindowNs; minutes > 0) {
    minutes_[1] = minutes == 1 ? minutes_[0] : Lookups();
    minutes_[0] = Lookups();
    minute_begin_ns_ += minutes * kHitWindowNs;
  }
  minutes_[0].num_tokens += num_tokens;
  minutes_[0].num_hit += num_hit;
  if (const int64_t all = minutes_[0].num_tokens + minutes_[1].num_tokens; all > 0)
    kv_hit_ratio_.Set(static_cast<double>(minutes_[0].num_hit + minutes_[1].num_hit) / static_cast<double>(all));
  const StepTiming& t = sample.timing;
  if (t.kind == StepKind::kNone) return;
  step_seconds_[t.kind == StepKind::kDecode ? 1 : 0]->Observe(1e-9 * static_cast<double>(t.run_end_ns - t.run_begin_ns));
  batch_tokens_.Observe(static_cast<double>(t.num_tokens));
  // Rows that accepted exactly k drafts: those that accepted a k-th one less those that accepted one more.
  int32_t at_least = sample.num_verified[0];
  for (size_t k = 0; k < kMaxDraftPositions && sample.num_verified[k] > 0; ++k) {
    draft_tokens_.Add(sample.num_verified[k]);
    accepted_tokens_.Add(sample.num_accepted[k]);
  }
  for (size_t k = 0; k < kMaxDraftPositions && at_least > 0; ++k) {
    for (int32_t i = sample.num_accepted[k]; i < at_least; ++i) accept_len_.Observe(static_cast<double>(k) + 1);
    at_least = sample.num_accepted[k];
  }
}

void EngineMetrics::OnFirstToken(double seconds, int64_t num_tokens, int64_t num_cached) {
  prompt_tokens_[0]->Add(static_cast<double>(num_tokens - num_cached));
  prompt_tokens_[1]->Add(static_cast<double>(num_cached));
  first_token_[num_cached == 0 ? 0 : 2 * num_cached < num_tokens ? 1 : 2]->Observe(seconds);
}

void EngineMetrics::OnSampleEnd(FinishReason reason) {
  const size_t idx = static_cast<size_t>(reason);
  if (idx < kNumReasons && finish_[idx] != nullptr) finish_[idx]->Add();
}

}  // namespace deepinfer::engine
