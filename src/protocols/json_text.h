// SPDX-License-Identifier: Apache-2.0
//
// JSON appended to a string, piece by piece: what the response writers use for every token instead of a document tree.
#pragma once

#include <charconv>
#include <concepts>
#include <string>
#include <string_view>

#include "text/python_json.h"

namespace deepinfer::protocols {

inline void AppendJsonString(std::string_view text, std::string& out) {
  out += '"';
  text::AppendJsonEscaped(text, out);
  out += '"';
}

inline std::string JsonString(std::string_view text) {
  std::string out;
  AppendJsonString(text, out);
  return out;
}

// null, or the text as a string.
template <typename Optional>
void AppendJsonStringOrNull(const Optional& text, std::string& out) {
  if (text) {
    AppendJsonString(*text, out);
  } else {
    out += "null";
  }
}

template <std::integral Int>
void AppendJsonInt(Int value, std::string& out) {
  char buffer[24];
  out.append(buffer, std::to_chars(buffer, buffer + sizeof(buffer), value).ptr);
}

// Shortest digits that read back as the same double; `value` is finite.
inline void AppendJsonDouble(double value, std::string& out) {
  char buffer[32];
  const char* const end = std::to_chars(buffer, buffer + sizeof(buffer), value).ptr;
  const std::string_view digits(buffer, static_cast<size_t>(end - buffer));
  out += digits;
  if (digits.find_first_of(".e") == std::string_view::npos) out += ".0";
}

}  // namespace deepinfer::protocols
