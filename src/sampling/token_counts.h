// SPDX-License-Identifier: Apache-2.0
//
// Which tokens a request's context holds, for the repetition, frequency and presence penalties. Kept as a list of distinct
// ids beside a count row, so that applying penalties costs the number of distinct tokens, not the vocabulary.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace deepinfer::sampling {

class TokenCounts {
 public:
  TokenCounts() = default;
  explicit TokenCounts(int vocab_size) : output_counts_(static_cast<size_t>(vocab_size)), seen_(static_cast<size_t>(vocab_size)) {
    seen_ids_.reserve(static_cast<size_t>(vocab_size));  // address space; counting a token never allocates
  }

  void AddPrompt(std::span<const int32_t> ids) {
    for (const int32_t id : ids) MarkSeen(id);
  }
  void AddOutput(int32_t id) {
    if (!InRange(id)) return;
    MarkSeen(id);
    ++output_counts_[static_cast<size_t>(id)];
  }
  int output_count(int32_t id) const { return InRange(id) ? output_counts_[static_cast<size_t>(id)] : 0; }
  bool is_seen(int32_t id) const { return InRange(id) && seen_[static_cast<size_t>(id)] != 0; }
  std::span<const int32_t> seen_ids() const { return seen_ids_; }

 private:
  bool InRange(int32_t id) const { return id >= 0 && static_cast<size_t>(id) < seen_.size(); }
  void MarkSeen(int32_t id) {
    if (!InRange(id) || seen_[static_cast<size_t>(id)] != 0) return;
    seen_[static_cast<size_t>(id)] = 1;
    seen_ids_.push_back(id);
  }

  std::vector<int32_t> output_counts_;
  std::vector<uint8_t> seen_;
  std::vector<int32_t> seen_ids_;
};

}  // namespace deepinfer::sampling
