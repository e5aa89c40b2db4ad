// SPDX-License-Identifier: Apache-2.0
//
// UTF-8 decoding with the WHATWG replacement rule: each maximal ill-formed subpart is one U+FFFD.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace deepinfer {

struct Utf8Char {
  uint32_t code_point;  // U+FFFD when ill-formed
  uint8_t num_bytes;    // 1..4 bytes consumed
  bool is_valid;
  bool is_truncated;  // the text ends inside a character that could still be completed
};

// Decodes the character at the start of `text`, which must not be empty.
Utf8Char DecodeUtf8(std::string_view text);

void AppendUtf8(uint32_t code_point, std::string& out);

bool IsValidUtf8(std::string_view text);

// Replaces each maximal ill-formed subpart by U+FFFD. *replaced (optional) tells whether anything was.
std::string ReplaceInvalidUtf8(std::string_view text, bool* replaced = nullptr);

}  // namespace deepinfer
