// SPDX-License-Identifier: Apache-2.0
#include "core/escape.h"

#include <gtest/gtest.h>

namespace deepinfer {
namespace {

TEST(Escape, ControlCharactersAndIllFormedBytes) {
  EXPECT_EQ(Escape("a\nb\tc\rd\x1b[31m\x7f"), "a\\nb\\tc\\rd\\x1b[31m\\x7f");
  EXPECT_EQ(Escape("\xff\xc2\x85"), "\\xff\\xc2\\x85");
  EXPECT_EQ(Escape("plain Grüße 你好"), "plain Grüße 你好");
  EXPECT_EQ(EscapeForTerminal("a\nb\tc\rd\x1b"), "a\nb\tc\\x0dd\\x1b");
}

TEST(Escape, ControlsOfTheWritingDirection) {
  const std::pair<const char*, const char*> cases[] = {
      {"\u200e", "\\u200e"}, {"\u200f", "\\u200f"}, {"\u202a", "\\u202a"}, {"\u202e", "\\u202e"}, {"\u2066", "\\u2066"},
      {"\u2069", "\\u2069"}, {"\u061c", "\\u061c"},
      // Their neighbours are shown: joiners, separators, ordinary right-to-left text.
      {"\u200d", "\u200d"}, {"\u2010", "\u2010"}, {"\u202f", "\u202f"}, {"\u206a", "\u206a"}, {"\u05d0\u0627", "\u05d0\u0627"}};
  for (const auto& [text, expected] : cases) {
    EXPECT_EQ(Escape(text), expected);
    EXPECT_EQ(EscapeForTerminal(text), expected);
  }
}

TEST(Escape, LongTextIsCut) { EXPECT_EQ(Escape("abcdef", 3), "abc..."); }

}  // namespace
}  // namespace deepinfer
