// SPDX-License-Identifier: Apache-2.0
//
// A model for engine tests whose caches hold hashes instead of keys. Every entry that a real model would read is compared
// with the hash that the sequence's tokens demand, so a block that is shared, reused or written at the wrong moment, a stale
// window or a missing STATE record fails at once. Logits depend on every token of the sequence and on nothing else.
#pragma once

#include <algorithm>
#include <array>
#include <functional>
#include <limits>
#include <vector>

#include "core/check.h"
#include "core/clock.h"
#include "engine/step_executor.h"
#include "engine/step_model.h"

namespace deepinfer::engine {

inline uint64_t HashToken(uint64_t hash, int32_t token) {
  hash = (hash ^ static_cast<uint32_t>(token)) * 0x9E3779B97F4A7C15u;
  return hash ^ (hash >> 29);
}

class FakeStepModel : public StepModel {
 public:
  static constexpr int64_t kWindow = 128, kRing = 134;
  static constexpr int kMaxDrafts = 5;

  FakeStepModel(int vocab_size, int64_t max_model_len, int64_t num_blocks, int64_t num_slots, int32_t num_records,
                int num_threads = 1)
      : vocab_size_(vocab_size),
        max_model_len_(max_model_len),
        pool_(num_threads),
        blocks_(static_cast<size_t>(num_blocks)),
        slots_(static_cast<size_t>(num_slots)),
        records_(static_cast<size_t>(num_records) + 1) {}

  // The logits after a sequence, as any run of it gives them.
  static void FillLogits(uint64_t hash, std::span<float> row) {
    for (float& value : row) {
      hash = hash * 6364136223846793005u + 1442695040888963407u;
      value = static_cast<float>(hash >> 40) * 0x1p-22f;
    }
  }

  int vocab_size() const override { return vocab_size_; }
  int64_t max_model_len() const override { return max_model_len_; }
  ThreadPool& pool() override { return pool_; }

  void Bind(int32_t slot, std::span<const int32_t> history, int64_t valid_start, int64_t decoder_floor) override {
    Slot& s = At(slot);
    s = Slot();
    for (const int32_t id : history) s.Append(id);
    s.valid_start = valid_start;
    s.consumer_floor = std::max(valid_start, decoder_floor);
    s.is_bound = true;
    DI_CHECK(valid_start % 2 == 0) << "valid_start " << valid_start << " splits a pair";
  }
  void SaveState(int32_t slot, int32_t record) override {
    const Slot& s = At(slot);
    DI_CHECK(s.valid_start == 0) << "a replayed window is saved";
    records_.at(static_cast<size_t>(record)) = {s.length(), s.producer};
    ++num_saves;
  }
  void LoadState(int32_t record, int32_t slot) override {
    const Record& r = records_.at(static_cast<size_t>(record));
    DI_CHECK(r.length == At(slot).length() && r.length > 0) << "record of " << r.length << " tokens for " << At(slot).length();
    At(slot).producer = r.producer;
    ++num_loads;
  }
  void CopyState(int32_t from, int32_t to, int64_t length) override {
    DI_CHECK(At(from).is_bound && length <= At(from).length() && At(from).length() - length <= kRing - kWindow) << "bad state copy";
    Slot copy = At(from);
    copy.hashes.resize(static_cast<size_t>(length));
    copy.table.clear();
    At(to) = std::move(copy);
  }
  void CopyBlock(int32_t from, int32_t to) override {
    blocks_.at(static_cast<size_t>(to)) = blocks_.at(static_cast<size_t>(from));
    ++num_block_copies;
  }
  void SetBlocks(int32_t slot, int64_t first, std::span<const int32_t> blocks) override {
    std::vector<int32_t>& table = At(slot).table;
    DI_CHECK(first <= static_cast<int64_t>(table.size())) << "hole in a block table";
    table.resize(std::max(table.size(), static_cast<size_t>(first) + blocks.size()));
    std::copy(blocks.begin(), blocks.end(), table.begin() + first);
  }

