// SPDX-License-Identifier: Apache-2.0
#include "model/json_scanner.h"

#include <fmt/format.h>

#include "core/escape.h"
#include "core/utf8.h"

namespace deepinfer::model {

namespace {

bool IsDigit(char c) {
  return c >= '0' && c <= '9';
}

}  // namespace

void JsonScanner::SkipSpace() {
  while (at_ < text_.size()) {
    const char c = text_[at_];
    if (c != ' ' && c != '\n' && c != '\t' && c != '\r') return;
    ++at_;
  }
}

bool JsonScanner::Fail(std::string_view reason) {
  if (error_.empty()) {
    error_ = reason;
    error_at_ = at_;
  }
  return false;
}

std::string JsonScanner::ErrorText() const {
  return fmt::format("invalid JSON at byte {}: {}", error_at_, error_);
}

bool JsonScanner::Consume(char c) {
  if (!ok()) return false;
  SkipSpace();
  if (at_ >= text_.size() || text_[at_] != c) return false;
  ++at_;
  return true;
}

bool JsonScanner::Expect(char c) {
  if (Consume(c)) return true;
  if (at_ >= text_.size()) return Fail(fmt::format("'{}' expected, found the end", c));
  return Fail(fmt::format("'{}' expected, found '{}'", c, Escape(text_.substr(at_, 1))));
}

bool JsonScanner::NextKey(bool& first, std::string& key) {
  if (!ok()) return false;
  if (first) {
    first = false;
    if (!Expect('{') || Consume('}')) return false;
  } else {
    if (Consume('}')) return false;
    if (!Expect(',')) return false;
  }
  return ReadString(key) && Expect(':');
}

bool JsonScanner::NextElement(bool& first) {
  if (!ok()) return false;
  if (first) {
    first = false;
    return Expect('[') && !Consume(']');
  }
  if (Consume(']')) return false;
  return Expect(',');
}

bool JsonScanner::ReadString(std::string& out) {
  out.clear();
  if (!Expect('"')) return false;
  while (true) {
    size_t end = at_;
    while (end < text_.size() && text_[end] != '"' && text_[end] != '\\' &&
           static_cast<uint8_t>(text_[end]) >= 0x20)
      ++end;
    out.append(text_, at_, end - at_);
    at_ = end;
    if (at_ >= text_.size()) return Fail("string without an end");
    if (text_[at_] == '"') break;
    if (text_[at_] != '\\') return Fail("control character in a string");
    ++at_;
    if (!ReadEscape(out)) return false;
  }
  ++at_;
  if (!IsValidUtf8(out)) return Fail("string is not valid UTF-8");
  return true;
}

bool JsonScanner::ReadHex4(uint32_t& out) {
  if (text_.size() - at_ < 4) return Fail("incomplete \\u escape");
  out = 0;
  for (int i = 0; i < 4; ++i) {
    const char c = text_[at_++];
    uint32_t digit = 0;
    if (IsDigit(c)) {
      digit = static_cast<uint32_t>(c - '0');
    } else if (c >= 'a' && c <= 'f') {
      digit = static_cast<uint32_t>(c - 'a' + 10);
    } else if (c >= 'A' && c <= 'F') {
      digit = static_cast<uint32_t>(c - 'A' + 10);
    } else {
      return Fail("bad digit in a \\u escape");
    }
    out = out * 16 + digit;
  }
  return true;
}

bool JsonScanner::ReadEscape(std::string& out) {
  if (at_ >= text_.size()) return Fail("string without an end");
  const char c = text_[at_++];
  switch (c) {
    case '"':
    case '\\':
    case '/':
      out.push_back(c);
      return true;
    case 'b':
      out.push_back('\b');
      return true;
    case 'f':
      out.push_back('\f');
      return true;
    case 'n':
      out.push_back('\n');
      return true;
    case 'r':
      out.push_back('\r');
      return true;
    case 't':
      out.push_back('\t');
      return true;
    case 'u':
      break;
    default:
      return Fail("unknown escape in a string");
  }
  uint32_t code_point = 0;
  if (!ReadHex4(code_point)) return false;
  if (code_point >= 0xdc00 && code_point <= 0xdfff) return Fail("lone surrogate in a string");
  if (code_point >= 0xd800 && code_point <= 0xdbff) {
    uint32_t low = 0;
    if (text_.substr(at_, 2) != "\\u") return Fail("lone surrogate in a string");
    at_ += 2;
    if (!ReadHex4(low)) return false;
    if (low < 0xdc00 || low > 0xdfff) return Fail("lone surrogate in a string");
    code_point = 0x10000 + ((code_point - 0xd800) << 10) + (low - 0xdc00);
  }
  AppendUtf8(code_point, out);
  return true;
}

bool JsonScanner::ReadUint(int64_t& out) {
  if (!ok()) return false;
  SkipSpace();
  const size_t begin = at_;
  int64_t value = 0;
  while (at_ < text_.size() && IsDigit(text_[at_])) {
    if (__builtin_mul_overflow(value, int64_t{10}, &value) ||
        __builtin_add_overflow(value, int64_t{text_[at_] - '0'}, &value)) {
      return Fail("integer out of range");
    }
    ++at_;
  }
  if (at_ == begin) return Fail("non-negative integer expected");
  if (text_[begin] == '0' && at_ > begin + 1) return Fail("number with a leading zero");
  if (at_ < text_.size() && (text_[at_] == '.' || text_[at_] == 'e' || text_[at_] == 'E'))
    return Fail("integer expected");
  out = value;
  return true;
}

bool JsonScanner::SkipValue(int max_depth) {
  if (!ok()) return false;
  SkipSpace();
  if (at_ >= text_.size()) return Fail("value expected, found the end");
  const char c = text_[at_];
  if (c == '"') return ReadString(scratch_);
  if (c == '{' || c == '[') {
    if (max_depth <= 0) return Fail("nested too deep");
    bool first = true;
    if (c == '[') {
      while (NextElement(first)) {
        if (!SkipValue(max_depth - 1)) return false;
      }
    } else {
      while (NextKey(first, scratch_)) {
        if (!SkipValue(max_depth - 1)) return false;
      }
    }
    return ok();
  }
  for (const std::string_view word : {"true", "false", "null"}) {
    if (text_.substr(at_, word.size()) == word) {
      at_ += word.size();
      return true;
    }
  }
  // A number: -?int frac? exp?
  const auto digits = [&] {
    const size_t begin = at_;
    while (at_ < text_.size() && IsDigit(text_[at_])) ++at_;
    return at_ - begin;
  };
  if (c == '-') ++at_;
  const size_t int_begin = at_;
  const size_t num_int = digits();
  if (num_int == 0) return Fail("value expected");
  if (num_int > 1 && text_[int_begin] == '0') return Fail("number with a leading zero");
  if (at_ < text_.size() && text_[at_] == '.') {
    ++at_;
    if (digits() == 0) return Fail("digit expected");
  }
  if (at_ < text_.size() && (text_[at_] == 'e' || text_[at_] == 'E')) {
    ++at_;
    if (at_ < text_.size() && (text_[at_] == '+' || text_[at_] == '-')) ++at_;
    if (digits() == 0) return Fail("digit expected");
  }
  return true;
}

bool JsonScanner::ExpectEnd() {
  if (!ok()) return false;
  SkipSpace();
  if (at_ < text_.size()) return Fail("text after the end of the document");
  return true;
}

}  // namespace deepinfer::model
