// SPDX-License-Identifier: Apache-2.0
//
// The real model behind the engine's seam: one model::Sequence per state slot, blocks taken from the model's pool, STATE
// records in device memory.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "device/device.h"
#include "engine/step_model.h"
#include "model/model.h"
#include "model/sequence.h"

namespace deepinfer::engine {

class ModelSlots : public StepModel {
 public:
  // Numbers include the null id 0 (num_records does not). `model` outlives the slots; its other users must be idle while a
  // call runs. Errors: kResourceExhausted.
  ~ModelSlots() override;
  static Result<std::unique_ptr<ModelSlots>> Create(model::Model& model, int64_t num_blocks, int64_t num_slots, int32_t num_records);

  int vocab_size() const override { return model_.config().vocab_size; }
  int64_t max_model_len() const override { return model_.max_model_len(); }
  ThreadPool& pool() override { return model_.device().pool(); }

  void Bind(int32_t slot, std::span<const int32_t> history, int64_t valid_start, int64_t decoder_floor) override;
  void SaveState(int32_t slot, int32_t record) override;
  void LoadState(int32_t record, int32_t slot) override;
  void CopyState(int32_t from, int32_t to, int64_t length) override;
  void CopyBlock(int32_t from, int32_t to) override;
  void SetBlocks(int32_t slot, int64_t first, std::span<const int32_t> blocks) override;
  int64_t length(int32_t slot) const override { return slots_.at(static_cast<size_t>(slot))->length(); }
  void Truncate(int32_t slot, int64_t length) override;
  Result<std::span<const float>> Forward(std::span<const SlotChunk> chunks) override;
  bool finds_best() const override;
  std::span<const device::RowBest> bests() const override { return model_.bests(); }
  int max_drafts() const override { return model_.has_draft_head() ? model_.config().dspark_block_size : 0; }
  void PauseDrafts(bool is_paused) override;
  Status Draft(std::span<const SlotDraft> drafts, int num_drafts, model::DraftChooser& chooser, std::span<int32_t> tokens,
               std::span<float> confidence_logits) override;

 private:
  explicit ModelSlots(model::Model& model) : model_(model) {}
  model::Sequence& At(int32_t slot) { return *slots_.at(static_cast<size_t>(slot)); }

  model::Model& model_;
  std::vector<int32_t> blocks_;  // engine's id -> model's id; 0 -> 0
  std::vector<std::unique_ptr<model::Sequence>> slots_;
  std::vector<device::Buffer> records_;
  std::vector<model::SequenceChunk> chunks_;
  std::vector<model::DraftChunk> draft_chunks_;
  std::vector<int32_t> table_;
};

}  // namespace deepinfer::engine
