// SPDX-License-Identifier: Apache-2.0
//
// Text of protocols, byte by byte and without a locale: lower case, hexadecimal digits, percent encoding.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace deepinfer {

// A to Z become a to z; all other bytes stay.
std::string AsciiLower(std::string_view text);
// 0 to 15 in either case; -1 for any other character.
int HexDigit(char c);
std::string ToHex(std::span<const uint8_t> bytes);
// %XX becomes its byte; a % without two digits behind it stays.
std::string PercentDecode(std::string_view text);

}  // namespace deepinfer
