// SPDX-License-Identifier: Apache-2.0
//
// LogitsLedger: a hash of every logit row that any run computed, by the tokens before it. A second run of the same tokens
// has to give the same bits, whoever its neighbours are. LedgerModel stands in front of a StepModel and enters every row.
// One thread at a time.
#pragma once

#include <algorithm>
#include <string_view>
#include <unordered_map>
#include <vector>

#include <gtest/gtest.h>

#include "engine/fake_step_model.h"
#include "engine/step_model.h"

namespace deepinfer::engine {

class LogitsLedger {
 public:
  // Window keys below `valid_start` do not exist, and below `decoder_floor` not in the consumer half: rows are comparable
  // where both agree.
  void Enter(uint64_t tokens_hash, int64_t num_tokens, int64_t valid_start, int64_t decoder_floor, std::span<const float> row) {
    uint64_t key = HashToken(HashToken(tokens_hash, static_cast<int32_t>(valid_start)), static_cast<int32_t>(std::max(valid_start, decoder_floor)));
    key = HashToken(key, static_cast<int32_t>(num_tokens));
    const size_t hash = std::hash<std::string_view>{}({reinterpret_cast<const char*>(row.data()), row.size_bytes()});
    const auto [it, is_new] = rows_.emplace(key, hash);
    if (is_new) return;
    ++num_compared_;
    if (it->second == hash) return;
    // A broken kernel breaks thousands of rows: say so once in a while.
    if (++num_different_ <= 5) ADD_FAILURE() << "other logits after the same " << num_tokens << " tokens";
  }
  void Enter(std::span<const int32_t> tokens, int64_t valid_start, int64_t decoder_floor, std::span<const float> row) {
    uint64_t hash = 1;
    for (const int32_t id : tokens) hash = HashToken(hash, id);
    Enter(hash, static_cast<int64_t>(tokens.size()), valid_start, decoder_floor, row);
  }

  int64_t num_rows() const { return static_cast<int64_t>(rows_.size()); }
  int64_t num_compared() const { return num_compared_; }
  int64_t num_different() const { return num_different_; }

 private:
  std::unordered_map<uint64_t, size_t> rows_;
  int64_t num_compared_ = 0, num_different_ = 0;
};

class LedgerModel : public StepModel {
 public:
  LedgerModel(StepModel& model, LogitsLedger& ledger, int64_t num_slots)
      : model_(model), ledger_(ledger), slots_(static_cast<size_t>(num_slots)) {}

  int vocab_size() const override { return model_.vocab_size(); }
  int64_t max_model_len() const override { return model_.max_model_len(); }
  ThreadPool& pool() override { return model_.pool(); }

  void Bind(int32_t slot, std::span<const int32_t> history, int64_t valid_start, int64_t decoder_floor) override {
    Slot& s = slots_.at(static_cast<size_t>(slot));
    s.hashes = {1};
    for (const int32_t id : history) s.hashes.push_back(HashToken(s.hashes.back(), id));
    s.valid_start = valid_start;
    s.decoder_floor = decoder_floor;
    model_.Bind(slot, history, valid_start, decoder_floor);
  }
  void SaveState(int32_t slot, int32_t record) override { model_.SaveState(slot, record); }
  void LoadState(int32_t record, int32_t slot) override { model_.LoadState(record, slot); }
  void CopyState(int32_t from, int32_t to, int64_t length) override {
    Slot copy = slots_.at(static_cast<size_t>(from));
    copy.hashes.resize(static_cast<size_t>(length) + 1);
    slots_.at(static_cast<size_t>(to)) = std::move(copy);
    model_.CopyState(from, to, length);
  }
  void CopyBlock(int32_t from, int32_t to) override { model_.CopyBlock(from, to); }
  void SetBlocks(int32_t slot, int64_t first, std::span<const int32_t> blocks) override { model_.SetBlocks(slot, first, blocks); }

  int64_t length(int32_t slot) const override { return model_.length(slot); }
  void Truncate(int32_t slot, int64_t length) override {
    slots_.at(static_cast<size_t>(slot)).hashes.resize(static_cast<size_t>(length) + 1);
    model_.Truncate(slot, length);
  }
  int max_drafts() const override { return model_.max_drafts(); }
  Status Draft(std::span<const SlotDraft> drafts, int num_drafts, model::DraftChooser& chooser, std::span<int32_t> tokens,
               std::span<float> confidence_logits) override {
    return model_.Draft(drafts, num_drafts, chooser, tokens, confidence_logits);
  }
  void PauseDrafts(bool is_paused) override { model_.PauseDrafts(is_paused); }

  Result<std::span<const float>> Forward(std::span<const SlotChunk> chunks) override {
    DI_ASSIGN_OR_RETURN(const std::span<const float> logits, model_.Forward(chunks));
    const size_t width = static_cast<size_t>(vocab_size());
    size_t at = 0;
    for (const SlotChunk& chunk : chunks) {
      Slot& s = slots_.at(static_cast<size_t>(chunk.slot));
      for (size_t i = 0; i < chunk.ids.size(); ++i) {
        s.hashes.push_back(HashToken(s.hashes.back(), chunk.ids[i]));
        if (chunk.logits != LogitRows::kAll && (chunk.logits != LogitRows::kLast || i + 1 != chunk.ids.size())) continue;
        ledger_.Enter(s.hashes.back(), static_cast<int64_t>(s.hashes.size()) - 1, s.valid_start, s.decoder_floor, logits.subspan(at, width));
        at += width;
      }
    }
    return logits;
  }

 private:
  struct Slot {
    std::vector<uint64_t> hashes{1};  // of every prefix, the empty one first
    int64_t valid_start = 0, decoder_floor = 0;
  };
  StepModel& model_;
  LogitsLedger& ledger_;
  std::vector<Slot> slots_;
};

}  // namespace deepinfer::engine
