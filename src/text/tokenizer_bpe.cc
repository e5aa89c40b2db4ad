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

uint64_t HashOf(uint64_t pair_key) { return pair_key * 0x9e3779b97f4a7c15u; }

uint64_t Load64(const char* p) {
  uint64_t word;
  std::memcpy(&word, p, 8);
  return word;
}

// The low num_bytes (0..8) bytes.
uint64_t LowBytes(uint64_t word, size_t num_bytes) {
  return num_bytes >= 8 ? word : word & ((uint64_t{1} << (8 * num_bytes)) - 1);
}

// The queue holds rank << 43 | position, smallest first.
constexpr int kPositionBits = 43;

// Pieces above kMaxShort are merged in windows that stay in the cache. The next window begins at a token border kOverlap
// bytes or more in front of the end of the last one.
constexpr size_t kWindow = 2048;
constexpr size_t kOverlap = 256;

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

Bpe::Bpe(const std::array<int32_t, 256>& byte_ids, const std::vector<Merge>& merges, std::vector<uint32_t> num_bytes)
    : byte_ids_(byte_ids), num_bytes_(std::move(num_bytes)) {
  const size_t num_slots = std::max<size_t>(std::bit_ceil(merges.size() * 2), 16);
  slots_.resize(num_slots);
  slot_shift_ = 64 - std::countr_zero(num_slots);
  bit_shift_ = slot_shift_ - 2;
  may_merge_.resize(num_slots * 4 / 64);
  results_.reserve(merges.size());
  for (size_t rank = 0; rank < merges.size(); ++rank) {
    const Merge& m = merges[rank];
    const uint64_t pair_key = PairKey(m.left, m.right);
    const uint64_t hash = HashOf(pair_key);
    const size_t bit = hash >> bit_shift_;
    may_merge_[bit / 64] |= uint64_t{1} << (bit % 64);
    size_t slot = hash >> slot_shift_;
    while (slots_[slot] != 0 && (slots_[slot] & ~kUsedSlot) >> kIdBits != pair_key) slot = (slot + 1) & (num_slots - 1);
    slots_[slot] = kUsedSlot | (pair_key << kIdBits) | rank;
    results_.push_back(m.result);
  }

  if (!results_.empty()) first_result_ = results_[0];
  for (size_t rank = 0; rank < results_.size(); ++rank) {
    if (results_[rank] != first_result_ + static_cast<int32_t>(rank)) {
      first_result_ = -1;
      break;
    }
  }

  byte_pair_ranks_.resize(256 * 256);
  for (size_t left = 0; left < 256; ++left) {
    for (size_t right = 0; right < 256; ++right) {
      byte_pair_ranks_[left * 256 + right] = RankOf(byte_ids_[left], byte_ids_[right]);
    }
  }
}

uint32_t Bpe::RankOf(int32_t left, int32_t right) const {
  const uint64_t pair_key = PairKey(left, right);
  const uint64_t hash = HashOf(pair_key);
  const size_t bit = hash >> bit_shift_;
  if ((may_merge_[bit / 64] >> (bit % 64) & 1) == 0) return kNoRank;
  const uint64_t wanted = (kUsedSlot >> kIdBits) | pair_key;
  for (size_t slot = hash >> slot_shift_;; slot = (slot + 1) & (slots_.size() - 1)) {
    const uint64_t value = slots_[slot];
    if (value >> kIdBits == wanted) return static_cast<uint32_t>(value & kIdMask);
    if (value == 0) return kNoRank;
  }
}

void Bpe::Encode(std::span<const std::string_view> pieces, const char* text_end, IdBuffer& out) const {
  PieceCache::Key keys[kMaxBatch];
  for (size_t i = 0; i < pieces.size(); ++i) {
    if (pieces[i].size() > PieceCache::kMaxPieceBytes) continue;
    const size_t readable = static_cast<size_t>(text_end - pieces[i].data());
    keys[i] = PieceCache::MakeKey(pieces[i], readable >= PieceCache::kMaxPieceBytes);
    cache_.Prefetch(keys[i]);
  }
  for (size_t i = 0; i < pieces.size(); ++i) {
    const std::string_view piece = pieces[i];
    if (piece.size() > PieceCache::kMaxPieceBytes) {
      out.Commit(EncodeUncached(piece, out.Reserve(piece.size())));
      continue;
    }
    int32_t* ids = out.Reserve(PieceCache::kMaxPieceBytes);
    size_t num_ids = cache_.Find(keys[i], ids);
    if (num_ids == 0) {
      num_ids = EncodeUncached(piece, ids);
      if (num_ids <= PieceCache::kMaxIds) cache_.Insert(keys[i], ids, num_ids);
    }
    out.Commit(num_ids);
  }
}

