// SPDX-License-Identifier: Apache-2.0
#include "core/ascii.h"

#include <gtest/gtest.h>

#include <array>

namespace deepinfer {
namespace {

TEST(Ascii, PercentDecode) {
  EXPECT_EQ(PercentDecode("a%2Fb%2f%41"), "a/b/A");
  EXPECT_EQ(PercentDecode("%"), "%");
  EXPECT_EQ(PercentDecode("%zz%2"), "%zz%2");
}

TEST(Ascii, LowerLeavesOtherBytes) { EXPECT_EQ(AsciiLower("AZaz09[\xc3\x84"), "azaz09[\xc3\x84"); }

TEST(Ascii, Hexadecimal) {
  EXPECT_EQ(ToHex(std::array<uint8_t, 3>{0, 0x0f, 0xa5}), "000fa5");
  for (int c = 0; c < 128; ++c) {
    const size_t place = std::string_view("0123456789abcdef").find(AsciiLower(std::string(1, static_cast<char>(c))));
    EXPECT_EQ(HexDigit(static_cast<char>(c)), place == std::string_view::npos ? -1 : static_cast<int>(place)) << c;
  }
}

}  // namespace
}  // namespace deepinfer
