// SPDX-License-Identifier: Apache-2.0
//
// The model as the generator sees it: sequences that hold cache state, and one step over chunks of several of them.
// ModelRunner (engine/model_runner.h) is the real one; tests put a small fake behind this seam.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "core/status.h"

namespace deepinfer::engine {

// Cache state of one sequence; owned by the caller, used only with the runner that made it.
class RunnerSequence {
 public:
  virtual ~RunnerSequence() = default;
};

enum class LogitRows { kNone, kLast, kAll };

struct StepChunk {
  RunnerSequence* sequence = nullptr;
  std::span<const int32_t> ids;  // appended at the sequence's current length
  LogitRows logits = LogitRows::kLast;
  // Tokens known in all, of which `ids` may be a part; 0 = none beyond them. Read at the first chunk of a sequence: decoder
  // replay keeps the end of what is known.
  int64_t known_length = 0;
};

class StepRunner {
 public:
  virtual ~StepRunner() = default;

  virtual int vocab_size() const = 0;
  virtual int64_t max_model_len() const = 0;
  // The longest context that the checkpoint supports: max_model_len() can be raised up to it.
  virtual int64_t longest_model_len() const { return max_model_len(); }
  // False with decoder replay: rows of a prompt are dropped, so its log probabilities cannot be had.
  virtual bool has_prompt_logits() const { return true; }
  virtual Result<std::unique_ptr<RunnerSequence>> NewSequence() = 0;
  // Logit rows of all chunks in order, [rows, vocab_size] float32, valid until the next call.
  virtual Result<std::span<const float>> Forward(std::span<const StepChunk> chunks) = 0;
};

}  // namespace deepinfer::engine
