// SPDX-License-Identifier: Apache-2.0
//
// The pre-tokenizer: cuts plain text into pieces exactly as the three regexes of the tokenizer file do (tokenizer.md 2.1),
// by the equivalent scanner of its section 2.2. Also the borders at which a long text may be cut without changing any
// piece (section 7). Input must be valid UTF-8.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "text/unicode.h"

namespace deepinfer::text {

namespace scanner {

// What a character is to the scan of one run. kEnd: the character belongs to the next run (or the text is over).
enum class Kind : uint8_t { kEnd, kOther, kLetter, kPunctuation, kSpace, kNewline };

struct Char {
  CharClass char_class;
  uint8_t num_bytes;
};

inline constexpr uint8_t kNotAscii = 0xff;

struct AsciiTables {
  std::array<uint8_t, 256> char_class;  // CharClass, kNotAscii for bytes >= 0x80
  std::array<bool, 256> is_letter;
  std::array<bool, 256> is_punctuation;
};

constexpr AsciiTables MakeAsciiTables() {
  AsciiTables t{};
  for (size_t c = 0; c < 256; ++c) {
    const bool is_letter = (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z');
    const bool is_digit = c >= '0' && c <= '9';
    CharClass char_class = CharClass::kOther;
    if (is_letter) char_class = CharClass::kLetter;
    if (is_digit) char_class = CharClass::kNumber;
    if (c > 0x20 && c < 0x7f && !is_letter && !is_digit) char_class = CharClass::kPunctuation;
    if (c == 0x20 || c == 0x09 || c == 0x0b || c == 0x0c) char_class = CharClass::kSpace;
    if (c == 0x0a || c == 0x0d) char_class = CharClass::kNewline;
    t.char_class[c] = c < 0x80 ? static_cast<uint8_t>(char_class) : kNotAscii;
    t.is_letter[c] = is_letter;
    t.is_punctuation[c] = char_class == CharClass::kPunctuation;
  }
  return t;
}
inline constexpr AsciiTables kAscii = MakeAsciiTables();

inline uint8_t Byte(const char* p) { return static_cast<uint8_t>(*p); }

// Of valid UTF-8; p is not at the end.
inline uint32_t DecodeValid(const char* p, uint8_t* num_bytes) {
  const uint32_t b0 = Byte(p);
  if (b0 < 0x80) {
    *num_bytes = 1;
    return b0;
  }
  if (b0 < 0xe0) {
    *num_bytes = 2;
    return ((b0 & 0x1f) << 6) | (Byte(p + 1) & 0x3fu);
  }
  if (b0 < 0xf0) {
    *num_bytes = 3;
    return ((b0 & 0x0f) << 12) | ((Byte(p + 1) & 0x3fu) << 6) | (Byte(p + 2) & 0x3fu);
  }
  *num_bytes = 4;
  return ((b0 & 0x07) << 18) | ((Byte(p + 1) & 0x3fu) << 12) | ((Byte(p + 2) & 0x3fu) << 6) | (Byte(p + 3) & 0x3fu);
}

inline Char CharAt(const char* p) {
  const uint8_t ascii = kAscii.char_class[Byte(p)];
  if (ascii != kNotAscii) return {static_cast<CharClass>(ascii), 1};
  uint8_t num_bytes;
  const uint32_t code_point = DecodeValid(p, &num_bytes);
  return {ClassOf(code_point), num_bytes};
}

// [is CJK run][CharClass]
inline constexpr Kind kKindOf[2][16] = {
    {Kind::kOther, Kind::kLetter, Kind::kLetter, Kind::kEnd, Kind::kPunctuation, Kind::kSpace, Kind::kNewline, Kind::kEnd,
     Kind::kEnd, Kind::kEnd, Kind::kEnd, Kind::kEnd, Kind::kEnd, Kind::kEnd, Kind::kEnd, Kind::kEnd},
    {Kind::kEnd, Kind::kEnd, Kind::kEnd, Kind::kEnd, Kind::kEnd, Kind::kEnd, Kind::kEnd, Kind::kLetter, Kind::kLetter,
     Kind::kPunctuation, Kind::kOther, Kind::kEnd, Kind::kEnd, Kind::kEnd, Kind::kEnd, Kind::kEnd},
};

template <bool kIsCjk>
struct Peeked {
  Kind kind = Kind::kEnd;
  uint8_t num_bytes = 0;

  Peeked(const char* p, const char* end) {
    if (p == end) return;
    const Char c = CharAt(p);
    kind = kKindOf[kIsCjk][static_cast<size_t>(c.char_class)];
    num_bytes = c.num_bytes;
  }
};

template <bool kIsCjk>
const char* SkipKind(const char* p, const char* end, Kind wanted) {
  for (;;) {
    if (!kIsCjk && wanted == Kind::kLetter) {
      while (p != end && kAscii.is_letter[Byte(p)]) ++p;
    }
    const Peeked<kIsCjk> next(p, end);
    if (next.kind != wanted) return p;
    p += next.num_bytes;
  }
}

// Step 3.4: [p, ...) begins with white space of a run that is not CJK. Returns the end of the piece.
inline const char* WhiteSpacePieceEnd(const char* p, const char* end) {
  const char* after_last_newline = nullptr;
  const char* last_char = p;
  const char* run_end = p;
  for (;;) {
    const Peeked<false> next(run_end, end);
    if (next.kind != Kind::kSpace && next.kind != Kind::kNewline) {
      if (after_last_newline != nullptr) return after_last_newline;
      if (next.kind == Kind::kEnd) return run_end;
      return last_char != p ? last_char : run_end;
    }
    last_char = run_end;
    run_end += next.num_bytes;
    if (next.kind == Kind::kNewline) after_last_newline = run_end;
  }
}

// Step 3 on the run that begins at p, which is not empty. Returns its end.
template <bool kIsCjk, typename Emit>
const char* ScanRun(const char* p, const char* end, Emit& emit) {
  const char* gap = nullptr;  // start of the characters that no alternative matched
  for (;;) {
    const char* piece_end;
    if (!kIsCjk && end - p >= 2 && kAscii.is_punctuation[Byte(p)] && kAscii.is_letter[Byte(p + 1)]) {
      piece_end = p + 2;
      while (piece_end != end && kAscii.is_letter[Byte(piece_end)]) ++piece_end;
    } else {
      const Peeked<kIsCjk> c(p, end);
      if (c.kind == Kind::kEnd) {
        if (gap != nullptr) emit(gap, p);
        return p;
      }
      const char* after = p + c.num_bytes;
      if (c.kind == Kind::kLetter) {
        piece_end = SkipKind<kIsCjk>(after, end, Kind::kLetter);
      } else {
        bool is_punctuation = c.kind == Kind::kPunctuation;
        piece_end = nullptr;
        if (c.kind == Kind::kSpace || c.kind == Kind::kOther) {
          const Peeked<kIsCjk> next(after, end);
          if (next.kind == Kind::kLetter) {
            piece_end = SkipKind<kIsCjk>(after + next.num_bytes, end, Kind::kLetter);
          } else if (next.kind == Kind::kPunctuation && *p == ' ') {
            is_punctuation = true;
          }
        }
        if (is_punctuation) {
          piece_end = SkipKind<kIsCjk>(after, end, Kind::kPunctuation);
          while (piece_end != end && (*piece_end == '\r' || *piece_end == '\n') && !kIsCjk) ++piece_end;
        } else if (piece_end == nullptr) {
          if (c.kind == Kind::kOther) {
            if (gap == nullptr) gap = p;
            p = after;
            continue;
          }
          piece_end = WhiteSpacePieceEnd(p, end);
        }
      }
    }
    if (gap != nullptr) {
      emit(gap, p);
      gap = nullptr;
    }
    emit(p, piece_end);
    p = piece_end;
  }
}

}  // namespace scanner

// Calls emit(begin, end) for every piece of `text`, in order; the pieces cover the text.
template <typename Emit>
void ScanPieces(std::string_view text, Emit&& emit) {
  const char* p = text.data();
  const char* const end = p + text.size();
  while (p != end) {
    const scanner::Char c = scanner::CharAt(p);
    if (c.char_class == CharClass::kNumber) {
      // Groups of three are counted from the start of the run; we are always at a multiple of three here.
      const char* group_end = p + c.num_bytes;
      for (int i = 1; i < 3 && group_end != end; ++i) {
        const scanner::Char next = scanner::CharAt(group_end);
        if (next.char_class != CharClass::kNumber) break;
        group_end += next.num_bytes;
      }
      emit(p, group_end);
      p = group_end;
    } else if (c.char_class >= CharClass::kCjkLetter) {
      p = scanner::ScanRun<true>(p, end, emit);
    } else {
      p = scanner::ScanRun<false>(p, end, emit);
    }
  }
}

// A border in [from, from + window) that is safe to cut at, the best kind first: after a line end, before white space, or
// at the edge of a number or CJK run. text.size() if there is none.
size_t FindSafeCut(std::string_view text, size_t from, size_t window);

}  // namespace deepinfer::text
