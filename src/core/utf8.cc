// SPDX-License-Identifier: Apache-2.0
#include "core/utf8.h"

namespace deepinfer {

Utf8Char DecodeUtf8(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t first = byte(0);
  if (first < 0x80) return {first, 1, true, false};
  int length = 0;
  uint8_t low = 0x80;  // allowed range of the second byte: excludes overlong forms, surrogates and > U+10FFFF
  uint8_t high = 0xbf;
  uint32_t code_point = 0;
  if (first >= 0xc2 && first <= 0xdf) {
    length = 2;
    code_point = first & 0x1fu;
  } else if (first >= 0xe0 && first <= 0xef) {
    length = 3;
    code_point = first & 0x0fu;
    if (first == 0xe0) low = 0xa0;
    if (first == 0xed) high = 0x9f;
  } else if (first >= 0xf0 && first <= 0xf4) {
    length = 4;
    code_point = first & 0x07u;
    if (first == 0xf0) low = 0x90;
    if (first == 0xf4) high = 0x8f;
  } else {
    return {0xfffd, 1, false, false};
  }
  for (int i = 1; i < length; ++i) {
    if (static_cast<size_t>(i) >= text.size()) return {0xfffd, static_cast<uint8_t>(i), false, true};
    const uint8_t b = byte(static_cast<size_t>(i));
    if (b < low || b > high) return {0xfffd, static_cast<uint8_t>(i), false, false};
    low = 0x80;
    high = 0xbf;
    code_point = (code_point << 6) | (b & 0x3fu);
  }
  return {code_point, static_cast<uint8_t>(length), true, false};
}

void AppendUtf8(uint32_t code_point, std::string& out) {
  const auto push = [&](uint32_t b) { out.push_back(static_cast<char>(b)); };
  if (code_point < 0x80) {
    push(code_point);
  } else if (code_point < 0x800) {
    push(0xc0 | (code_point >> 6));
    push(0x80 | (code_point & 0x3f));
  } else if (code_point < 0x10000) {
    push(0xe0 | (code_point >> 12));
    push(0x80 | ((code_point >> 6) & 0x3f));
    push(0x80 | (code_point & 0x3f));
  } else {
    push(0xf0 | (code_point >> 18));
    push(0x80 | ((code_point >> 12) & 0x3f));
    push(0x80 | ((code_point >> 6) & 0x3f));
    push(0x80 | (code_point & 0x3f));
  }
}

bool IsValidUtf8(std::string_view text) {
  while (!text.empty()) {
    const Utf8Char c = DecodeUtf8(text);
    if (!c.is_valid) return false;
    text.remove_prefix(c.num_bytes);
  }
  return true;
}

std::string ReplaceInvalidUtf8(std::string_view text, bool* replaced) {
  std::string out;
  out.reserve(text.size());
  bool any = false;
  while (!text.empty()) {
    const Utf8Char c = DecodeUtf8(text);
    if (c.is_valid) {
      out.append(text.substr(0, c.num_bytes));
    } else {
      out.append("\xef\xbf\xbd");
      any = true;
    }
    text.remove_prefix(c.num_bytes);
  }
  if (replaced != nullptr) *replaced = any;
  return out;
}

}  // namespace deepinfer
