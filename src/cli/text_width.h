// SPDX-License-Identifier: Apache-2.0
//
// Columns that text takes on a terminal: 0 for combining marks, 2 for wide East Asian characters and emoji, 1 otherwise.
#pragma once

#include <cstdint>
#include <string_view>

namespace deepinfer::cli {

int CodePointColumns(uint32_t code_point);
int TextColumns(std::string_view text);

// Byte offsets of the character (with its combining marks and joined parts) after / before `at`.
size_t NextCharacter(std::string_view text, size_t at);
size_t PreviousCharacter(std::string_view text, size_t at);

}  // namespace deepinfer::cli
