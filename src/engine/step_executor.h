// SPDX-License-Identifier: Apache-2.0
//
// StepExecutor: runs step plans on a StepModel, in order, on the compute thread. It keeps what lives on the device between
// steps: the newest token of every slot, which the next step's rows take as input without asking the host.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/clock.h"
#include "engine/step_model.h"
#include "engine/step_plan.h"

namespace deepinfer::engine {

// A row of a plan whose logits are there.
struct LogitsOfRow {
  int32_t row = 0;
  int64_t first_position = 0;     // position of the token that the first logit row belongs to
  std::span<const float> logits;  // [n, V]: one row, or all rows of the chunk for prompt log probabilities
  bool samples = true;            // false: a chunk in the middle of a prompt, for its log probabilities only
};

// Turns logits into tokens; the second half of a step.
class RowSampler {
 public:
  virtual ~RowSampler() = default;
  // Slot `slot` gets a new sequence: per-slot state of the old one is void.
  virtual void Begin(int32_t slot) = 0;
  // Fills tokens, num_tokens and outcome of the rows. Rows may be split over several calls.
  virtual void Sample(const StepPlan& plan, std::span<const LogitsOfRow> rows, StepResult& result) = 0;
};

class StepExecutor {
 public:
  // All outlive the executor.
  StepExecutor(StepModel& model, RowSampler& sampler, int64_t num_slots, const Clock& clock);

  void Run(const StepPlan& plan, StepResult& result);

 private:
  void RunOps(const StepPlan& plan);
  Status RunRows(const StepPlan& plan, StepResult& result);

  StepModel& model_;
  RowSampler& sampler_;
  const Clock& clock_;
  std::vector<int32_t> last_tokens_;  // by slot

  // Scratch of a step.
  std::vector<SlotChunk> chunks_;
  std::vector<int32_t> chunk_rows_;
  std::vector<int32_t> done_;  // tokens of each row that have run
  std::vector<LogitsOfRow> ready_;
};

}  // namespace deepinfer::engine
