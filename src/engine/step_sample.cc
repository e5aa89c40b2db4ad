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
