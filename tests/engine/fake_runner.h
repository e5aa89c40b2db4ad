// SPDX-License-Identifier: Apache-2.0
//
// A model for tests. Scripted: the token after a sequence of length n is script[n - prompt_length]. Without a script the
// logits are pseudo-random numbers that depend on every token of the sequence.
#pragma once

#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <vector>

#include "engine/step_runner.h"

namespace deepinfer::engine {

class FakeRunner : public StepRunner {
 public:
  FakeRunner(int vocab_size, int64_t max_model_len) : vocab_size_(vocab_size), max_model_len_(max_model_len) {}

  void SetScript(std::vector<int32_t> script, int64_t prompt_length) {
    script_ = std::move(script);
    prompt_length_ = prompt_length;
  }

  int vocab_size() const override { return vocab_size_; }
  int64_t max_model_len() const override { return max_model_len_; }
  int64_t longest_model_len() const override { return longest_len; }
  Result<std::unique_ptr<RunnerSequence>> NewSequence() override {
    return std::unique_ptr<RunnerSequence>(std::make_unique<FakeSequence>());
  }

  Result<std::span<const float>> Forward(std::span<const StepChunk> chunks) override {
    logits_.clear();
    for (const StepChunk& chunk : chunks) {
      auto& sequence = static_cast<FakeSequence&>(*chunk.sequence);
      for (size_t i = 0; i < chunk.ids.size(); ++i) {
        sequence.ids.push_back(chunk.ids[i]);
        const bool wants_row =
            chunk.logits == LogitRows::kAll || (chunk.logits == LogitRows::kLast && i + 1 == chunk.ids.size());
        if (wants_row) AddRow(sequence.ids);
      }
      chunk_sizes.push_back(static_cast<int64_t>(chunk.ids.size()));
    }
    if (replaced_logit && !logits_.empty()) logits_[logits_.size() / 2] = *replaced_logit;
    if (on_step) on_step();
    return std::span<const float>(logits_);
  }

  int64_t longest_len = 0;
  std::optional<float> replaced_logit;  // of the middle of the last row
  std::vector<int64_t> chunk_sizes;
  std::function<void()> on_step;

 private:
  struct FakeSequence : RunnerSequence {
    std::vector<int32_t> ids;
  };

  void AddRow(const std::vector<int32_t>& ids) {
    const size_t begin = logits_.size();
    logits_.resize(begin + static_cast<size_t>(vocab_size_));
    float* row = logits_.data() + begin;
    if (!script_.empty()) {
      const int64_t step = static_cast<int64_t>(ids.size()) - prompt_length_;
      const bool has_token = step >= 0 && step < static_cast<int64_t>(script_.size());
      const int32_t id = has_token ? script_[static_cast<size_t>(step)] : script_.back();
      if (id < 0) {
        row[0] = std::numeric_limits<float>::quiet_NaN();
      } else {
        row[id] = 50.0f;
      }
      return;
    }
    uint64_t state = 1469598103934665603u;
    for (const int32_t id : ids) state = (state ^ static_cast<uint64_t>(id)) * 1099511628211u;
    for (int i = 0; i < vocab_size_; ++i) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      row[i] = static_cast<float>(state >> 40) * 0x1p-22f;
    }
  }

  int vocab_size_;
  int64_t max_model_len_;
  std::vector<int32_t> script_;
  int64_t prompt_length_ = 0;
  std::vector<float> logits_;
};

}  // namespace deepinfer::engine
