// SPDX-License-Identifier: Apache-2.0
//
// StepExecutor: runs step plans on a StepModel, in order, on the compute thread. It keeps what lives on the device between
// steps: the newest token of every slot and the drafts behind it, which the next step's rows take as input without asking
// the host. A decode row with drafts is verified in one forward pass: the slot keeps the tokens that were accepted and
// forgets the rest; then all rows draft together.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "core/clock.h"
#include "core/status.h"
#include "engine/lookup_drafter.h"
#include "engine/step_model.h"
#include "engine/step_plan.h"
#include "engine/verify_schedule.h"

namespace deepinfer::engine {

// A row of a plan whose logits are there.
struct LogitsOfRow {
  int32_t row = 0;
  int64_t first_position = 0;     // position of the token that the first logit row belongs to
  // [n, V]: one row and one for each draft, or all rows of a prompt's chunk for its log probabilities.
  std::span<const float> logits;
  // The same of greedy rows (RowSampler::GreedyOf), of which the logits are not there then; else empty.
  std::span<const device::RowBest> bests;
  bool samples = true;            // false: a chunk in the middle of a prompt, for its log probabilities only
  // Decode: the drafts that the logit rows before the last one verify. -1: none there, rejected in any case.
  std::span<const int32_t> drafts;
  std::span<const float> confidences;  // expected acceptance of each draft
};

// A row that drafts.
struct DraftOfRow {
  int32_t row = 0;
  int64_t first_position = 0;        // index that its first draft will have in its sequence
  std::span<const int32_t> drafts;   // those made so far
};

// Turns logits into tokens; the second half of a step.
class RowSampler {
 public:
  virtual ~RowSampler() = default;
  // Slot `slot` gets a new sequence: per-slot state of the old one is void.
  virtual void Begin(int32_t slot) = 0;
  // Fills tokens, num_tokens and outcome of the rows. Rows may be split over several calls.
  virtual void Sample(const StepPlan& plan, std::span<const LogitsOfRow> rows, StepResult& result) = 0;
  // Draws one draft for every row; logits as in model::DraftChooser: a row is vocab_size values, rows lie `stride` apart.
  virtual void SampleDrafts(const StepPlan& plan, std::span<const DraftOfRow> rows, float* logits, int64_t stride,
                            std::span<int32_t> tokens) = 0;
  // Whether the row's tokens follow from the best logits alone, drafts that it verifies included.
  virtual GreedyRow GreedyOf(const StepPlan& plan, const StepRow& row) const {
    (void)plan, (void)row;
    return {};
  }
  // Before the forward pass of a plan: what can be done beside it begins.
  virtual void Prepare(const StepPlan& plan) { (void)plan; }
  // How many of the row's next drafts can be accepted at all, as far as that is known now; at most `count`.
  virtual int NumUsefulDrafts(const StepRow& row, int count) const {
    (void)row;
    return count;
  }
  // The step is complete: its tokens stand, and plan.num_drafts drafts at drafts[slot * stride] for every row that sampled.
  virtual void EndStep(const StepPlan& plan, const StepResult& result, std::span<const int32_t> drafts, int stride) {
    (void)plan, (void)result, (void)drafts, (void)stride;
  }
  // The row's slot has drafts that were not drawn from any distribution.
  virtual void NoteCertainDrafts(const StepRow& row, std::span<const int32_t> drafts) { (void)row, (void)drafts; }
  // The token ends the row's sequence: what is drafted behind it is worth nothing.
  virtual bool IsStopToken(const StepRow& row, int32_t token) const {
    (void)row, (void)token;
    return false;
  }
};

struct DraftOptions {
  int num_drafts = 0;               // of a step at most
  std::vector<float> temperatures;  // of the confidences: none, one, or one for each draft
  bool uses_lookup = false;         // drafts from repeated text where the plan allows them
};

class StepExecutor {
 public:
  // All outlive the executor.
  StepExecutor(StepModel& model, RowSampler& sampler, int64_t num_slots, const Clock& clock, DraftOptions drafts = {});

  void Run(const StepPlan& plan, StepResult& result);

 private:
  void RunOps(const StepPlan& plan);
  Status RunRows(const StepPlan& plan, StepResult& result);
  Status RunDrafts(const StepPlan& plan, StepResult& result);
  std::span<int32_t> DraftsOf(int32_t slot) {
    return std::span(drafts_).subspan(static_cast<size_t>(slot * draft_options_.num_drafts), static_cast<size_t>(draft_options_.num_drafts));
  }
  std::span<float> ConfidencesOf(int32_t slot) {
    return std::span(confidences_)
        .subspan(static_cast<size_t>(slot * draft_options_.num_drafts), static_cast<size_t>(draft_options_.num_drafts));
  }
  float Confidence(float logit, int draft) const;
  // Drafts from repeated text for a row that has sampled; false: there are none that are worth it.
  bool LookUp(const StepPlan& plan, size_t i);
  // Tokens of every row: those of the plan, handed out again where the plan says so.
  void ChooseLengths(const StepPlan& plan);

  StepModel& model_;
  RowSampler& sampler_;
  const Clock& clock_;
  DraftOptions draft_options_;
  std::vector<int32_t> last_tokens_;  // by slot
  std::vector<int32_t> drafts_;       // by slot, -1 = none
  std::vector<float> confidences_;    // by slot
  std::optional<LookupDrafter> lookup_;
  std::vector<uint8_t> is_lookup_;    // by slot: its drafts are not the head's

  // Scratch of a step.
  std::vector<SlotChunk> chunks_;
  std::vector<int32_t> chunk_rows_;
  std::vector<int32_t> lengths_;  // tokens of each row
  std::vector<int32_t> done_;     // those that have run
  std::vector<LogitsOfRow> ready_;
  std::vector<int32_t> row_ids_;  // inputs of decode rows
  std::vector<DraftOfRow> draft_rows_;
  std::vector<SlotDraft> slot_drafts_;
  std::vector<int32_t> draft_tokens_;
  std::vector<float> draft_confidences_;
  VerifyPlanner verify_planner_;
  std::vector<VerifyCandidate> verify_candidates_;
  std::vector<float> rates_;
};

}  // namespace deepinfer::engine
