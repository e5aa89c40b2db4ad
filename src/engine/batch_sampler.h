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
};

class BatchSampler : public RowSampler {
 public:
  struct Options {
    LogprobsMode logprobs_mode = LogprobsMode::kProcessed;
    bool compute_sum_smaller_probs = false;
  };
  // `model` outlives the sampler.
  BatchSampler(StepModel& model, int64_t num_slots, Options options);
  ~BatchSampler() override;

  void Begin(int32_t slot) override;
  void Sample(const StepPlan& plan, std::span<const LogitsOfRow> rows, StepResult& result) override;

 private:
  struct SlotCounts {
    bool is_filled = false;  // with the counts of the slot's present sequence
    sampling::TokenCounts counts;
  };
  sampling::TokenCounts& CountsOf(const StepPlan& plan, const StepRow& row, const SampledRequest& request);
  void SampleRow(const StepPlan& plan, const LogitsOfRow& ready, sampling::Sampler& sampler, StepResult& result);
  void PromptLogprobsOf(const LogitsOfRow& ready, const SampledRequest& request, sampling::Sampler& sampler,
                        StepResult::PromptLogprobs& out) const;

  StepModel& model_;
  Options options_;
  std::vector<std::unique_ptr<sampling::Sampler>> samplers_;  // by pool thread
  std::vector<SlotCounts> counts_;
  std::vector<int64_t> prompt_idx_;  // by ready row: index into StepResult::prompt_logprobs, -1 = none
};

}  // namespace deepinfer::engine
