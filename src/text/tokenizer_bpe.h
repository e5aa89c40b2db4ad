// SPDX-License-Identifier: Apache-2.0
//
// Byte-pair merging of one piece: from all adjacent pairs in the merge table take the one of lowest rank, leftmost first,
// until none is left. Short pieces by linear search, long ones with a priority queue in O(n log n). A lock-free cache of results
// makes the common pieces cheap. Immutable after construction except for the cache; safe to share between threads.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

namespace deepinfer::text {

// Grows like a vector but lets the hot loop write ids without a capacity check for each.
class IdBuffer {
 public:
  // Room for `count` more ids; valid until the next call. Commit tells how many were written.
  int32_t* Reserve(size_t count) {
    if (ids_.size() - size_ < count) ids_.resize(std::max(ids_.size() * 2, size_ + count));
    return ids_.data() + size_;
  }
  void Commit(size_t count) { size_ += count; }
  void Push(int32_t id) {
    *Reserve(1) = id;
    Commit(1);
  }
  std::vector<int32_t> Take() {
    ids_.resize(size_);
    return std::move(ids_);
  }

 private:
  std::vector<int32_t> ids_;
  size_t size_ = 0;
};

// Results for pieces of up to 32 bytes and 9 tokens. Each entry is one cache line guarded by a sequence number: a reader
// that sees the number change has a miss, a writer that finds the entry busy gives up. Nothing ever waits.
class PieceCache {
 public:
  static constexpr size_t kMaxPieceBytes = 32;
  static constexpr size_t kMaxIds = 9;

  struct Key {
    uint64_t words[4];  // the piece, padded with zeros
    uint64_t hash;
    uint32_t num_bytes;
  };
  // `piece` has 1..kMaxPieceBytes bytes; reads up to 32 bytes from its start if `can_overread`.
  static Key MakeKey(std::string_view piece, bool can_overread);

  PieceCache();
  void Prefetch(const Key& key) const { __builtin_prefetch(&entries_[IndexOf(key)]); }
  // Writes the ids to `ids` (room for kMaxIds) and returns their number, 0 on a miss.
  size_t Find(const Key& key, int32_t* ids) const;
  void Insert(const Key& key, const int32_t* ids, size_t num_ids);

 private:
  static constexpr size_t kNumEntries = size_t{1} << 16;

  struct alignas(64) Entry {
    // Bits 0..31 sequence number (odd: being written), 32..39 bytes of the piece (0: empty), 40..47 number of ids.
    std::atomic<uint64_t> head{0};
    std::atomic<uint64_t> words[4];
    std::atomic<uint64_t> ids[3];  // three of 21 bits in each
  };
  // Two places for each key.
  size_t IndexOf(const Key& key) const { return (key.hash >> 48) & (kNumEntries - 2); }

  std::unique_ptr<Entry[]> entries_;
};

class Bpe {
 public:
  struct Merge {
    int32_t left;
    int32_t right;
    int32_t result;
  };

  // byte_ids: id of each single byte. merges: by rank; of equal pairs the last one counts. num_bytes: length of each id.
  // Ids and ranks are below 2^21.
  Bpe(const std::array<int32_t, 256>& byte_ids, const std::vector<Merge>& merges, std::vector<uint32_t> num_bytes);

  // Appends the ids of a few pieces. All places of the cache are asked for before the first is looked at, so that their
  // misses overlap. text_end: how far the text around the pieces can be read.
  static constexpr size_t kMaxBatch = 32;
  void Encode(std::span<const std::string_view> pieces, const char* text_end, IdBuffer& out) const;
  // The same without the cache. Writes at most piece.size() ids and returns their number.
  size_t EncodeUncached(std::string_view piece, int32_t* ids) const;

 private:
  static constexpr uint32_t kNoRank = 0xffffffffu;
  static constexpr size_t kMaxShort = 64;

  uint32_t RankOf(int32_t left, int32_t right) const;
  int32_t ResultOf(uint32_t rank) const {
    return first_result_ >= 0 ? first_result_ + static_cast<int32_t>(rank) : results_[rank];
  }
  size_t MergeShort(std::string_view piece, int32_t* ids) const;
  template <typename Position>
  size_t MergeLong(std::string_view piece, int32_t* ids) const;
  size_t MergeInWindows(std::string_view piece, int32_t* ids) const;
  size_t NumBytes(int32_t id) const { return num_bytes_[static_cast<size_t>(id)]; }

  std::array<int32_t, 256> byte_ids_;
  std::vector<uint32_t> byte_pair_ranks_;  // [256 * 256]
  // Open addressing, 0 = empty: bit 63, left id, right id, rank, 21 bits each.
  std::vector<uint64_t> slots_;
  std::vector<uint64_t> may_merge_;  // bitmap by hash: most pairs do not merge, and this stays in the second-level cache
  int slot_shift_ = 0;
  int bit_shift_ = 0;
  std::vector<int32_t> results_;
  int32_t first_result_ = -1;  // result of rank r is first_result_ + r, as in the released file; -1: look in results_
  std::vector<uint32_t> num_bytes_;
  mutable PieceCache cache_;
};

}  // namespace deepinfer::text
