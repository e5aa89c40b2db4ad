// SPDX-License-Identifier: Apache-2.0
//
// The real model behind the generator's seam.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "engine/step_runner.h"
#include "model/model.h"

namespace deepinfer::engine {

class ModelRunner : public StepRunner {
 public:
  // `model` outlives the runner and all its sequences.
  explicit ModelRunner(model::Model& model) : model_(model) {}

  int vocab_size() const override { return model_.config().vocab_size; }
  int64_t max_model_len() const override { return model_.max_model_len(); }
  int64_t longest_model_len() const override { return model_.config().max_position_embeddings; }
  bool has_prompt_logits() const override { return model_.decoder_keep() == 0; }
  Result<std::unique_ptr<RunnerSequence>> NewSequence() override;
  Result<std::span<const float>> Forward(std::span<const StepChunk> chunks) override;

 private:
  model::Model& model_;
  std::vector<model::SequenceChunk> chunks_;
};

}  // namespace deepinfer::engine
