// SPDX-License-Identifier: Apache-2.0
#include "engine/batch_sampler.h"

#include <algorithm>
#include <utility>

#include "core/check.h"

namespace deepinfer::engine {

BatchSampler::BatchSampler(StepModel& model, int64_t num_slots, Options options)
    : model_(model), options_(options), counts_(static_cast<size_t>(num_slots)) {
  for (int i = 0; i < model_.pool().num_threads(); ++i)
    samplers_.push_back(std::make_unique<sampling::Sampler>(model_.vocab_size()));
}

BatchSampler::~BatchSampler() = default;

void BatchSampler::Begin(int32_t slot) { counts_.at(static_cast<size_t>(slot)).is_filled = false; }

sampling::TokenCounts& BatchSampler::CountsOf(const StepPlan& plan, const StepRow& row, const SampledRequest& request) {
  SlotCounts& slot = counts_[static_cast<size_t>(row.state_slot)];
  if (!slot.is_filled) {
    slot.counts = sampling::TokenCounts(model_.vocab_size());
    slot.counts.AddPrompt(request.prompt_ids);
    for (int32_t i = 0; i < row.num_outputs; ++i) slot.counts.AddOutput(plan.ids[static_cast<size_t>(row.outputs_begin + i)]);
    slot.is_filled = true;
  }
  return slot.counts;
}

void BatchSampler::PromptLogprobsOf(const LogitsOfRow& ready, const SampledRequest& request, sampling::Sampler& sampler,
                                    StepResult::PromptLogprobs& out) const {
  const size_t width = static_cast<size_t>(model_.vocab_size());
  out.row = ready.row;
  out.first_position = ready.first_position;
  out.values.clear();
  for (size_t i = 0; i * width < ready.logits.size(); ++i) {
    const size_t next = static_cast<size_t>(ready.first_position) + i + 1;
    if (next >= request.prompt_ids.size()) break;
    const std::span<const float> row = ready.logits.subspan(i * width, width);
    const int32_t id = request.prompt_ids[next];
    float value = kLogprobFloor;
    if (options_.logprobs_mode == LogprobsMode::kRaw) {
      value = sampler.RawLogprob(row, id);
    } else if (const auto logprobs = sampler.Process(row, request.params, {}); logprobs.ok()) {
      value = std::max(logprobs.value()[static_cast<size_t>(id)], kLogprobFloor);
    }
    out.values.push_back(value);
  }
}

void BatchSampler::SampleRow(const StepPlan& plan, const LogitsOfRow& ready, sampling::Sampler& sampler, StepResult& result) {
  const size_t i = static_cast<size_t>(ready.row);
  const StepRow& row = plan.rows[i];
  const SampledRequest& request = *static_cast<const SampledRequest*>(row.user);
  const SamplingParams& params = request.params;
  const int64_t position = row.start + row.num_tokens;
  const int64_t num_output = position - static_cast<int64_t>(request.prompt_ids.size());
  sampling::RowContext context;
  context.seed = request.seed + (row.sequence_id - request.first_id);
  context.position = static_cast<int32_t>(position);
  context.draw_mode = params.seq_seed ? sampling::DrawMode::kRace : sampling::DrawMode::kInverseCdf;
  if (request.allowed_mask != nullptr) context.allowed_mask = *request.allowed_mask;
  if (num_output < params.min_tokens) {
    context.banned_ids = request.end_bans;
  } else if (num_output == 0 && params.first_n_token_no_eos == 1) {
    context.banned_ids = request.first_bans;
  }
  sampling::TokenCounts* counts = params.has_penalties() ? &CountsOf(plan, row, request) : nullptr;
  context.counts = counts;
  if (num_output >= 0 && static_cast<size_t>(num_output) < params.golden_token_ids.size())
    context.forced_id = params.golden_token_ids[static_cast<size_t>(num_output)];
  context.logprobs_mode = options_.logprobs_mode;
  context.compute_sum_smaller_probs = options_.compute_sum_smaller_probs;

  const size_t width = static_cast<size_t>(model_.vocab_size());
  Result<sampling::SampledToken> sampled = sampler.Sample(ready.logits.last(width), params, context);
  if (!sampled.ok()) {
    result.outcome[i] = RowOutcome::kInvalidLogits;
    return;
  }
  sampling::SampledToken& token = sampled.value();
  if (counts != nullptr) counts->AddOutput(token.id);
  result.num_tokens[i] = 1;
  result.tokens[i * static_cast<size_t>(result.stride)] = token.id;
  TokenOutput& out = result.outputs[i];
  out.token_id = token.id;
  out.logprob = token.logprob;
  out.sum_smaller_probs = token.sum_smaller_probs;
  out.top_token_ids = std::move(token.top_ids);
  out.top_logprobs = std::move(token.top_logprobs);
  out.num_output_tokens = num_output + 1;
}

void BatchSampler::Sample(const StepPlan& plan, std::span<const LogitsOfRow> rows, StepResult& result) {
  prompt_idx_.assign(rows.size(), -1);
  for (size_t i = 0; i < rows.size(); ++i) {
    if (!plan.rows[static_cast<size_t>(rows[i].row)].needs_all_rows || plan.kind != StepKind::kPrefill) continue;
    prompt_idx_[i] = static_cast<int64_t>(result.prompt_logprobs.size());
    result.prompt_logprobs.emplace_back();
  }
  model_.pool().ParallelFor(static_cast<int64_t>(rows.size()), [&](int64_t tile, int thread_idx) {
    const LogitsOfRow& ready = rows[static_cast<size_t>(tile)];
    sampling::Sampler& sampler = *samplers_[static_cast<size_t>(thread_idx)];
    if (const int64_t at = prompt_idx_[static_cast<size_t>(tile)]; at >= 0) {
      const auto* request = static_cast<const SampledRequest*>(plan.rows[static_cast<size_t>(ready.row)].user);
      PromptLogprobsOf(ready, *request, sampler, result.prompt_logprobs[static_cast<size_t>(at)]);
    }
    if (ready.samples) SampleRow(plan, ready, sampler, result);
  });
}

}  // namespace deepinfer::engine
