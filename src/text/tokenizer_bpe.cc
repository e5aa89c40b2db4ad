// SPDX-License-Identifier: Apache-2.0
#include "text/tokenizer_bpe.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <queue>

namespace deepinfer::text {

namespace {

constexpr int kIdBits = 21;
constexpr uint64_t kIdMask = (uint64_t{1} << kIdBits) - 1;
constexpr uint64_t kUsedSlot = uint64_t{1} << 63;

uint64_t PairKey(int32_t left, int32_t right) {
  return (static_cast<uint64_t>(left) << kIdBits) | static_cast<uint64_t>(right);
}

size_t SlotOf(uint64_t pair_key, int shift) { return static_cast<size_t>((pair_key * 0x9e3779b97f4a7c15u) >> shift); }

uint64_t Load64(const char* p) {
  uint64_t word;
  std::memcpy(&word, p, 8);
  return word;
}

// The low num_bytes (0..8) bytes.
uint64_t LowBytes(uint64_t word, size_t num_bytes) {
  return num_bytes >= 8 ? word : word & ((uint64_t{1} << (8 * num_bytes)) - 1);
}

// Queues of (rank << 43 | position), smallest first. Positions are below 2^43.
constexpr int kPositionBits = 43;

// For merge tables of any kind.
class BinaryHeap {
 public:
  void Push(uint64_t key) { heap_.push(key); }
  bool Pop(uint64_t* key) {
    if (heap_.empty()) return false;
    *key = heap_.top();
    heap_.pop();
    return true;
  }

 private:
  std::priority_queue<uint64_t, std::vector<uint64_t>, std::greater<>> heap_;
};

// A radix heap: no key may be smaller than the last one popped. A key moves only to lower buckets, through sequential
// memory, which is several times faster than a binary heap of millions of entries.
class RadixHeap {
 public:
  void Push(uint64_t key) { buckets_[BucketOf(key)].push_back(key); }
  bool Pop(uint64_t* key) {
    if (buckets_[0].empty()) {
      size_t b = 1;
      while (b < buckets_.size() && buckets_[b].empty()) ++b;
      if (b == buckets_.size()) return false;
      std::vector<uint64_t>& bucket = buckets_[b];
      last_ = *std::min_element(bucket.begin(), bucket.end());
      for (const uint64_t k : bucket) buckets_[BucketOf(k)].push_back(k);
      bucket.clear();
    }
    *key = buckets_[0].back();
    buckets_[0].pop_back();
    return true;
  }

 private:
  // By the highest bit in which the key differs from the last one popped.
  size_t BucketOf(uint64_t key) const { return static_cast<size_t>(std::bit_width(key ^ last_)); }

