// SPDX-License-Identifier: Apache-2.0
//
// Text of unknown origin on its way to a terminal, a log or an error message.
#pragma once

#include <string>
#include <string_view>

namespace deepinfer {

// Control characters (C0, DEL, C1) become \xNN or \n, \t, \r; ill-formed UTF-8 becomes \xNN; the rest passes. At most
// max_bytes of input are shown, then "...".
std::string Escape(std::string_view text, size_t max_bytes = 256);

// For streaming model text to a terminal: newline and tab pass, every other control character becomes \xNN.
std::string EscapeForTerminal(std::string_view text);

}  // namespace deepinfer
