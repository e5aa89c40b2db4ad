// SPDX-License-Identifier: Apache-2.0
//
// The model as the compute thread sees it: state slots and cache blocks by id, and a forward pass over rows of several
// slots. Which ids are in use is the scheduler's business; calls come in plan order from one thread.
// ModelSlots (model_slots.h) is the real one; tests use a fake that checks every entry it reads.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/status.h"
#include "core/threads.h"
#include "device/types.h"
#include "engine/step_runner.h"
#include "model/model.h"

namespace deepinfer::engine {

using model::GreedyRow;

struct SlotChunk {
  int32_t slot = 0;
  std::span<const int32_t> ids;  // appended at the slot's current length
  LogitRows logits = LogitRows::kLast;
  int64_t write_floor = 0;       // compressed keys of smaller positions exist and are not written
  GreedyRow greedy;
};

struct SlotDraft {
  int32_t slot = 0;
  int32_t next_token = 0;  // behind the slot's last token
};

class StepModel {
 public:
  virtual ~StepModel() = default;

  virtual int vocab_size() const = 0;
  virtual int64_t max_model_len() const = 0;
  virtual ThreadPool& pool() = 0;  // idle between calls

  // A new sequence with this history; window state empty, no blocks. Window keys below `valid_start` are not visible, and
  // the consumer half runs rows from max(valid_start, decoder_floor) on.
  virtual void Bind(int32_t slot, std::span<const int32_t> history, int64_t valid_start, int64_t decoder_floor) = 0;
  // The producer half's window rings, as they are at the slot's current length.
  virtual void SaveState(int32_t slot, int32_t record) = 0;
  virtual void LoadState(int32_t record, int32_t slot) = 0;
  // `to` := `from` cut to `length` tokens (at most the backtracking bound less); its blocks are set afterwards.
  virtual void CopyState(int32_t from, int32_t to, int64_t length) = 0;
  virtual void CopyBlock(int32_t from, int32_t to) = 0;
  virtual void SetBlocks(int32_t slot, int64_t first, std::span<const int32_t> blocks) = 0;
  virtual int64_t length(int32_t slot) const = 0;
  // Forgets the slot's tokens from `length` on: rejected drafts of the newest step.
  virtual void Truncate(int32_t slot, int64_t length) = 0;

  // Logit rows of all chunks in order, [rows, vocab_size] float32, valid until the next call. On an error nothing ran.
  virtual Result<std::span<const float>> Forward(std::span<const SlotChunk> chunks) = 0;
  // False: logits of greedy rows are there like all others. See model::Model::bests.
  virtual bool finds_best() const { return false; }
  virtual std::span<const device::RowBest> bests() const { return {}; }

  // Drafts that a pass can make at most; 0 = no draft head.
  virtual int max_drafts() const { return 0; }
  // While paused, forward passes skip what only drafting needs.
  virtual void PauseDrafts(bool is_paused) { (void)is_paused; }
  // See model::Model::DraftBatch. tokens, confidence_logits [drafts.size(), num_drafts].
  virtual Status Draft(std::span<const SlotDraft> drafts, int num_drafts, model::DraftChooser& chooser, std::span<int32_t> tokens,
                       std::span<float> confidence_logits) {
    (void)drafts, (void)num_drafts, (void)chooser, (void)tokens, (void)confidence_logits;
    return Unimplemented("the model has no draft head");
  }
};

}  // namespace deepinfer::engine