  std::array<std::vector<uint64_t>, 65> buckets_;
  uint64_t last_ = 0;
};

}  // namespace

PieceCache::Key PieceCache::MakeKey(std::string_view piece, bool can_overread) {
  Key key{};
  const size_t n = piece.size();
  const char* p = piece.data();
  char padded[kMaxPieceBytes] = {};
  if (!can_overread) {
    std::memcpy(padded, p, n);
    p = padded;
  }
  key.num_bytes = static_cast<uint32_t>(n);
  key.words[0] = LowBytes(Load64(p), n);
  uint64_t h = (key.words[0] ^ n) * 0x9e3779b97f4a7c15u;
  for (size_t i = 1; i * 8 < n; ++i) {
    key.words[i] = LowBytes(Load64(p + i * 8), n - i * 8);
    h = (std::rotl(h, 29) ^ key.words[i]) * 0xd6e8feb86659fd93u;
  }
  key.hash = (h ^ (h >> 32)) * 0xd6e8feb86659fd93u;
  return key;
}

PieceCache::PieceCache() : entries_(std::make_unique<Entry[]>(kNumEntries)) {}

// Loads with acquire keep the second look at `head` behind the data; stores with release keep the data behind the odd
// number. All accesses are atomic, so a torn entry is seen as a changed head and never as a data race.
size_t PieceCache::Find(const Key& key, int32_t* ids) const {
  const size_t idx = IndexOf(key);
  for (size_t way = 0; way < 2; ++way) {
    const Entry& entry = entries_[idx + way];
    const uint64_t head = entry.head.load(std::memory_order_acquire);
    if ((head & 1) != 0 || ((head >> 32) & 0xff) != key.num_bytes) continue;
    uint64_t difference = 0;
    for (size_t i = 0; i < 4; ++i) difference |= entry.words[i].load(std::memory_order_acquire) ^ key.words[i];
    if (difference != 0) continue;
    const size_t num_ids = (head >> 40) & 0xff;
    for (size_t i = 0; i < 3; ++i) {
      const uint64_t three = entry.ids[i].load(std::memory_order_acquire);
      ids[3 * i] = static_cast<int32_t>(three & kIdMask);
      ids[3 * i + 1] = static_cast<int32_t>((three >> kIdBits) & kIdMask);
      ids[3 * i + 2] = static_cast<int32_t>((three >> (2 * kIdBits)) & kIdMask);
    }
    if (entry.head.load(std::memory_order_relaxed) == head) return num_ids;
  }
  return 0;
}

void PieceCache::Insert(const Key& key, const int32_t* ids, size_t num_ids) {
  const size_t idx = IndexOf(key);
  // An empty place first, otherwise one of the two by a bit of the hash that the index does not use.
  size_t way = (key.hash >> 20) & 1;
  for (size_t i = 0; i < 2; ++i) {
    if (entries_[idx + i].head.load(std::memory_order_relaxed) == 0) {
      way = i;
      break;
    }
  }
  Entry& entry = entries_[idx + way];
  uint64_t head = entry.head.load(std::memory_order_relaxed);
  const uint64_t sequence = head & 0xffffffffu;
  if ((sequence & 1) != 0) return;
  if (!entry.head.compare_exchange_strong(head, sequence + 1, std::memory_order_acq_rel)) return;
  for (size_t i = 0; i < 4; ++i) entry.words[i].store(key.words[i], std::memory_order_release);
  for (size_t i = 0; i < 3; ++i) {
    uint64_t three = 0;
    for (size_t j = 0; j < 3 && 3 * i + j < num_ids; ++j) {
      three |= static_cast<uint64_t>(ids[3 * i + j]) << (j * static_cast<size_t>(kIdBits));
    }
    entry.ids[i].store(three, std::memory_order_release);
  }
  const uint64_t lengths = (uint64_t{key.num_bytes} << 32) | (uint64_t{num_ids} << 40);
  entry.head.store(((sequence + 2) & 0xffffffffu) | lengths, std::memory_order_release);
}

Bpe::Bpe(const std::array<int32_t, 256>& byte_ids, const std::vector<Merge>& merges) : byte_ids_(byte_ids) {
  const size_t num_slots = std::max<size_t>(std::bit_ceil(merges.size() * 2), 16);
  slots_.resize(num_slots);
  slot_shift_ = 64 - std::countr_zero(num_slots);
  results_.reserve(merges.size());
  int32_t max_id = *std::max_element(byte_ids.begin(), byte_ids.end());
  for (size_t rank = 0; rank < merges.size(); ++rank) {
    const Merge& m = merges[rank];
    const uint64_t pair_key = PairKey(m.left, m.right);
    size_t slot = SlotOf(pair_key, slot_shift_);
    while (slots_[slot] != 0 && (slots_[slot] & ~kUsedSlot) >> kIdBits != pair_key) slot = (slot + 1) & (num_slots - 1);
    slots_[slot] = kUsedSlot | (pair_key << kIdBits) | rank;
    results_.push_back(m.result);
    max_id = std::max({max_id, m.left, m.right, m.result});
  }

  if (!results_.empty()) first_result_ = results_[0];
  for (size_t rank = 0; rank < results_.size(); ++rank) {
    if (results_[rank] != first_result_ + static_cast<int32_t>(rank)) {
      first_result_ = -1;
      break;
    }
  }

  std::vector<int64_t> last_rank_of(static_cast<size_t>(max_id) + 1, -1);  // last merge that makes the id
  for (size_t rank = 0; rank < merges.size(); ++rank) {
    last_rank_of[static_cast<size_t>(merges[rank].result)] = static_cast<int64_t>(rank);
  }
  for (size_t rank = 0; rank < merges.size(); ++rank) {
    const int64_t last = std::max(last_rank_of[static_cast<size_t>(merges[rank].left)],
                                  last_rank_of[static_cast<size_t>(merges[rank].right)]);
    if (last >= static_cast<int64_t>(rank)) is_monotone_ = false;
  }

  byte_pair_ranks_.resize(256 * 256);
  for (size_t left = 0; left < 256; ++left) {
    for (size_t right = 0; right < 256; ++right) {
      byte_pair_ranks_[left * 256 + right] = RankOf(byte_ids_[left], byte_ids_[right]);
    }
  }
}

uint32_t Bpe::RankOf(int32_t left, int32_t right) const {
  const uint64_t wanted = (kUsedSlot >> kIdBits) | PairKey(left, right);
  for (size_t slot = SlotOf(PairKey(left, right), slot_shift_);; slot = (slot + 1) & (slots_.size() - 1)) {
    const uint64_t value = slots_[slot];
    if (value >> kIdBits == wanted) return static_cast<uint32_t>(value & kIdMask);
    if (value == 0) return kNoRank;
  }
}

void Bpe::Encode(std::string_view piece, const char* text_end, IdBuffer& out) const {
  const size_t n = piece.size();
  if (n > PieceCache::kMaxPieceBytes) {
    out.Commit(EncodeUncached(piece, out.Reserve(n)));
    return;
  }
  const bool can_overread = static_cast<size_t>(text_end - piece.data()) >= PieceCache::kMaxPieceBytes;
  const PieceCache::Key key = PieceCache::MakeKey(piece, can_overread);
  int32_t* ids = out.Reserve(PieceCache::kMaxPieceBytes);
  size_t num_ids = cache_.Find(key, ids);
  if (num_ids == 0) {
    num_ids = EncodeUncached(piece, ids);
    if (num_ids <= PieceCache::kMaxIds) cache_.Insert(key, ids, num_ids);
  }
  out.Commit(num_ids);
}

size_t Bpe::EncodeUncached(std::string_view piece, int32_t* ids) const {
  if (piece.size() <= kMaxShort) return MergeShort(piece, ids);
  if (piece.size() < std::numeric_limits<uint32_t>::max()) {
    return is_monotone_ ? MergeLong<uint32_t, RadixHeap>(piece, ids) : MergeLong<uint32_t, BinaryHeap>(piece, ids);
  }
  return is_monotone_ ? MergeLong<uint64_t, RadixHeap>(piece, ids) : MergeLong<uint64_t, BinaryHeap>(piece, ids);
}

size_t Bpe::MergeShort(std::string_view piece, int32_t* ids) const {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(piece[i]); };
  uint32_t ranks[kMaxShort];  // of the pair (i, i + 1)
  size_t n = piece.size();
  for (size_t i = 0; i < n; ++i) ids[i] = byte_ids_[byte(i)];
  for (size_t i = 0; i + 1 < n; ++i) ranks[i] = byte_pair_ranks_[size_t{byte(i)} * 256 + byte(i + 1)];
  while (n > 1) {
    uint32_t lowest = ranks[0];
    for (size_t i = 1; i + 1 < n; ++i) lowest = std::min(lowest, ranks[i]);
    if (lowest == kNoRank) break;
    size_t at = 0;  // leftmost of equal ranks
    while (ranks[at] != lowest) ++at;
    ids[at] = ResultOf(lowest);
    for (size_t i = at + 1; i + 1 < n; ++i) ids[i] = ids[i + 1];
    for (size_t i = at + 1; i + 2 < n; ++i) ranks[i] = ranks[i + 1];
    --n;
    if (at > 0) ranks[at - 1] = RankOf(ids[at - 1], ids[at]);
    if (at + 1 < n) ranks[at] = RankOf(ids[at], ids[at + 1]);
  }
  return n;
}

