// SPDX-License-Identifier: Apache-2.0
#include "engine/batch_sampler.h"

#include <algorithm>
#include <utility>

#include "core/check.h"
#include "sampling/philox.h"

namespace deepinfer::engine {

BatchSampler::BatchSampler(StepModel& model, int64_t num_slots, Options options)
    : model_(model), options_(options), counts_(static_cast<size_t>(num_slots)), draft_logprobs_(static_cast<size_t>(num_slots)) {
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

sampling::RowContext BatchSampler::ContextOf(const StepRow& row, const SampledRequest& request, int64_t position,
                                             sampling::TokenCounts* counts, std::span<const int32_t> drafts_before) const {
  const SamplingParams& params = request.params;
  const int64_t num_output = position - static_cast<int64_t>(request.prompt_ids.size());
  sampling::RowContext context;
  context.seed = request.seed + (row.sequence_id - request.first_id);
  context.position = static_cast<int32_t>(position);
  context.draw_mode = IsExact(request) ? sampling::DrawMode::kRace : sampling::DrawMode::kInverseCdf;
  if (request.allowed_mask != nullptr) context.allowed_mask = *request.allowed_mask;
  if (num_output < params.min_tokens) {
    context.banned_ids = request.end_bans;
  } else if (num_output == 0 && params.first_n_token_no_eos == 1) {
    context.banned_ids = request.first_bans;
  }
  context.counts = counts;
  context.drafts_before = drafts_before;
  if (num_output >= 0 && static_cast<size_t>(num_output) < params.golden_token_ids.size())
    context.forced_id = params.golden_token_ids[static_cast<size_t>(num_output)];
  context.logprobs_mode = options_.logprobs_mode;
  context.compute_sum_smaller_probs = options_.compute_sum_smaller_probs;
  return context;
}

std::span<float> BatchSampler::DraftLogprobs(int32_t slot, size_t draft) {
  const size_t width = static_cast<size_t>(model_.vocab_size());
  std::vector<float>& all = draft_logprobs_[static_cast<size_t>(slot)];
  if (all.empty()) all.resize(static_cast<size_t>(options_.num_drafts) * width);
  return std::span(all).subspan(draft * width, width);
}

bool BatchSampler::IsStopToken(const StepRow& row, int32_t token) const {
  const SampledRequest& request = *static_cast<const SampledRequest*>(row.user);
  const auto& stops = request.params.ignore_eos ? request.params.stop_token_ids : request.end_bans;
  return std::find(stops.begin(), stops.end(), token) != stops.end();
}

void BatchSampler::SampleRow(const StepPlan& plan, const LogitsOfRow& ready, sampling::Sampler& sampler, StepResult& result) {
  const size_t i = static_cast<size_t>(ready.row), stride = static_cast<size_t>(result.stride);
  const StepRow& row = plan.rows[i];
  const SampledRequest& request = *static_cast<const SampledRequest*>(row.user);
  const SamplingParams& params = request.params;
  const size_t width = static_cast<size_t>(model_.vocab_size()), num_rows = ready.drafts.size() + 1;
  const std::span<const float> logits = ready.logits.last(num_rows * width);
  const int64_t base = ready.first_position + static_cast<int64_t>(ready.logits.size() / width - num_rows) + 1;
  sampling::TokenCounts* const counts = params.has_penalties() ? &CountsOf(plan, row, request) : nullptr;
  for (size_t j = 0; j < num_rows; ++j) {
    const int64_t position = base + static_cast<int64_t>(j);
    sampling::RowContext context = ContextOf(row, request, position, counts, ready.drafts.first(j));
    // By rejection a row's stream must not be that of the next step's first row.
    if (!IsExact(request)) context.position = static_cast<int32_t>(base + static_cast<int64_t>(j) * sampling::kRowPositionStride);
    context.verifies = j < ready.drafts.size();
    if (context.verifies) {
      context.draft_id = ready.drafts[j];
      if (context.draft_id >= 0 && !IsExact(request) && !params.is_greedy()) context.draft_logprobs = DraftLogprobs(row.state_slot, j);
    }
    Result<sampling::SampledToken> sampled = sampler.Sample(logits.subspan(j * width, width), params, context);
    if (!sampled.ok()) {
      // Tokens before this one stand; the row fails when it comes to be the first of a step.
      if (j == 0) result.outcome[i] = RowOutcome::kInvalidLogits;
      break;
    }
    sampling::SampledToken& token = sampled.value();
    result.tokens[i * stride + j] = token.id;
    result.num_tokens[i] = static_cast<int32_t>(j) + 1;
    TokenOutput& out = result.outputs[i * stride + j];
    out.token_id = token.id;
    out.logprob = token.logprob;
    out.sum_smaller_probs = token.sum_smaller_probs;
    out.top_token_ids = std::move(token.top_ids);
    out.top_logprobs = std::move(token.top_logprobs);
    out.num_output_tokens = position - static_cast<int64_t>(request.prompt_ids.size()) + 1;
    if (context.verifies && context.draft_id >= 0) {
      const float error = std::abs(token.estimated_acceptance - ready.confidences[j]);
      row_errors_[static_cast<size_t>(&ready - ready_begin_)] += static_cast<double>(error);
    }
    if (!context.verifies || !token.is_accepted) break;
  }
  if (counts == nullptr) return;
  for (int32_t j = 0; j < result.num_tokens[i]; ++j) counts->AddOutput(result.tokens[i * stride + static_cast<size_t>(j)]);
}

void BatchSampler::SampleDrafts(const StepPlan& plan, std::span<const DraftOfRow> rows, float* logits, int64_t stride,
                                std::span<int32_t> tokens) {
  model_.pool().ParallelFor(static_cast<int64_t>(rows.size()), [&](int64_t tile, int thread_idx) {
    const DraftOfRow& draft = rows[static_cast<size_t>(tile)];
    const StepRow& row = plan.rows[static_cast<size_t>(draft.row)];
    const SampledRequest& request = *static_cast<const SampledRequest*>(row.user);
    sampling::Sampler& sampler = *samplers_[static_cast<size_t>(thread_idx)];
    const size_t j = draft.drafts.size(), width = static_cast<size_t>(model_.vocab_size());
    const std::span<const float> row_logits(logits + tile * stride, width);
    sampling::TokenCounts* const counts = request.params.has_penalties() ? &CountsOf(plan, row, request) : nullptr;
    sampling::RowContext context =
        ContextOf(row, request, draft.first_position + static_cast<int64_t>(j), counts, draft.drafts);
    context.forced_id = -1;
    context.only_token = true;
    // Common random numbers make exact verification accept often; rejection needs a stream of its own.
    if (!IsExact(request)) context.seed += sampling::kDraftSeedOffset;
    const Result<sampling::SampledToken> sampled = sampler.Sample(row_logits, request.params, context);
    tokens[static_cast<size_t>(tile)] = sampled.ok() ? sampled->id : 0;
    if (IsExact(request) || request.params.is_greedy()) return;
    const std::span<float> kept = DraftLogprobs(row.state_slot, j);
    if (sampled.ok()) {
      std::ranges::copy(sampler.logprobs(), kept.begin());
    } else {
      std::ranges::fill(kept, 0.0f);  // accepted with the target's own probability at most
    }
  });
}

void BatchSampler::Sample(const StepPlan& plan, std::span<const LogitsOfRow> rows, StepResult& result) {
  prompt_idx_.assign(rows.size(), -1);
  row_errors_.assign(rows.size(), 0.0);
  ready_begin_ = rows.data();
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
  for (const double error : row_errors_) result.confidence_error += error;
}

}  // namespace deepinfer::engine
