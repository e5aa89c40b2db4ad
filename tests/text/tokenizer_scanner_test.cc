// SPDX-License-Identifier: Apache-2.0
#include "text/tokenizer_scanner.h"

#include <random>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/file.h"
#include "core/utf8.h"
#include "text/tokenizer_test_support.h"

namespace deepinfer::text {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::vector<std::string> Pieces(std::string_view text) {
  std::vector<std::string> pieces;
  ScanPieces(text, [&](const char* begin, const char* end) { pieces.emplace_back(begin, end); });
  return pieces;
}

TEST(Unicode, ClassesEqualTheReferenceTables) {
  const Json classes = ReadJsonFile(DEEPINFER_SOURCE_DIR "/tests/golden/tokenizer/unicode_classes.json").value();
  std::vector<char> expected(0x110000, '-');
  for (const auto& [name, ranges] : classes["ranges"].items()) {
    for (const auto& range : ranges) {
      for (uint32_t c = range[0].get<uint32_t>(); c <= range[1].get<uint32_t>(); ++c) expected[c] = name[0];
    }
  }
  constexpr std::string_view kNames[] = {"-", "L", "M", "N", "PS", "s", "s", "L", "M", "PS", "-"};
  for (uint32_t c = 0; c < 0x110000; ++c) {
    const CharClass char_class = ClassOf(c);
    ASSERT_NE(kNames[static_cast<size_t>(char_class)].find(expected[c]), std::string_view::npos) << c;
    ASSERT_EQ(char_class == CharClass::kNewline, c == '\n' || c == '\r') << c;
    ASSERT_EQ(char_class >= CharClass::kCjkLetter, (c >= 0x4e00 && c <= 0x9fa5) || (c >= 0x3040 && c <= 0x30ff)) << c;
    if (c < 0x80) {
      ASSERT_EQ(scanner::kAscii.char_class[c], static_cast<uint8_t>(char_class)) << c;
    }
  }
}

TEST(Scanner, WordsTakeOnePrefixCharacter) {
  EXPECT_THAT(Pieces("Hello, world"), ElementsAre("Hello", ",", " world"));
  EXPECT_THAT(Pieces("\tx\u00a0y\x01z"), ElementsAre("\tx", "\u00a0y", "\x01z"));
  EXPECT_THAT(Pieces("\nx"), ElementsAre("\n", "x"));
  EXPECT_THAT(Pieces("don't I'Lé"), ElementsAre("don", "'t", " I", "'L", "é"));
}

TEST(Scanner, AsciiPunctuationJoinsAsciiLettersOnly) {
  EXPECT_THAT(Pieces("$foo_bar~é"), ElementsAre("$foo", "_bar", "~", "é"));
  EXPECT_THAT(Pieces("..x"), ElementsAre("..", "x"));
  EXPECT_THAT(Pieces(" .x"), ElementsAre(" .", "x"));
  EXPECT_THAT(Pieces("«x"), ElementsAre("«", "x"));
}

TEST(Scanner, PunctuationTakesASpaceBeforeAndLineEndsAfter) {
  EXPECT_THAT(Pieces("a !?\r\n\nb"), ElementsAre("a", " !?\r\n\n", "b"));
  EXPECT_THAT(Pieces("\t!"), ElementsAre("\t", "!"));
  EXPECT_THAT(Pieces("! \n"), ElementsAre("!", " \n"));
}

TEST(Scanner, WhiteSpace) {
  EXPECT_THAT(Pieces("x  y"), ElementsAre("x", " ", " y"));
  EXPECT_THAT(Pieces("\n\n  z"), ElementsAre("\n\n", " ", " z"));
  EXPECT_THAT(Pieces("  \n \n  "), ElementsAre("  \n \n", "  "));
  EXPECT_THAT(Pieces("   "), ElementsAre("   "));
  EXPECT_THAT(Pieces("a   1"), ElementsAre("a", "   ", "1"));
  EXPECT_THAT(Pieces("a   中"), ElementsAre("a", "   ", "中"));
  EXPECT_THAT(Pieces("\u3000\u3000\u0085!"), ElementsAre("\u3000\u3000", "\u0085", "!"));
  EXPECT_THAT(Pieces(""), IsEmpty());
}

TEST(Scanner, NumbersAreGroupedFromTheStartOfTheirRun) {
  EXPECT_THAT(Pieces(" 123"), ElementsAre(" ", "123"));
  EXPECT_THAT(Pieces("12345678a9"), ElementsAre("123", "456", "78", "a", "9"));
  EXPECT_THAT(Pieces("1½Ⅷ٣"), ElementsAre("1½Ⅷ", "٣"));
}

TEST(Scanner, CjkRunsAreCutOutAndScannedAlone) {
  EXPECT_THAT(Pieces("a中文b"), ElementsAre("a", "中文", "b"));
  EXPECT_THAT(Pieces("カ・タ゛ー"), ElementsAre("カ", "・", "タ", "゛", "ー"));
  EXPECT_THAT(Pieces("\u3099か\u3099"), ElementsAre("\u3099か\u3099"));
  EXPECT_THAT(Pieces("\u3040か\u3040"), ElementsAre("\u3040か", "\u3040"));
  EXPECT_THAT(Pieces("・\n"), ElementsAre("・", "\n"));
  EXPECT_THAT(Pieces("龥龦㐀"), ElementsAre("龥", "龦㐀"));
}

TEST(Scanner, EmojiAndOddCharacters) {
  EXPECT_THAT(Pieces("👨\u200d👩"), ElementsAre("👨", "\u200d", "👩"));
  EXPECT_THAT(Pieces("👨\u200dx"), ElementsAre("👨", "\u200dx"));
  EXPECT_THAT(Pieces("❤\ufe0fx"), ElementsAre("❤", "\ufe0fx"));
  EXPECT_THAT(Pieces("👍🏽"), ElementsAre("👍🏽"));
  EXPECT_THAT(Pieces("\x01\x02\u0378!"), ElementsAre("\x01\x02\u0378", "!"));
  EXPECT_THAT(Pieces("\x01\x02 "), ElementsAre("\x01\x02", " "));
  EXPECT_THAT(Pieces("\x01\x02x"), ElementsAre("\x01", "\x02x"));
}

TEST(ScannerProperty, PiecesCoverTheText) {
  std::mt19937_64 random(4);
  for (int i = 0; i < 2000; ++i) {
    const std::string text = RandomText(random, 50);
    std::string joined;
    for (const std::string& piece : Pieces(text)) {
      ASSERT_FALSE(piece.empty());
      joined += piece;
    }
    ASSERT_EQ(joined, text);
  }
}

TEST(ScannerProperty, SafeCutsChangeNoPiece) {
  std::mt19937_64 random(5);
  int num_cuts = 0;
  for (int i = 0; i < 20000; ++i) {
    const std::string text = RandomText(random, 20);
    const size_t cut = FindSafeCut(text, random() % (text.size() + 1), 1 + random() % 40);
    ASSERT_GT(cut, 0u);
    ASSERT_LE(cut, text.size());
    if (cut < text.size()) ++num_cuts;
    std::vector<std::string> pieces = Pieces(std::string_view(text).substr(0, cut));
    for (std::string& piece : Pieces(std::string_view(text).substr(cut))) pieces.push_back(std::move(piece));
    ASSERT_EQ(pieces, Pieces(text)) << text << " at " << cut;
  }
  EXPECT_GT(num_cuts, 10000);
}

TEST(Scanner, SafeCutPrefersLineEndsThenSpacesThenRunEdges) {
  EXPECT_EQ(FindSafeCut("aa bb1 c\nd", 1, 100), 9u);
  EXPECT_EQ(FindSafeCut("aa bb1 c\nd", 1, 4), 2u);
  EXPECT_EQ(FindSafeCut("aa bb1 c\nd", 4, 3), 5u);
  EXPECT_EQ(FindSafeCut("aa-bb!", 1, 100), 6u);
  EXPECT_EQ(FindSafeCut("x  \n y", 1, 100), 1u);
  EXPECT_EQ(FindSafeCut("", 0, 100), 0u);
}

}  // namespace
}  // namespace deepinfer::text
