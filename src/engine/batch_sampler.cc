// SPDX-License-Identifier: Apache-2.0
#include "engine/batch_sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "core/check.h"
#include "core/log.h"
#include "sampling/philox.h"

namespace deepinfer::engine {
namespace {

bool IsSampling(const StepPlan& plan, const StepRow& row) { return plan.kind == StepKind::kDecode || row.is_last_chunk; }

GrammarMaskOptions MaskOptions(BatchSampler::Options options) {
  options.grammar.num_drafts = options.num_drafts;
  return options.grammar;
}

// Whether a token is left that the masks and the list allow and that is not in `banned`.
bool AnyAllowed(const sampling::RowContext& context, const SamplingParams& params, std::span<const int32_t> banned, int vocab_size) {
  const auto is_allowed = [&](int32_t id) {
    const auto has = [id](std::span<const uint32_t> mask) {
      return mask.empty() || (mask[static_cast<size_t>(id) >> 5] >> (id & 31) & 1u) != 0;
    };
    return has(context.grammar_mask) && has(context.allowed_mask) && std::find(banned.begin(), banned.end(), id) == banned.end();
  };
  if (params.allowed_token_ids) return std::any_of(params.allowed_token_ids->begin(), params.allowed_token_ids->end(), is_allowed);
  for (int32_t base = 0; base < vocab_size; base += 32) {
    if (context.grammar_mask[static_cast<size_t>(base) >> 5] == 0) continue;
    for (int32_t id = base; id < std::min(base + 32, vocab_size); ++id) {
      if (is_allowed(id)) return true;
    }
  }
  return false;
}

}  // namespace

BatchSampler::BatchSampler(StepModel& model, int64_t num_slots, Options options)
    : model_(model),
      options_(options),
      counts_(static_cast<size_t>(num_slots)),
      masks_(model.vocab_size(), num_slots, MaskOptions(options)),
      draft_logprobs_(static_cast<size_t>(num_slots)) {
  for (int i = 0; i < model_.pool().num_threads(); ++i)
    samplers_.push_back(std::make_unique<sampling::Sampler>(model_.vocab_size()));
}

BatchSampler::~BatchSampler() = default;

void BatchSampler::Begin(int32_t slot) {
  counts_.at(static_cast<size_t>(slot)).is_filled = false;
  masks_.Begin(slot);
}

void BatchSampler::Prepare(const StepPlan& plan) {
  for (const StepRow& row : plan.rows) {
    const SampledRequest& request = *static_cast<const SampledRequest*>(row.user);
    if (request.grammar == nullptr || !IsSampling(plan, row) || masks_.has(row.state_slot)) continue;
    masks_.Start(row.state_slot, request.grammar, row.sequence_id,
                 std::span<const int32_t>(plan.ids).subspan(static_cast<size_t>(row.outputs_begin), static_cast<size_t>(row.num_outputs)));
  }
  masks_.Launch();
}

void BatchSampler::EndStep(const StepPlan& plan, const StepResult& result, std::span<const int32_t> drafts, int stride) {
  for (size_t i = 0; i < plan.rows.size(); ++i) {
    const StepRow& row = plan.rows[i];
    if (result.num_tokens[i] < 1 || !masks_.has(row.state_slot)) continue;
    const size_t begin = i * static_cast<size_t>(result.stride), slot = static_cast<size_t>(row.state_slot);
    masks_.Continue(row.state_slot, std::span(result.tokens).subspan(begin, static_cast<size_t>(result.num_tokens[i])),
                    drafts.subspan(slot * static_cast<size_t>(stride), static_cast<size_t>(stride)));
  }
  masks_.Launch();
}

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

void BatchSampler::NoteCertainDrafts(const StepRow& row, std::span<const int32_t> drafts) {
  const SampledRequest& request = *static_cast<const SampledRequest*>(row.user);
  if (IsExact(request) || request.params.is_greedy()) return;
  for (size_t j = 0; j < drafts.size(); ++j) {
    const std::span<float> logprobs = DraftLogprobs(row.state_slot, j);
    std::ranges::fill(logprobs, -std::numeric_limits<float>::infinity());
    logprobs[static_cast<size_t>(drafts[j])] = 0.0f;
  }
}

bool BatchSampler::IsStopToken(const StepRow& row, int32_t token) const {
  const SampledRequest& request = *static_cast<const SampledRequest*>(row.user);
  const auto& stops = request.params.ignore_eos ? request.params.stop_token_ids : request.end_bans;
  return std::find(stops.begin(), stops.end(), token) != stops.end();
}

void BatchSampler::FailConstraint(size_t row, int32_t slot, std::string message, StepResult& result) {
  masks_.Fail(slot, std::move(message));
  result.outcome[row] = RowOutcome::kConstraintFailed;
  TokenOutput& out = result.outputs[row * static_cast<size_t>(result.stride)];
  out = TokenOutput();
  out.token_id = 0;
}

GreedyRow BatchSampler::GreedyOf(const StepPlan&, const StepRow& row) const {
  const SampledRequest& request = *static_cast<const SampledRequest*>(row.user);
  const SamplingParams& params = request.params;
  if (!params.is_greedy() || params.has_penalties() || params.allowed_token_ids || !params.logit_bias.empty() || request.grammar != nullptr ||
      params.top_logprobs > 0 || params.min_tokens > 0 || params.first_n_token_no_eos == 1 || !params.golden_token_ids.empty() ||
      options_.compute_sum_smaller_probs || options_.logprobs_mode != LogprobsMode::kProcessed)
    return {};
  return {.is_greedy = true, .inverse_temperature = sampling::InverseTemperature(params), .mask = request.allowed_mask.get()};
}

void BatchSampler::SampleGreedyRow(const StepPlan& plan, const LogitsOfRow& ready, StepResult& result) {
  const size_t i = static_cast<size_t>(ready.row), stride = static_cast<size_t>(result.stride);
  const SampledRequest& request = *static_cast<const SampledRequest*>(plan.rows[i].user);
  const size_t num_drafts = ready.drafts.size();
  const std::span<const device::RowBest> bests = ready.bests.last(num_drafts + 1);
  const int64_t base = ready.first_position + static_cast<int64_t>(ready.bests.size() - num_drafts);
  for (size_t j = 0; j <= num_drafts; ++j) {
    const device::RowBest& best = bests[j];
    if (!std::isfinite(best.max) || !std::isfinite(best.sum_exp)) {
      // Tokens before this one stand; the row fails when it comes to be the first of a step.
      if (j == 0) result.outcome[i] = RowOutcome::kInvalidLogits;
      break;
    }
    result.tokens[i * stride + j] = best.id;
    result.num_tokens[i] = static_cast<int32_t>(j) + 1;
    TokenOutput& out = result.outputs[i * stride + j];
    out.token_id = best.id;
    out.logprob = std::max(0.0f - sampling::Log(best.sum_exp), kLogprobFloor);
    out.sum_smaller_probs = -1;
    out.top_token_ids.clear();
    out.top_logprobs.clear();
    out.num_output_tokens = base + static_cast<int64_t>(j) - static_cast<int64_t>(request.prompt_ids.size()) + 1;
    if (j == num_drafts) break;
    const bool is_accepted = ready.drafts[j] == best.id;
    if (ready.drafts[j] >= 0)
      row_errors_[static_cast<size_t>(&ready - ready_begin_)] += static_cast<double>(std::abs((is_accepted ? 1.0f : 0.0f) - ready.confidences[j]));
    if (!is_accepted) break;
  }
}

void BatchSampler::SampleRow(const StepPlan& plan, const LogitsOfRow& ready, sampling::Sampler& sampler, StepResult& result) {
  const size_t i = static_cast<size_t>(ready.row), stride = static_cast<size_t>(result.stride);
  const StepRow& row = plan.rows[i];
  const SampledRequest& request = *static_cast<const SampledRequest*>(row.user);
  const SamplingParams& params = request.params;
  const size_t width = static_cast<size_t>(model_.vocab_size()), num_rows = ready.drafts.size() + 1;
  const std::span<const float> logits = ready.logits.last(num_rows * width);
  const bool has_grammar = masks_.has(row.state_slot);
  size_t num_drafts = ready.drafts.size();
  if (has_grammar) {
    if (const std::string& failure = masks_.failure(row.state_slot); !failure.empty()) {
      FailConstraint(i, row.state_slot, {}, result);
      return;
    }
    // Rows behind a draft that the grammar refuses count for nothing, whether they were computed or not.
    num_drafts = std::min(num_drafts, static_cast<size_t>(masks_.num_legal(row.state_slot)));
  }
  const int64_t base = ready.first_position + static_cast<int64_t>(ready.logits.size() / width - num_rows) + 1;
  sampling::TokenCounts* const counts = params.has_penalties() ? &CountsOf(plan, row, request) : nullptr;
  for (size_t j = 0; j <= num_drafts; ++j) {
    const int64_t position = base + static_cast<int64_t>(j);
    sampling::RowContext context = ContextOf(row, request, position, counts, ready.drafts.first(j));
    if (has_grammar) {
      context.grammar_mask = masks_.Mask(row.state_slot, static_cast<int>(j));
      // A complete text has to end, however few tokens it took.
      if (!context.grammar_mask.empty() && !context.banned_ids.empty() &&
          !AnyAllowed(context, params, context.banned_ids, model_.vocab_size()))
        context.banned_ids = {};
    }
    // By rejection a row's stream must not be that of the next step's first row.
    if (!IsExact(request)) context.position = static_cast<int32_t>(base + static_cast<int64_t>(j) * sampling::kRowPositionStride);
    context.verifies = j < num_drafts;
    if (context.verifies) {
      context.draft_id = ready.drafts[j];
      if (context.draft_id >= 0 && !IsExact(request) && !params.is_greedy()) context.draft_logprobs = DraftLogprobs(row.state_slot, j);
    }
    Result<sampling::SampledToken> sampled = sampler.Sample(logits.subspan(j * width, width), params, context);
    if (!sampled.ok()) {
      // Tokens before this one stand; the row fails when it comes to be the first of a step.
      if (j > 0) break;
      result.outcome[i] = RowOutcome::kInvalidLogits;
      if (!context.grammar_mask.empty() && !AnyAllowed(context, params, context.banned_ids, model_.vocab_size()))
        FailConstraint(i, row.state_slot, "no token is allowed by both the grammar and the request's other limits", result);
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
  masks_.Wait();
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
    if (ready.samples && !ready.bests.empty()) {
      SampleGreedyRow(plan, ready, result);
    } else if (ready.samples) {
      SampleRow(plan, ready, sampler, result);
    }
  });
  for (const double error : row_errors_) result.confidence_error += error;
}

}  // namespace deepinfer::engine
