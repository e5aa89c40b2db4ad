// SPDX-License-Identifier: Apache-2.0
#include "engine/model_runner.h"

#include "model/sequence.h"

namespace deepinfer::engine {
namespace {

struct ModelSequence : RunnerSequence {
  explicit ModelSequence(std::unique_ptr<model::Sequence> s) : sequence(std::move(s)) {}
  std::unique_ptr<model::Sequence> sequence;
};

}  // namespace

Result<std::unique_ptr<RunnerSequence>> ModelRunner::NewSequence() {
  DI_ASSIGN_OR_RETURN(std::unique_ptr<model::Sequence> sequence, model_.NewSequence());
  return std::unique_ptr<RunnerSequence>(std::make_unique<ModelSequence>(std::move(sequence)));
}

Result<std::span<const float>> ModelRunner::Forward(std::span<const StepChunk> chunks) {
  chunks_.clear();
  for (const StepChunk& chunk : chunks) {
    model::SequenceChunk& out = chunks_.emplace_back();
    out.sequence = static_cast<ModelSequence*>(chunk.sequence)->sequence.get();
    out.ids = chunk.ids;
    out.known_length = chunk.known_length;
    out.all_logits = chunk.logits == LogitRows::kAll;
    out.no_logits = chunk.logits == LogitRows::kNone;
  }
  return model_.Forward(chunks_);
}

}  // namespace deepinfer::engine
