// SPDX-License-Identifier: Apache-2.0
//
// A model with random logits under a grammar: random allowed tokens until a stop id. Tokens that close something are taken
// more often, after a while always, so that every text ends.
#pragma once

#include <bit>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "constrain/grammar.h"
#include "constrain/tokenizer_view.h"

namespace deepinfer::constrain {

class RandomWriter {
 public:
  RandomWriter(const TokenizerView& view, uint64_t seed) : view_(view), random_(seed) {
    for (int32_t id = 0; id < view.vocab_size; ++id) {
      const std::string& bytes = view.tokens[static_cast<size_t>(id)];
      if (bytes.empty()) continue;
      if (bytes.size() != 1) continue;
      singles_.push_back(id);
      const size_t rank = std::string_view("\"@})]").find(bytes[0]);
      if (rank != std::string_view::npos) closers_[rank].push_back(id);
    }
  }

  // nullopt: a dead end, a rejected token, or no end in sight; `problem` says which.
  std::optional<std::string> Write(GrammarMatcher* matcher, std::string* problem, int max_tokens = 3000) {
    std::string text;
    std::vector<uint32_t> row(static_cast<size_t>(MaskWords(view_.vocab_size)));
    for (int n = 0; n < max_tokens; ++n) {
      const auto filled = matcher->Fill(row);
      if (!filled.ok()) {
        *problem = filled.status().ToString();
        return std::nullopt;
      }
      const int32_t id = Choose(row, n);
      if (id < 0) {
        *problem = "no token is allowed behind: " + text;
        return std::nullopt;
      }
      const auto accepted = matcher->Accept(id);
      if (!accepted.ok() || !*accepted) {
        *problem = "an allowed token was rejected behind: " + text;
        return std::nullopt;
      }
      if (matcher->IsTerminated()) return text;
      text += view_.tokens[static_cast<size_t>(id)];
    }
    *problem = "no end after " + std::to_string(max_tokens) + " tokens: " + text.substr(0, 500);
    return std::nullopt;
  }

  std::mt19937_64& random() { return random_; }

 private:
  static bool IsSet(const std::vector<uint32_t>& row, int32_t id) {
    return (row[static_cast<size_t>(id) / 32] >> (id % 32) & 1u) != 0;
  }
  int32_t OneOf(const std::vector<int32_t>& ids, const std::vector<uint32_t>& row) {
    std::vector<int32_t> allowed;
    for (const int32_t id : ids) {
      if (IsSet(row, id)) allowed.push_back(id);
    }
    return allowed.empty() ? -1 : allowed[random_() % allowed.size()];
  }
  int32_t Choose(const std::vector<uint32_t>& row, int n) {
    const uint64_t dice = random_() % 100;
    const bool hurry = n > 200;
    if (dice < (hurry ? 100u : 35u)) {
      if (const int32_t stop = OneOf(view_.stop_ids, row); stop >= 0) return stop;
      for (const std::vector<int32_t>& ids : closers_) {
        if (const int32_t closer = OneOf(ids, row); closer >= 0) return closer;
      }
    }
    if (dice < (hurry ? 100u : 50u)) {
      if (const int32_t single = OneOf(singles_, row); single >= 0) return single;
    }
    uint64_t count = 0;
    for (const uint32_t word : row) count += static_cast<uint64_t>(std::popcount(word));
    if (count == 0) return -1;
    uint64_t nth = random_() % count;
    for (size_t i = 0; i < row.size(); ++i) {
      const auto here = static_cast<uint64_t>(std::popcount(row[i]));
      if (nth >= here) {
        nth -= here;
        continue;
      }
      for (int bit = 0; bit < 32; ++bit) {
        if ((row[i] >> bit & 1u) != 0 && nth-- == 0) return static_cast<int32_t>(i * 32 + static_cast<size_t>(bit));
      }
    }
    return -1;
  }

  const TokenizerView& view_;
  std::mt19937_64 random_;
  std::vector<int32_t> closers_[5];  // of strings, of the part before the @ in addresses, of objects, of terms, of lists
  std::vector<int32_t> singles_;
};

}  // namespace deepinfer::constrain
