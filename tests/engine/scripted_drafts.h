// SPDX-License-Identifier: Apache-2.0
//
// ScriptedDrafts stands in front of a StepModel and replaces its drafts: by what is known to come next, by tokens that are
// wrong for certain, or by nothing in particular. One thread at a time.
#pragma once

#include <algorithm>
#include <span>
#include <unordered_map>
#include <vector>

#include "engine/fake_step_model.h"
#include "engine/step_model.h"

namespace deepinfer::engine {

class ScriptedDrafts : public StepModel {
 public:
  enum class Kind { kTruth, kWrong, kRandom };
  ScriptedDrafts(StepModel& model, int64_t num_slots, Kind kind) : model_(model), kind_(kind), slots_(static_cast<size_t>(num_slots)) {}

  // `output` follows `prompt`.
  void Learn(std::span<const int32_t> prompt, std::span<const int32_t> output) {
    uint64_t hash = 1;
    for (const int32_t id : prompt) hash = HashToken(hash, id);
    for (const int32_t id : output) {
      next_[hash] = id;
      hash = HashToken(hash, id);
    }
  }
  int64_t num_unknown() const { return num_unknown_; }  // places where nothing was known

  int vocab_size() const override { return model_.vocab_size(); }
  int64_t max_model_len() const override { return model_.max_model_len(); }
  ThreadPool& pool() override { return model_.pool(); }
  void Bind(int32_t slot, std::span<const int32_t> history, int64_t valid_start, int64_t decoder_floor) override {
    std::vector<uint64_t>& hashes = At(slot);
    hashes = {1};
    for (const int32_t id : history) hashes.push_back(HashToken(hashes.back(), id));
    model_.Bind(slot, history, valid_start, decoder_floor);
  }
  void SaveState(int32_t slot, int32_t record) override { model_.SaveState(slot, record); }
  void LoadState(int32_t record, int32_t slot) override { model_.LoadState(record, slot); }
  void CopyState(int32_t from, int32_t to, int64_t length) override {
    At(to) = At(from);
    At(to).resize(static_cast<size_t>(length) + 1);
    model_.CopyState(from, to, length);
  }
  void CopyBlock(int32_t from, int32_t to) override { model_.CopyBlock(from, to); }
  void SetBlocks(int32_t slot, int64_t first, std::span<const int32_t> blocks) override { model_.SetBlocks(slot, first, blocks); }
  int64_t length(int32_t slot) const override { return model_.length(slot); }
  void Truncate(int32_t slot, int64_t length) override {
    At(slot).resize(static_cast<size_t>(length) + 1);
    model_.Truncate(slot, length);
  }
  int max_drafts() const override { return kMaxDrafts; }
  void PauseDrafts(bool is_paused) override {
    if (model_.max_drafts() > 0) model_.PauseDrafts(is_paused);
  }
  Result<std::span<const float>> Forward(std::span<const SlotChunk> chunks) override {
    for (const SlotChunk& chunk : chunks)
      for (const int32_t id : chunk.ids) At(chunk.slot).push_back(HashToken(At(chunk.slot).back(), id));
    return model_.Forward(chunks);
  }
  Status Draft(std::span<const SlotDraft> drafts, int num_drafts, model::DraftChooser& chooser, std::span<int32_t> tokens,
               std::span<float> confidence_logits) override {
    const size_t n = drafts.size(), width = static_cast<size_t>(vocab_size()), count = static_cast<size_t>(num_drafts);
    std::vector<uint64_t> hashes;
    for (const SlotDraft& draft : drafts) hashes.push_back(HashToken(At(draft.slot).back(), draft.next_token));
    std::vector<float> logits;
    std::vector<int32_t> chosen(n);
    for (size_t j = 0; j < count; ++j) {
      logits.assign(n * width, 0.0f);
      for (size_t i = 0; i < n; ++i) {
        size_t wanted = (hashes[i] >> 9) % width;
        if (const auto it = next_.find(hashes[i]); kind_ != Kind::kRandom && it != next_.end()) {
          wanted = static_cast<size_t>(it->second);
          if (kind_ == Kind::kWrong) wanted = (wanted + 1) % width;
        } else {
          ++num_unknown_;
        }
        logits[i * width + wanted] = 100.0f;
        confidence_logits[i * count + j] = static_cast<float>(static_cast<int>(hashes[i] % 9) - 4);
      }
      chooser.Choose(static_cast<int>(j), logits.data(), static_cast<int64_t>(width), chosen);
      for (size_t i = 0; i < n; ++i) {
        tokens[i * count + j] = chosen[i];
        hashes[i] = HashToken(hashes[i], chosen[i]);
      }
    }
    return Status::Ok();
  }

 private:
  static constexpr int kMaxDrafts = 5;
  std::vector<uint64_t>& At(int32_t slot) { return slots_.at(static_cast<size_t>(slot)); }

  StepModel& model_;
  Kind kind_;
  std::vector<std::vector<uint64_t>> slots_;  // hashes of every prefix, the empty one first
  std::unordered_map<uint64_t, int32_t> next_;
  int64_t num_unknown_ = 0;
};

}  // namespace deepinfer::engine
