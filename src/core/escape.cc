// SPDX-License-Identifier: Apache-2.0
#include "core/escape.h"

#include <fmt/format.h>

#include "core/utf8.h"

namespace deepinfer {

namespace {

bool IsControl(uint32_t code_point) { return code_point < 0x20 || (code_point >= 0x7f && code_point < 0xa0); }

// Marks and overrides of the direction of writing: invisible, and able to show a name or a command other than it is.
bool IsDirectionControl(uint32_t code_point) {
  return code_point == 0x061c || code_point == 0x200e || code_point == 0x200f || (code_point >= 0x202a && code_point <= 0x202e) ||
         (code_point >= 0x2066 && code_point <= 0x2069);
}

bool IsShown(const Utf8Char& c) { return c.is_valid && !IsControl(c.code_point) && !IsDirectionControl(c.code_point); }

void AppendEscaped(const Utf8Char& c, std::string_view bytes, std::string& out) {
  if (c.is_valid && IsDirectionControl(c.code_point)) {
    fmt::format_to(std::back_inserter(out), "\\u{:04x}", c.code_point);
    return;
  }
  for (const char b : bytes) fmt::format_to(std::back_inserter(out), "\\x{:02x}", static_cast<uint8_t>(b));
}

}  // namespace

std::string Escape(std::string_view text, size_t max_bytes) {
  std::string out;
  size_t done = 0;
  while (done < text.size()) {
    if (done >= max_bytes) return out + "...";
    const Utf8Char c = DecodeUtf8(text.substr(done));
    const std::string_view bytes = text.substr(done, c.num_bytes);
    if (IsShown(c)) {
      out.append(bytes);
    } else if (c.code_point == '\n') {
      out.append("\\n");
    } else if (c.code_point == '\r') {
      out.append("\\r");
    } else if (c.code_point == '\t') {
      out.append("\\t");
    } else {
      AppendEscaped(c, bytes, out);
    }
    done += c.num_bytes;
  }
  return out;
}

std::string EscapeForTerminal(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const Utf8Char c = DecodeUtf8(text);
    const std::string_view bytes = text.substr(0, c.num_bytes);
    if (IsShown(c) || (c.is_valid && (c.code_point == '\n' || c.code_point == '\t'))) {
      out.append(bytes);
    } else {
      AppendEscaped(c, bytes, out);
    }
    text.remove_prefix(c.num_bytes);
  }
  return out;
}

}  // namespace deepinfer
