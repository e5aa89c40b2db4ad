// SPDX-License-Identifier: Apache-2.0
#include "model/engram_hash.h"

#include <algorithm>

#include <fmt/format.h>

#include "model/engram_constants.h"

namespace deepinfer::model {

Result<EngramHasher> EngramHasher::Create(const ModelConfig& config,
                                          std::vector<int32_t> token_map) {
  const auto fail = [](std::string_view field, std::string message) {
    return Status(StatusCode::kBadModel, std::move(message), "text_config." + std::string(field));
  };
  if (config.engram_layer_ids.empty()) return EngramHasher();
  const auto [low, high] = std::minmax_element(token_map.begin(), token_map.end());
  const int64_t num_ids = token_map.empty() ? 0 : int64_t{*high} + 1;
  if (num_ids != config.engram_compressed_vocab_size || *low < 0) {
    return fail("engram_compressed_vocab_size",
                fmt::format("text_config.engram_compressed_vocab_size is {} but tokenizer.json "
                            "gives {} distinct tokens; the tokenizer does "
                            "not belong to this checkpoint",
                            config.engram_compressed_vocab_size,
                            num_ids));
  }
  if (static_cast<size_t>(config.engram_pad_token_id) >= token_map.size()) {
    return fail(
        "engram_pad_token_id",
        fmt::format("text_config.engram_pad_token_id {} is not in tokenizer.json ({} tokens)",
                    config.engram_pad_token_id,
                    token_map.size()));
  }
  EngramHasher hasher;
  hasher.max_order_ = config.engram_max_ngram_size;
  hasher.num_heads_ = config.engram_n_heads;
  hasher.num_columns_ = config.engram_num_columns();
  hasher.pad_ = token_map[static_cast<size_t>(config.engram_pad_token_id)];
  hasher.token_map_ = std::move(token_map);
  const auto num_tables = static_cast<int>(config.engram_layer_ids.size());
  const auto primes = EngramPrimes(num_tables, hasher.num_columns_, config.engram_vocab_size);
  for (size_t i = 0; i < config.engram_layer_ids.size(); ++i) {
    Table table;
    table.multipliers = EngramMultipliers(
        config.engram_layer_ids[i], hasher.max_order_, config.engram_compressed_vocab_size);
    table.primes = primes[i];
    table.offsets = EngramOffsets(primes[i]);
    hasher.tables_.push_back(std::move(table));
  }
  return hasher;
}

void EngramHasher::RowsOfPosition(int32_t current,
                                  const EngramHistory& history,
                                  int64_t* rows) const {
  std::array<int64_t, EngramHistory::kMaxOrder> ids{};
  bool is_blocked = false;  // once blocked, everything further back is too
  for (int shift = 0; shift < max_order_; ++shift) {
    const int32_t id = shift == 0 ? current : history.at(shift);
    is_blocked = is_blocked || id < 0;
    ids[static_cast<size_t>(shift)] = is_blocked ? pad_ : id;
  }
  for (const Table& table : tables_) {
    // Ids are below the compressed vocabulary size and multipliers below 2^63 / size: products stay
    // in int64.
    int64_t rolling = ids[0] * table.multipliers[0];
    size_t column = 0;
    for (size_t n = 1; n < static_cast<size_t>(max_order_); ++n) {
      rolling ^= ids[n] * table.multipliers[n];
      for (int head = 0; head < num_heads_; ++head, ++column)
        *rows++ = rolling % table.primes[column] + table.offsets[column];
    }
  }
}

void EngramHasher::Rows(std::span<const int32_t> ids,
                        std::span<const uint8_t> is_dead,
                        EngramHistory* history,
                        int64_t* rows) const {
  const int64_t stride = int64_t{num_tables()} * num_columns_;
  for (size_t i = 0; i < ids.size(); ++i, rows += stride) {
    const int32_t id = !is_dead.empty() && is_dead[i] != 0 ? -1 : Compress(ids[i]);
    RowsOfPosition(id, *history, rows);
    history->Push(id);
  }
}

void EngramHasher::RowsOfCompressed(std::span<const int32_t> compressed_ids,
                                    EngramHistory* history,
                                    int64_t* rows) const {
  const int64_t stride = int64_t{num_tables()} * num_columns_;
  for (const int32_t id : compressed_ids) {
    RowsOfPosition(id, *history, rows);
    history->Push(id);
    rows += stride;
  }
}

}  // namespace deepinfer::model
