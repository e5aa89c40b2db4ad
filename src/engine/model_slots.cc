// SPDX-License-Identifier: Apache-2.0
#include "engine/model_slots.h"

#include "core/check.h"
#include "device/device.h"

namespace deepinfer::engine {

Result<std::unique_ptr<ModelSlots>> ModelSlots::Create(model::Model& model, int64_t num_blocks, int64_t num_slots, int32_t num_records) {
  std::unique_ptr<ModelSlots> slots(new ModelSlots(model));
  DI_ASSIGN_OR_RETURN(const std::vector<int32_t> taken, model.TakeBlocks(num_blocks - 1));
  slots->blocks_.push_back(0);
  slots->blocks_.insert(slots->blocks_.end(), taken.begin(), taken.end());
  // All memory is there before the first request: a step never fails for lack of it.
  slots->slots_.resize(static_cast<size_t>(num_slots));
  for (size_t i = 1; i < slots->slots_.size(); ++i) {
    DI_ASSIGN_OR_RETURN(slots->slots_[i], model.NewSlot());
  }
  slots->records_.resize(static_cast<size_t>(num_records) + 1);
  for (size_t i = 1; i < slots->records_.size() && slots->slots_.size() > 1; ++i) {
    DI_ASSIGN_OR_RETURN(slots->records_[i], model.device().Allocate(slots->slots_[1]->producer_state_bytes()));
  }
  return slots;
}

ModelSlots::~ModelSlots() {
  if (!blocks_.empty()) model_.ReturnBlocks(std::span<const int32_t>(blocks_).subspan(1));
}

void ModelSlots::Bind(int32_t slot, std::span<const int32_t> history, int64_t valid_start, int64_t decoder_floor) {
  At(slot).Bind(history, valid_start, decoder_floor);
}

void ModelSlots::SaveState(int32_t slot, int32_t record) { At(slot).SaveProducerState(records_.at(static_cast<size_t>(record)).data()); }

void ModelSlots::LoadState(int32_t record, int32_t slot) { At(slot).LoadProducerState(records_.at(static_cast<size_t>(record)).data()); }

void ModelSlots::CopyState(int32_t from, int32_t to, int64_t length) {
  const Status status = At(to).CopyStateFrom(At(from), length);
  DI_CHECK(status.ok()) << status.message();
}

void ModelSlots::CopyBlock(int32_t from, int32_t to) {
  model_.CopyBlock(blocks_.at(static_cast<size_t>(from)), blocks_.at(static_cast<size_t>(to)));
}

void ModelSlots::SetBlocks(int32_t slot, int64_t first, std::span<const int32_t> blocks) {
  table_.clear();
  for (const int32_t block : blocks) table_.push_back(blocks_.at(static_cast<size_t>(block)));
  At(slot).SetBlocks(first, table_);
}

void ModelSlots::Truncate(int32_t slot, int64_t length) {
  const Status status = At(slot).Truncate(length);
  DI_CHECK(status.ok()) << status.message();
}

bool ModelSlots::finds_best() const { return model_.device().finds_best(); }

void ModelSlots::PauseDrafts(bool is_paused) { model_.PauseDrafts(is_paused); }

Status ModelSlots::Draft(std::span<const SlotDraft> drafts, int num_drafts, model::DraftChooser& chooser, std::span<int32_t> tokens,
                         std::span<float> confidence_logits) {
  draft_chunks_.clear();
  for (const SlotDraft& draft : drafts) draft_chunks_.push_back({&At(draft.slot), draft.next_token});
  return model_.DraftBatch(draft_chunks_, num_drafts, &chooser, tokens, confidence_logits);
}

Result<std::span<const float>> ModelSlots::Forward(std::span<const SlotChunk> chunks) {
  chunks_.clear();
  for (const SlotChunk& chunk : chunks) {
    model::SequenceChunk& out = chunks_.emplace_back();
    out.sequence = &At(chunk.slot);
    out.ids = chunk.ids;
    out.all_logits = chunk.logits == LogitRows::kAll;
    out.no_logits = chunk.logits == LogitRows::kNone;
    out.write_floor = chunk.write_floor;
    out.greedy = chunk.greedy;
  }
  return model_.Forward(chunks_);
}

}  // namespace deepinfer::engine
