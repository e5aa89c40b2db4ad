// SPDX-License-Identifier: Apache-2.0
#include "cli/text_width.h"

#include <algorithm>
#include <iterator>

#include "core/utf8.h"

namespace deepinfer::cli {

namespace {

struct Range {
  uint32_t first;
  uint32_t last;
};

constexpr Range kZeroWidth[] = {
    {0x0300, 0x036f}, {0x0483, 0x0489}, {0x0591, 0x05bd}, {0x0610, 0x061a}, {0x064b, 0x065f}, {0x06d6, 0x06dc},
    {0x0900, 0x0902}, {0x093c, 0x093c}, {0x0941, 0x0948}, {0x094d, 0x094d}, {0x0e31, 0x0e31}, {0x0e34, 0x0e3a},
    {0x0e47, 0x0e4e}, {0x1ab0, 0x1aff}, {0x1dc0, 0x1dff}, {0x200b, 0x200f}, {0x202a, 0x202e}, {0x2060, 0x2064},
    {0x20d0, 0x20ff}, {0x302a, 0x302d}, {0x3099, 0x309a}, {0xfe00, 0xfe0f}, {0xfe20, 0xfe2f}, {0xfeff, 0xfeff},
    {0x1f3fb, 0x1f3ff}, {0xe0100, 0xe01ef},
};

constexpr Range kWide[] = {
    {0x1100, 0x115f},   {0x231a, 0x231b},   {0x23e9, 0x23ec},   {0x2614, 0x2615},   {0x26a1, 0x26a1},   {0x2705, 0x2705},
    {0x274c, 0x274c},   {0x2e80, 0x303e},   {0x3041, 0x33ff},   {0x3400, 0x4dbf},   {0x4e00, 0x9fff},   {0xa000, 0xa4cf},
    {0xa960, 0xa97c},   {0xac00, 0xd7a3},   {0xf900, 0xfaff},   {0xfe30, 0xfe6f},   {0xff00, 0xff60},   {0xffe0, 0xffe6},
    {0x1f300, 0x1f64f}, {0x1f680, 0x1f6ff}, {0x1f900, 0x1f9ff}, {0x1fa70, 0x1faff}, {0x20000, 0x3fffd},
};

template <size_t N>
bool Contains(const Range (&ranges)[N], uint32_t code_point) {
  const auto* it = std::upper_bound(std::begin(ranges), std::end(ranges), code_point,
                                    [](uint32_t value, const Range& range) { return value < range.first; });
  return it != std::begin(ranges) && code_point <= std::prev(it)->last;
}

constexpr uint32_t kJoiner = 0x200d;

}  // namespace

int CodePointColumns(uint32_t code_point) {
  if (code_point < 0x300) return 1;
  if (Contains(kZeroWidth, code_point)) return 0;
  return Contains(kWide, code_point) ? 2 : 1;
}

int TextColumns(std::string_view text) {
  int columns = 0;
  for (size_t at = 0; at < text.size();) {
    const Utf8Char c = DecodeUtf8(text.substr(at));
    columns += CodePointColumns(c.code_point);
    at += c.num_bytes;
  }
  return columns;
}

size_t NextCharacter(std::string_view text, size_t at) {
  bool joined = false;
  for (bool first = true; at < text.size(); first = false) {
    const Utf8Char c = DecodeUtf8(text.substr(at));
    if (!first && !joined && CodePointColumns(c.code_point) != 0) break;
    joined = c.code_point == kJoiner;
    at += c.num_bytes;
  }
  return at;
}

size_t PreviousCharacter(std::string_view text, size_t at) {
  // Lines are short; walking from the front keeps one definition of a character.
  size_t previous = 0;
  for (size_t next = 0; next < at && next < text.size(); next = NextCharacter(text, next)) previous = next;
  return previous;
}

}  // namespace deepinfer::cli
