// SPDX-License-Identifier: Apache-2.0
//
// BestFinder stands in front of a StepModel and treats greedy rows as a GPU does: it finds what their choices need, and their
// logits are gone (NaN). One thread at a time.
#pragma once

#include <algorithm>
#include <limits>
#include <span>
#include <vector>

#include "engine/step_model.h"
#include "sampling/draw.h"
#include "sampling/row_ops.h"

namespace deepinfer::engine {

class BestFinder : public StepModel {
 public:
  explicit BestFinder(StepModel& model) : model_(model) {}
  int64_t num_found() const { return num_found_; }  // rows
  int64_t num_best_passes() const { return num_best_passes_; }  // draft passes that asked nobody

  int vocab_size() const override { return model_.vocab_size(); }
  int64_t max_model_len() const override { return model_.max_model_len(); }
  ThreadPool& pool() override { return model_.pool(); }
  void Bind(int32_t slot, std::span<const int32_t> history, int64_t valid_start, int64_t decoder_floor) override {
    model_.Bind(slot, history, valid_start, decoder_floor);
  }
  void SaveState(int32_t slot, int32_t record) override { model_.SaveState(slot, record); }
  void LoadState(int32_t record, int32_t slot) override { model_.LoadState(record, slot); }
  void CopyState(int32_t from, int32_t to, int64_t length) override { model_.CopyState(from, to, length); }
  void CopyBlock(int32_t from, int32_t to) override { model_.CopyBlock(from, to); }
  void SetBlocks(int32_t slot, int64_t first, std::span<const int32_t> blocks) override { model_.SetBlocks(slot, first, blocks); }
  int64_t length(int32_t slot) const override { return model_.length(slot); }
  void Truncate(int32_t slot, int64_t length) override { model_.Truncate(slot, length); }
  int max_drafts() const override { return model_.max_drafts(); }
  void PauseDrafts(bool is_paused) override { model_.PauseDrafts(is_paused); }

  bool finds_best() const override { return true; }
  std::span<const device::RowBest> bests() const override { return bests_; }
  Result<std::span<const float>> Forward(std::span<const SlotChunk> chunks) override {
    bests_.clear();
    DI_ASSIGN_OR_RETURN(const std::span<const float> logits, model_.Forward(chunks));
    logits_.assign(logits.begin(), logits.end());
    const auto width = static_cast<size_t>(vocab_size());
    const sampling::RowOps& ops = sampling::GetRowOps();
    std::vector<float> lanes(static_cast<size_t>(sampling::NumLanes(vocab_size())));
    size_t row = 0;
    bool has_best = false;
    for (const SlotChunk& chunk : chunks) {
      const size_t count = chunk.logits == LogitRows::kNone ? 0 : chunk.logits == LogitRows::kAll ? chunk.ids.size() : 1;
      for (size_t end = row + count; row < end; ++row) {
        device::RowBest& best = bests_.emplace_back();
        if (!chunk.greedy.is_greedy) continue;
        const std::span<float> values = std::span(logits_).subspan(row * width, width);
        if (chunk.greedy.mask != nullptr) ops.apply_mask(values.data(), vocab_size(), chunk.greedy.mask->data());
        best.max = *std::max_element(values.begin(), values.end());
        best.id = static_cast<int32_t>(ops.find_equal(values.data(), vocab_size(), best.max));
        best.sum_exp = ops.sum_exp(values.data(), vocab_size(), best.max, chunk.greedy.inverse_temperature, lanes.data(), static_cast<int>(lanes.size()));
        std::ranges::fill(values, std::numeric_limits<float>::quiet_NaN());
        has_best = true;
        ++num_found_;
      }
    }
    if (!has_best) bests_.clear();
    return std::span<const float>(logits_);
  }
  Status Draft(std::span<const SlotDraft> drafts, int num_drafts, model::DraftChooser& chooser, std::span<int32_t> tokens,
               std::span<float> confidence_logits) override {
    std::vector<const std::vector<uint32_t>*> masks;
    if (!chooser.TakesBest(masks)) return model_.Draft(drafts, num_drafts, chooser, tokens, confidence_logits);
    class Best : public model::DraftChooser {
     public:
      Best(int width, std::span<const std::vector<uint32_t>* const> masks) : width_(width), masks_(masks) {}
      void Choose(int, float* logits, int64_t stride, std::span<int32_t> chosen) override {
        for (size_t i = 0; i < chosen.size(); ++i) {
          float* row = logits + static_cast<int64_t>(i) * stride;
          if (masks_[i] != nullptr) sampling::GetRowOps().apply_mask(row, width_, masks_[i]->data());
          chosen[i] = static_cast<int32_t>(std::max_element(row, row + width_) - row);
        }
      }

     private:
      int width_;
      std::span<const std::vector<uint32_t>* const> masks_;
    } best(vocab_size(), masks);
    ++num_best_passes_;
    return model_.Draft(drafts, num_drafts, best, tokens, confidence_logits);
  }

 private:
  StepModel& model_;
  std::vector<float> logits_;
  std::vector<device::RowBest> bests_;
  int64_t num_found_ = 0, num_best_passes_ = 0;
};

}  // namespace deepinfer::engine
