// SPDX-License-Identifier: Apache-2.0
#include "protocols/custom_tool_input.h"

#include <charconv>

#include "core/utf8.h"

namespace deepinfer::protocols {

namespace {

// As the output parser writes it.
constexpr std::string_view kOpening = R"({"input": ")";
constexpr size_t kUnicodeEscapeBytes = 6;  // \u001f

}  // namespace

void CustomToolInput::Push(std::string_view arguments, std::string& out) {
  while (state_ == State::kOpening && !arguments.empty()) {
    if (arguments.front() != kOpening[num_matched_]) {
      state_ = State::kRaw;
      out += kOpening.substr(0, num_matched_);
      break;
    }
    arguments.remove_prefix(1);
    if (++num_matched_ == kOpening.size()) state_ = State::kText;
  }
  if (state_ == State::kRaw) out += arguments;
  if (state_ == State::kText) PushText(arguments, out);
}

void CustomToolInput::PushText(std::string_view piece, std::string& out) {
  for (const char c : piece) {
    if (escape_.empty()) {
      if (c == '"') {
        state_ = State::kDone;
        return;
      }
      if (c == '\\') {
        escape_ = c;
      } else {
        out += c;
      }
      continue;
    }
    escape_ += c;
    if (escape_[1] == 'u' && escape_.size() < kUnicodeEscapeBytes) continue;
    switch (escape_[1]) {
      case 'n': out += '\n'; break;
      case 'r': out += '\r'; break;
      case 't': out += '\t'; break;
      case 'b': out += '\b'; break;
      case 'f': out += '\f'; break;
      case 'u': {
        uint32_t code = 0;
        std::from_chars(escape_.data() + 2, escape_.data() + escape_.size(), code, 16);
        AppendUtf8(code, out);
        break;
      }
      default: out += c; break;
    }
    escape_.clear();
  }
}

}  // namespace deepinfer::protocols