  int64_t length(int32_t slot) const override { return slots_.at(static_cast<size_t>(slot)).length(); }
  void Truncate(int32_t slot, int64_t length) override {
    Slot& s = At(slot);
    DI_CHECK(length < s.length() && s.length() - length <= kRing - kWindow) << "cut from " << s.length() << " to " << length;
    s.hashes.resize(static_cast<size_t>(length));
  }
  int max_drafts() const override { return kMaxDrafts; }
  // Every draft is right with three chances in four; which ones depends on the tokens only.
  Status Draft(std::span<const SlotDraft> drafts, int num_drafts, model::DraftChooser& chooser, std::span<int32_t> tokens,
               std::span<float> confidence_logits) override {
    const size_t n = drafts.size(), width = static_cast<size_t>(vocab_size_);
    std::vector<uint64_t> hashes;
    for (const SlotDraft& draft : drafts) {
      Slot& s = At(draft.slot);
      const int64_t a = s.length() - 1;
      for (int64_t q = std::max(a - kWindow + 1, s.consumer_floor); q <= a; ++q)
        DI_CHECK((s.draft[static_cast<size_t>(q % kRing)] == Entry{q, s.hashes[static_cast<size_t>(q)]}))
            << "draft window behind position " << a << " lacks " << q;
      // The block's own keys, overwritten when the positions get their tokens.
      for (int64_t q = a + 1; q <= a + kMaxDrafts; ++q) s.draft[static_cast<size_t>(q % kRing)] = Entry{q, 0};
      hashes.push_back(HashToken(s.hashes.back(), draft.next_token));
    }
    std::vector<float> logits(n * width);
    std::vector<int32_t> chosen(n);
    for (int j = 0; j < num_drafts; ++j) {
      for (size_t i = 0; i < n; ++i) {
        const bool is_right = draft_accuracy >= 1 || (hashes[i] >> 7) % 4096 < static_cast<uint64_t>(draft_accuracy * 4096);
        FillLogits(is_right ? hashes[i] : ~hashes[i], std::span(logits).subspan(i * width, width));
        confidence_logits[i * static_cast<size_t>(num_drafts) + static_cast<size_t>(j)] = is_right ? 2.0f : -2.0f;
      }
      chooser.Choose(j, logits.data(), vocab_size_, chosen);
      for (size_t i = 0; i < n; ++i) {
        tokens[i * static_cast<size_t>(num_drafts) + static_cast<size_t>(j)] = chosen[i];
        hashes[i] = HashToken(hashes[i], chosen[i]);
      }
    }
    num_draft_rows += static_cast<int64_t>(n);
    return Status::Ok();
  }

  Result<std::span<const float>> Forward(std::span<const SlotChunk> chunks) override {
    logits_.clear();
    if (on_forward) {
      if (const Status status = on_forward(chunks); !status.ok()) return status;
    }
    for (const SlotChunk& chunk : chunks) {
      for (size_t i = 0; i < chunk.ids.size(); ++i) {
        Step(At(chunk.slot), chunk.ids[i], chunk.write_floor, i == 0 || i + 1 == chunk.ids.size());
        if (chunk.logits == LogitRows::kAll || (chunk.logits == LogitRows::kLast && i + 1 == chunk.ids.size())) {
          logits_.resize(logits_.size() + static_cast<size_t>(vocab_size_));
          FillLogits(At(chunk.slot).hashes.back(), std::span<float>(logits_).last(static_cast<size_t>(vocab_size_)));
          if (chunk.ids[i] == poison_token) logits_.back() = std::numeric_limits<float>::quiet_NaN();
        }
      }
    }
    return std::span<const float>(logits_);
  }

  // Called on the compute thread before a forward pass; an error fails the step.
  std::function<Status(std::span<const SlotChunk>)> on_forward;
  int32_t poison_token = -1;  // the logits after it are not finite
  double draft_accuracy = 0.75;
  int64_t num_saves = 0, num_loads = 0, num_block_copies = 0, num_draft_rows = 0;

 private:
  struct Entry {
    int64_t position = -1;
    uint64_t hash = 0;
    bool operator==(const Entry&) const = default;
  };
  using Ring = std::array<Entry, kRing>;
  struct Slot {
    std::vector<uint64_t> hashes;  // of every prefix
    std::vector<int32_t> table;
    Ring producer{}, consumer{}, draft{};
    std::array<Entry, 7> pairs{};
    int64_t valid_start = 0, consumer_floor = 0;
    bool is_bound = false;
    int64_t length() const { return static_cast<int64_t>(hashes.size()); }
    void Append(int32_t id) { hashes.push_back(HashToken(hashes.empty() ? 1 : hashes.back(), id)); }
  };
  struct Record {
    int64_t length = 0;
    Ring producer{};
  };

  Slot& At(int32_t slot) { return slots_.at(static_cast<size_t>(slot)); }
  uint64_t& EntryOf(Slot& s, int64_t p) {
    DI_CHECK(p / 128 < static_cast<int64_t>(s.table.size())) << "position " << p << " has no block";
    const int32_t block = s.table[static_cast<size_t>(p / 128)];
    DI_CHECK(block > 0) << "null block";
    return blocks_.at(static_cast<size_t>(block))[static_cast<size_t>(p % 128)];
  }

