// SPDX-License-Identifier: Apache-2.0
//
// From token ids to rows of the Engram tables (model.md 5.1 and 5.2 of the specification).
// Incremental: a caller that processes a sequence in pieces keeps the last NG - 1 mapped ids in an
// EngramHistory. Rows depend on ids only, so they can be computed, and prefetched, before the step
// starts.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "core/status.h"
#include "model/config.h"

namespace deepinfer::model {

// The compressed ids of the latest positions of one sequence, newest first; -1 is dead (before the
// start, an image position, an id outside the token map) and cuts the look-back.
class EngramHistory {
 public:
  static constexpr int kMaxOrder = 16;
  EngramHistory() { ids_.fill(-1); }

  // The id `shift` positions back, 1 = the previous position.
  int32_t at(int shift) const { return ids_[static_cast<size_t>(shift - 1)]; }
  void Push(int32_t compressed_id) {
    for (size_t i = ids_.size() - 1; i > 0; --i) ids_[i] = ids_[i - 1];
    ids_[0] = compressed_id;
  }

 private:
  std::array<int32_t, kMaxOrder - 1> ids_;
};

class EngramHasher {
 public:
  // token_map: raw id -> compressed id (Tokenizer::BuildCompressedVocab). kBadModel if it does not
  // fit the configuration.
  static Result<EngramHasher> Create(const ModelConfig& config, std::vector<int32_t> token_map);

  int num_tables() const { return static_cast<int>(tables_.size()); }
  int num_columns() const { return num_columns_; }

  // rows: [T, num_tables, num_columns], for the ids that follow `history`; is_dead (optional, [T])
  // marks image positions. Advances the history over the ids.
  void Rows(std::span<const int32_t> ids,
            std::span<const uint8_t> is_dead,
            EngramHistory* history,
            int64_t* rows) const;
  // The same for ids that are compressed already (-1 = dead).
  void RowsOfCompressed(std::span<const int32_t> compressed_ids,
                        EngramHistory* history,
                        int64_t* rows) const;

  // -1 for ids outside the token map.
  int32_t Compress(int32_t id) const {
    return id >= 0 && static_cast<size_t>(id) < token_map_.size()
               ? token_map_[static_cast<size_t>(id)]
               : -1;
  }
  int32_t pad() const { return pad_; }

 private:
  struct Table {
    std::vector<int64_t> multipliers;  // [NG]
    std::vector<int64_t> primes;       // [num_columns]
    std::vector<int64_t> offsets;      // [num_columns]
  };
  void RowsOfPosition(int32_t current, const EngramHistory& history, int64_t* rows) const;

  std::vector<int32_t> token_map_;
  std::vector<Table> tables_;
  int32_t pad_ = 0;
  int max_order_ = 0;
  int num_heads_ = 0;
  int num_columns_ = 0;
};

}  // namespace deepinfer::model
