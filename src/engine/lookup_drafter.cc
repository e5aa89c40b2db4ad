// SPDX-License-Identifier: Apache-2.0
#include "engine/lookup_drafter.h"

#include <algorithm>

namespace deepinfer::engine {

size_t LookupDrafter::Hash(int32_t a, int32_t b, int32_t c, size_t size) {
  uint64_t hash = static_cast<uint32_t>(a);
  hash = hash * 0x9E3779B97F4A7C15u + static_cast<uint32_t>(b);
  hash = hash * 0x9E3779B97F4A7C15u + static_cast<uint32_t>(c);
  return static_cast<size_t>((hash * 0x9E3779B97F4A7C15u) >> 20) & (size - 1);
}

void LookupDrafter::Index(Slot& slot, size_t begin) {
  constexpr size_t kSmallest = 512;
  if (slot.last.size() < 2 * slot.tokens.size()) {
    size_t size = std::max(kSmallest, slot.last.size());
    while (size < 4 * slot.tokens.size()) size *= 2;
    slot.last.assign(size, -1);
    begin = 0;
  }
  for (size_t i = std::max<size_t>(begin, 2); i < slot.tokens.size(); ++i)
    slot.last[Hash(slot.tokens[i - 2], slot.tokens[i - 1], slot.tokens[i], slot.last.size())] = static_cast<int32_t>(i);
}

void LookupDrafter::Bind(int32_t slot, std::span<const int32_t> tokens) {
  Slot& s = slots_[static_cast<size_t>(slot)];
  s.tokens.assign(tokens.begin(), tokens.end());
  std::ranges::fill(s.last, -1);
  s.acceptance = kExpected;
  Index(s, 0);
}

void LookupDrafter::Copy(int32_t from, int32_t to, int64_t length) {
  Slot& target = slots_[static_cast<size_t>(to)];
  target = slots_[static_cast<size_t>(from)];
  target.tokens.resize(static_cast<size_t>(length));
}

void LookupDrafter::Append(int32_t slot, std::span<const int32_t> tokens) {
  Slot& s = slots_[static_cast<size_t>(slot)];
  const size_t begin = s.tokens.size();
  s.tokens.insert(s.tokens.end(), tokens.begin(), tokens.end());
  Index(s, begin);
}

void LookupDrafter::Truncate(int32_t slot, int64_t length) {
  // Entries of the table behind the end are told by their index.
  Slot& s = slots_[static_cast<size_t>(slot)];
  if (static_cast<int64_t>(s.tokens.size()) > length) s.tokens.resize(static_cast<size_t>(length));
}

size_t LookupDrafter::Propose(int32_t slot, int32_t newest, std::span<int32_t> drafts) const {
  const Slot& s = slots_[static_cast<size_t>(slot)];
  const size_t n = s.tokens.size();
  if (n < 3 || s.last.empty()) return 0;
  const int32_t found = s.last[Hash(s.tokens[n - 2], s.tokens[n - 1], newest, s.last.size())];
  const size_t at = static_cast<size_t>(found);
  // Another triple with this hash, or one that was taken back.
  if (found < 2 || at >= n || s.tokens[at] != newest || s.tokens[at - 1] != s.tokens[n - 1] || s.tokens[at - 2] != s.tokens[n - 2]) return 0;
  size_t count = 0;
  for (; count < drafts.size(); ++count) {
    // Behind the end the text repeats itself: `newest` first, then what has been proposed.
    const size_t i = at + 1 + count;
    drafts[count] = i < n ? s.tokens[i] : i == n ? newest : drafts[i - n - 1];
  }
  return count;
}

void LookupDrafter::Report(int32_t slot, int num_verified, int num_accepted) {
  if (num_verified < 1) return;
  // Drafts behind the first rejected one say nothing.
  const int num_reached = std::min(num_accepted + 1, num_verified);
  float& acceptance = slots_[static_cast<size_t>(slot)].acceptance;
  acceptance += 0.3f * (static_cast<float>(num_accepted) / static_cast<float>(num_reached) - acceptance);
}

void LookupDrafter::Forget(int32_t slot) {
  float& acceptance = slots_[static_cast<size_t>(slot)].acceptance;
  acceptance += 0.01f * (kExpected - acceptance);
}

}  // namespace deepinfer::engine