  void Step(Slot& s, int32_t id, int64_t write_floor, bool check_all) {
    DI_CHECK(s.is_bound) << "slot without sequence";
    const int64_t p = s.length();
    // Wasted rows of drafts may lie a little behind the context (engine 5).
    DI_CHECK(p < max_model_len_ + 3 * kMaxDrafts + 1) << "position " << p << " is behind the context";
    s.Append(id);
    const Entry own{p, s.hashes.back()};
    // Window keys of the producer half, and of the consumer half where it runs.
    for (int64_t q = std::max({int64_t{0}, p - kWindow + 1, s.valid_start}); q < p; q += check_all ? 1 : 37)
      DI_CHECK((s.producer[static_cast<size_t>(q % kRing)] == Entry{q, s.hashes[static_cast<size_t>(q)]}))
          << "producer window of position " << p << " lacks " << q;
    s.producer[static_cast<size_t>(p % kRing)] = own;
    if (p >= s.consumer_floor) {
      for (int64_t q = std::max(p - kWindow + 1, s.consumer_floor); q < p; q += check_all ? 1 : 37)
        DI_CHECK((s.consumer[static_cast<size_t>(q % kRing)] == Entry{q, s.hashes[static_cast<size_t>(q)]}))
            << "consumer window of position " << p << " lacks " << q;
      s.consumer[static_cast<size_t>(p % kRing)] = own;
      s.draft[static_cast<size_t>(p % kRing)] = own;
    }
    // Compressed keys: all of them, of the ratio 2 groups also the first half of the pair.
    if (p % 2 == 1 && p >= write_floor) {
      DI_CHECK((s.pairs[static_cast<size_t>((p - 1) % 7)] == Entry{p - 1, s.hashes[static_cast<size_t>(p - 1)]})) << "pair of " << p;
    }
    s.pairs[static_cast<size_t>(p % 7)] = own;
    uint64_t& entry = EntryOf(s, p);
    if (p >= write_floor) {
      entry = own.hash;
    } else {
      DI_CHECK(entry == own.hash) << "position " << p << " should be cached";
    }
    const int64_t stride = check_all ? 1 : 61;
    for (int64_t q = p % stride; q < p; q += stride) {
      DI_CHECK(EntryOf(s, q) == s.hashes[static_cast<size_t>(q)]) << "position " << p << " reads a wrong key at " << q;
    }
  }

  int vocab_size_;
  int64_t max_model_len_;
  ThreadPool pool_;
  std::vector<std::array<uint64_t, 128>> blocks_;
  std::vector<Slot> slots_;
  std::vector<Record> records_;
  std::vector<float> logits_;
};

// Takes the largest logit. A NaN in front fails the row.
class ArgMaxSampler : public RowSampler {
 public:
  void Begin(int32_t) override {}
  void Sample(const StepPlan&, std::span<const LogitsOfRow> rows, StepResult& result) override {
    for (const LogitsOfRow& row : rows) {
      if (!row.samples) continue;
      const size_t i = static_cast<size_t>(row.row), num_rows = row.drafts.size() + 1, width = row.logits.size() / num_rows;
      for (size_t j = 0; j < num_rows; ++j) {
        const int32_t token = ArgMax(row.logits.subspan(j * width, width));
        result.tokens[i * static_cast<size_t>(result.stride) + j] = token;
        result.num_tokens[i] = static_cast<int32_t>(j) + 1;
        if (j < row.drafts.size() && row.drafts[j] != token) break;
      }
    }
  }
  // The fake model's draft rows have no gaps.
  void SampleDrafts(const StepPlan&, std::span<const DraftOfRow>, float* logits, int64_t stride, std::span<int32_t> tokens) override {
    const size_t width = static_cast<size_t>(stride);
    for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = ArgMax({logits + i * width, width});
  }
  static int32_t ArgMax(std::span<const float> row) {
    return static_cast<int32_t>(std::max_element(row.begin(), row.end()) - row.begin());
  }
};

// What the fake model and ArgMaxSampler generate for a prompt: tokens until `end_token` or the limits.
inline std::vector<int32_t> ExpectedTokens(std::span<const int32_t> prompt, int vocab_size, int32_t end_token, int64_t max_tokens,
                                           int64_t max_model_len) {
  uint64_t hash = 1;
  for (const int32_t id : prompt) hash = HashToken(hash, id);
  std::vector<int32_t> out;
  std::vector<float> row(static_cast<size_t>(vocab_size));
  do {
    FakeStepModel::FillLogits(hash, row);
    out.push_back(ArgMaxSampler::ArgMax(row));
    hash = HashToken(hash, out.back());
  } while (out.back() != end_token && static_cast<int64_t>(out.size()) < max_tokens &&
           static_cast<int64_t>(prompt.size() + out.size()) <= max_model_len);
  return out;
}

}  // namespace deepinfer::engine
