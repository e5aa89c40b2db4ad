// SPDX-License-Identifier: Apache-2.0
#include "text/unicode.h"

#include <algorithm>

namespace deepinfer::text {

namespace {

// Hangul syllables are arithmetic (The Unicode Standard, section 3.12).
constexpr uint32_t kSyllableBase = 0xac00;
constexpr uint32_t kLeadBase = 0x1100;
constexpr uint32_t kVowelBase = 0x1161;
constexpr uint32_t kTailBase = 0x11a7;
constexpr uint32_t kNumVowels = 21;
constexpr uint32_t kNumTails = 28;
constexpr uint32_t kNumSyllables = 19 * kNumVowels * kNumTails;

// Both tables are ascending by code_point.
template <typename Entry>
const Entry* Find(const Entry* entries, int num_entries, uint32_t code_point) {
  const Entry* end = entries + num_entries;
  const Entry* at = std::lower_bound(entries, end, code_point,
                                     [](const Entry& e, uint32_t wanted) { return e.code_point < wanted; });
  return at != end && at->code_point == code_point ? at : nullptr;
}

}  // namespace

std::u32string_view Decompose(uint32_t code_point, char32_t (&buffer)[3]) {
  if (code_point - kSyllableBase < kNumSyllables) {
    const uint32_t syllable = code_point - kSyllableBase;
    buffer[0] = kLeadBase + syllable / (kNumVowels * kNumTails);
    buffer[1] = kVowelBase + syllable / kNumTails % kNumVowels;
    const uint32_t tail = syllable % kNumTails;
    buffer[2] = kTailBase + tail;
    return {buffer, tail == 0 ? 2u : 3u};
  }
  if (code_point >= 0x80) {
    const auto* entry = Find(unicode_tables::kDecompositions, unicode_tables::kNumDecompositions, code_point);
    if (entry != nullptr) return {unicode_tables::kDecomposedText + entry->begin, entry->length};
  }
  buffer[0] = code_point;
  return {buffer, 1};
}

uint32_t ToLower(uint32_t code_point) {
  if (code_point < 0x80) return code_point - 'A' < 26 ? code_point + 32 : code_point;
  const auto* entry = Find(unicode_tables::kLowerCase, unicode_tables::kNumLowerCase, code_point);
  return entry != nullptr ? entry->lower : code_point;
}

}  // namespace deepinfer::text
