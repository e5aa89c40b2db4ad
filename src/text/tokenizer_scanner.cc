// SPDX-License-Identifier: Apache-2.0
#include "text/tokenizer_scanner.h"

#include <algorithm>

namespace deepinfer::text {

namespace {

bool IsWhite(CharClass c) { return c == CharClass::kSpace || c == CharClass::kNewline; }

bool IsLetterOrMark(CharClass c) {
  return c == CharClass::kLetter || c == CharClass::kMark || c == CharClass::kCjkLetter || c == CharClass::kCjkMark;
}

bool IsAfterLineEnd(CharClass a, CharClass b) { return a == CharClass::kNewline && !IsWhite(b); }
bool IsBeforeWhiteSpace(CharClass a, CharClass b) { return IsLetterOrMark(a) && IsWhite(b); }
bool IsRunEdge(CharClass a, CharClass b) {
  const auto run_of = [](CharClass c) { return c == CharClass::kNumber ? 1 : c >= CharClass::kCjkLetter ? 2 : 0; };
  return run_of(a) != run_of(b);
}

bool IsContinuation(char c) { return (static_cast<uint8_t>(c) & 0xc0) == 0x80; }

}  // namespace

size_t FindSafeCut(std::string_view text, size_t from, size_t window) {
  size_t first = std::min(std::max<size_t>(from, 1), text.size());
  while (first < text.size() && IsContinuation(text[first])) ++first;
  if (first == text.size()) return text.size();
  const size_t last = text.size() - first > window ? first + window : text.size();
  for (const auto is_safe : {IsAfterLineEnd, IsBeforeWhiteSpace, IsRunEdge}) {
    size_t before = first - 1;  // start of the character in front of the border
    while (before > 0 && IsContinuation(text[before])) --before;
    CharClass a = scanner::CharAt(text.data() + before).char_class;
    for (size_t at = first; at < last;) {
      const scanner::Char b = scanner::CharAt(text.data() + at);
      if (is_safe(a, b.char_class)) return at;
      a = b.char_class;
      at += b.num_bytes;
    }
  }
  return text.size();
}

}  // namespace deepinfer::text