size_t Bpe::EncodeUncached(std::string_view piece, int32_t* ids) const {
  if (piece.size() <= kMaxShort) return MergeShort(piece, ids);
  return piece.size() <= kWindow ? MergeLong<uint32_t>(piece, ids) : MergeInWindows(piece, ids);
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

template <typename Position>
size_t Bpe::MergeLong(std::string_view piece, int32_t* ids) const {
  // A linked list over the symbols; a symbol keeps the position of its first byte. ids[i] belongs to the live position i.
  // The queue may hold entries that a later merge made stale: the pair's rank in the symbol tells.
  const size_t n = piece.size();
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(piece[i]); };
  struct Symbol {
    Position previous;
    Position next;
    uint32_t rank;  // of the pair with the next symbol; kNoRank for dead symbols too
  };
  std::vector<Symbol> symbols(n);
  std::vector<uint64_t> first_pairs;  // the queue in two parts: the pairs of bytes, sorted once, and a heap of later pairs
  first_pairs.reserve(n);
  for (size_t i = 0; i < n; ++i) {
    const uint32_t rank = i + 1 < n ? byte_pair_ranks_[size_t{byte(i)} * 256 + byte(i + 1)] : kNoRank;
    ids[i] = byte_ids_[byte(i)];
    // previous of the first wraps, but is never followed
    symbols[i] = {static_cast<Position>(i - 1), static_cast<Position>(i + 1), rank};
    if (rank != kNoRank) first_pairs.push_back((uint64_t{rank} << kPositionBits) | i);
  }
  std::sort(first_pairs.begin(), first_pairs.end());
  std::priority_queue<uint64_t, std::vector<uint64_t>, std::greater<>> later_pairs;
  const auto set_rank = [&](size_t at, uint32_t rank) {
    symbols[at].rank = rank;
    if (rank != kNoRank) later_pairs.push((uint64_t{rank} << kPositionBits) | at);
  };
  for (size_t next_first = 0;;) {
    uint64_t key;
    if (next_first < first_pairs.size() && (later_pairs.empty() || first_pairs[next_first] < later_pairs.top())) {
      key = first_pairs[next_first++];
    } else if (!later_pairs.empty()) {
      key = later_pairs.top();
      later_pairs.pop();
    } else {
      break;
    }
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
      set_rank(at, RankOf(ids[at], ids[symbol.next]));
    } else {
      symbol.rank = kNoRank;
    }
    if (at > 0) set_rank(symbol.previous, RankOf(ids[symbol.previous], ids[at]));
  }
  size_t num_ids = 0;
  for (size_t at = 0; at < n; at = symbols[at].next) ids[num_ids++] = ids[at];
  return num_ids;
}

// Why windows give the same ids as the whole: a row of tokens is the encoding of its text exactly when every two neighbours
// are the encoding of theirs. (Merges are chosen by rank, then position. As long as nothing has crossed a border between
// tokens, what happens within two neighbours is what happens to them alone, in the same order; so the first merge across a
// border in the whole would be one in the pair too, and the other way round.) If the encodings of two overlapping windows
// have one token in common, at the same place, then all neighbours of "first window up to that token, second window from it
// on" are neighbours in one of the two, hence the row is the encoding of the text of both.
size_t Bpe::MergeInWindows(std::string_view piece, int32_t* ids) const {
  size_t window = kWindow;
  size_t end = window;  // ids[0..num_ids) is the encoding of piece[0..end)
  size_t num_ids = MergeLong<uint32_t>(piece.substr(0, end), ids);
  std::vector<int32_t> next;
  for (size_t overlap = kOverlap; end < piece.size();) {
    size_t first = num_ids;  // the token at which the next window begins
    size_t begin = end;
    while (first > 0 && end - begin < overlap) begin -= NumBytes(ids[--first]);
    const std::string_view text = piece.substr(begin, end - begin + window);
    next.resize(text.size());
    const bool is_small = text.size() < std::numeric_limits<uint32_t>::max();
    const size_t num_next = is_small ? MergeLong<uint32_t>(text, next.data()) : MergeLong<uint64_t>(text, next.data());
    size_t old_idx = first;
    size_t next_idx = 0;
    // Walk both rows to a token in common. When the window begins at the start of the piece it simply replaces the row.
    bool is_joined = begin == 0;
    for (size_t old_at = begin, next_at = begin; !is_joined && old_idx < num_ids && next_idx < num_next;) {
      if (old_at == next_at && ids[old_idx] == next[next_idx]) {
        is_joined = true;
      } else if (old_at <= next_at) {
        old_at += NumBytes(ids[old_idx++]);
      } else {
        next_at += NumBytes(next[next_idx++]);
      }
    }
    if (!is_joined) {
      // Ambiguous for a long way. Both sizes stay up, so even then the work is O(n log n) in all.
      overlap *= 2;
      window = std::max(window, 2 * overlap);
      continue;
    }
    std::copy(next.begin() + static_cast<std::ptrdiff_t>(next_idx), next.begin() + static_cast<std::ptrdiff_t>(num_next),
              ids + old_idx);
    num_ids = old_idx + (num_next - next_idx);
    end = begin + text.size();
  }
  return num_ids;
}

}  // namespace deepinfer::text