template <typename Position, typename Queue>
size_t Bpe::MergeLong(std::string_view piece, int32_t* ids) const {
  // A linked list over the symbols; a symbol keeps the position of its first byte. ids[i] belongs to the live position i.
  // The queue may hold entries that a later merge made stale: the pair's rank in `ranks` tells.
  const size_t n = piece.size();
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(piece[i]); };
  struct Symbol {
    Position previous;
    Position next;
    uint32_t rank;  // of the pair with the next symbol; kNoRank for dead symbols too
  };
  std::vector<Symbol> symbols(n);
  Queue queue;
  const auto push = [&](size_t at, uint32_t rank) {
    symbols[at].rank = rank;
    if (rank != kNoRank) queue.Push((uint64_t{rank} << kPositionBits) | at);
  };
  for (size_t i = 0; i < n; ++i) {
    ids[i] = byte_ids_[byte(i)];
    symbols[i].previous = static_cast<Position>(i - 1);  // wraps for the first, which is never followed
    symbols[i].next = static_cast<Position>(i + 1);
    push(i, i + 1 < n ? byte_pair_ranks_[size_t{byte(i)} * 256 + byte(i + 1)] : kNoRank);
  }
  uint64_t key;
  while (queue.Pop(&key)) {
    const size_t at = key & ((uint64_t{1} << kPositionBits) - 1);
    const uint32_t rank = static_cast<uint32_t>(key >> kPositionBits);
    Symbol& symbol = symbols[at];
    if (symbol.rank != rank) continue;
    const size_t right = symbol.next;
    ids[at] = ResultOf(rank);
    symbols[right].rank = kNoRank;
    symbol.next = symbols[right].next;
    if (symbol.next < n) {
      symbols[symbol.next].previous = static_cast<Position>(at);
      push(at, RankOf(ids[at], ids[symbol.next]));
    } else {
      symbol.rank = kNoRank;
    }
    if (at > 0) push(symbol.previous, RankOf(ids[symbol.previous], ids[at]));
  }
  size_t num_ids = 0;
  for (size_t at = 0; at < n; at = symbols[at].next) ids[num_ids++] = ids[at];
  return num_ids;
}

}  // namespace deepinfer::text
