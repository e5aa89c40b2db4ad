// SPDX-License-Identifier: Apache-2.0
//
// BatchSampler: the sampling half of a step for all its rows, spread over the compute pool. Row results depend on the row's
// logits, its request and its position only. Penalty counts live here, by state slot, updated by the sampler itself, so
// asynchronous steps never wait for the host. Called by the compute thread.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "deepinfer/output.h"
#include "deepinfer/sampling_params.h"
#include "engine/grammar_masks.h"
#include "engine/step_executor.h"
#include "sampling/sampler.h"

namespace deepinfer::engine {

// What the sampler needs of a request; SequenceSpec::user points to it. Fixed once the request is submitted.
struct SampledRequest {
  uint64_t first_id = 0;  // sequence id of sample 0; sample i has first_id + i and the seed `seed + i`
  std::vector<int32_t> prompt_ids;
  SamplingParams params;  // valid and normalized
  uint64_t seed = 0;
  std::shared_ptr<const std::vector<uint32_t>> allowed_mask;  // one bit per id; null = all
  std::vector<int32_t> end_bans;    // while fewer than min_tokens were generated
  std::vector<int32_t> first_bans;  // of the first token if first_n_token_no_eos
  std::shared_ptr<RequestGrammar> grammar;  // of so_args; compiled before the request is scheduled
};

class BatchSampler : public RowSampler {
 public:
  struct Options {
    LogprobsMode logprobs_mode = LogprobsMode::kProcessed;
    bool compute_sum_smaller_probs = false;
    int num_drafts = 0;
    // Every request draws by exponential race, so that speculation changes no token; else those with an explicit seed only.
    bool is_exact = false;
    GrammarMaskOptions grammar;  // its num_drafts is filled in
  };
  // `model` outlives the sampler.
  BatchSampler(StepModel& model, int64_t num_slots, Options options);
  ~BatchSampler() override;

  void Begin(int32_t slot) override;
  void Prepare(const StepPlan& plan) override;
  GreedyRow GreedyOf(const StepPlan& plan, const StepRow& row) const override;
  int NumUsefulDrafts(const StepRow& row, int count) const override { return masks_.NumUsefulDrafts(row.state_slot, count); }
  void Sample(const StepPlan& plan, std::span<const LogitsOfRow> rows, StepResult& result) override;
  void SampleDrafts(const StepPlan& plan, std::span<const DraftOfRow> rows, float* logits, int64_t stride,
                    std::span<int32_t> tokens) override;
  void EndStep(const StepPlan& plan, const StepResult& result, std::span<const int32_t> drafts, int stride) override;
  void NoteCertainDrafts(const StepRow& row, std::span<const int32_t> drafts) override;
  bool IsStopToken(const StepRow& row, int32_t token) const override;

 private:
  struct SlotCounts {
    bool is_filled = false;  // with the counts of the slot's present sequence
    sampling::TokenCounts counts;
  };
  sampling::TokenCounts& CountsOf(const StepPlan& plan, const StepRow& row, const SampledRequest& request);
  // Of the token with that index in its sequence; masks, penalties and bans of that place.
  sampling::RowContext ContextOf(const StepRow& row, const SampledRequest& request, int64_t position, sampling::TokenCounts* counts,
                                 std::span<const int32_t> drafts_before) const;
  bool IsExact(const SampledRequest& request) const { return options_.is_exact || request.params.seq_seed.has_value(); }
  // Of rows with bests.
  void SampleGreedyRow(const StepPlan& plan, const LogitsOfRow& ready, StepResult& result);
  void SampleRow(const StepPlan& plan, const LogitsOfRow& ready, sampling::Sampler& sampler, StepResult& result);
  // The row's sequence has no token that everything it asks for allows: ends it.
  void FailConstraint(size_t row, int32_t slot, std::string message, StepResult& result);
  // Log probabilities of the distribution that a draft of the slot was drawn from, [V].
  std::span<float> DraftLogprobs(int32_t slot, size_t draft);
  void PromptLogprobsOf(const LogitsOfRow& ready, const SampledRequest& request, sampling::Sampler& sampler,
                        StepResult::PromptLogprobs& out) const;

  StepModel& model_;
  Options options_;
  std::vector<std::unique_ptr<sampling::Sampler>> samplers_;  // by pool thread
  std::vector<SlotCounts> counts_;
  GrammarMasks masks_;
  std::vector<std::vector<float>> draft_logprobs_;  // by slot, [num_drafts, V]; empty until a request needs them
  std::vector<double> row_errors_;                  // by ready row: confidence error of its drafts
  const LogitsOfRow* ready_begin_ = nullptr;
  std::vector<int64_t> prompt_idx_;  // by ready row: index into StepResult::prompt_logprobs, -1 = none
};

}  // namespace deepinfer::engine
