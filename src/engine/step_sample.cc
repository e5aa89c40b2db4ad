// SPDX-License-Identifier: Apache-2.0
#include "engine/step_sample.h"

#include <algorithm>

namespace deepinfer::engine {

void SampleRows(const StepPlan& plan, const model::FlopsModel* flops, bool drops_prompt_rows, StepSample& sample) {
  sample.sum_qk = sample.max_k = 0;
  sample.min_k = plan.rows.empty() ? 0 : plan.rows[0].start + plan.rows[0].num_tokens;
  sample.flops = {};
  for (const StepRow& row : plan.rows) {
    const int64_t q = row.num_tokens, k = row.start + q;
    sample.sum_qk += q * k;
    sample.max_k = std::max(sample.max_k, k);
    sample.min_k = std::min(sample.min_k, k);
    if (flops == nullptr) continue;
    model::FlopsRow counted;
    counted.start = row.start;
    counted.num_tokens = q;
    const bool has_logits = plan.kind == StepKind::kDecode || row.is_last_chunk;
    counted.num_logit_rows = plan.kind == StepKind::kDecode || row.needs_all_rows ? q : has_logits ? 1 : 0;
    const int64_t floor = std::max(row.sequence->decoder_floor, row.sequence->valid_start);
    counted.num_consumer_tokens = drops_prompt_rows ? std::clamp(k - floor, int64_t{has_logits ? 1 : 0}, q) : q;
    flops->Add(counted, sample.flops);
  }
}

void SampleDrafts(const StepPlan& plan, const StepResult& result, StepSample& sample) {
  sample.num_verified.fill(0);
  sample.num_accepted.fill(0);
  sample.num_verify_rows = sample.num_verify_requests = 0;
  sample.confidence_error = 0;
  if (plan.kind != StepKind::kDecode) return;
  sample.confidence_error = result.confidence_error;
  for (size_t i = 0; i < plan.rows.size(); ++i) {
    if (result.num_tokens[i] < 1) continue;
    sample.num_verify_rows += 1 + result.num_verified[i];
    ++sample.num_verify_requests;
    for (int32_t j = 0; j < result.num_verified[i]; ++j) {
      const size_t at = std::min(static_cast<size_t>(j), kMaxDraftPositions - 1);
      ++sample.num_verified[at];
      sample.num_accepted[at] += j + 1 < result.num_tokens[i] ? 1 : 0;
    }
  }
}

void SampleState(const Scheduler& scheduler, int64_t now_ns, StepSample& sample) {
  sample.now_ns = now_ns;
  sample.stats = scheduler.stats();
  sample.num_running = scheduler.num_running() + scheduler.num_prompted();
  sample.num_waiting = scheduler.num_waiting();
  sample.num_partial = scheduler.num_partial();
  sample.num_used_blocks = scheduler.blocks().num_used();
  sample.num_used_slots = scheduler.slots().num_used();
  sample.num_evicted_blocks = scheduler.prefix_cache().num_evicted_blocks();
}

}  // namespace deepinfer::engine
