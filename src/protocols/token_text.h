// SPDX-License-Identifier: Apache-2.0
//
// How responses show a token: its text, or every byte as \xNN when it is no whole text.
#pragma once

#include <iterator>
#include <string>
#include <string_view>

#include <fmt/format.h>

#include "core/utf8.h"

namespace deepinfer::protocols {

inline std::string ReadableToken(std::string_view bytes) {
  if (IsValidUtf8(bytes)) return std::string(bytes);
  std::string out;
  for (const char c : bytes) fmt::format_to(std::back_inserter(out), "\\x{:02x}", static_cast<unsigned char>(c));
  return out;
}

}  // namespace deepinfer::protocols
