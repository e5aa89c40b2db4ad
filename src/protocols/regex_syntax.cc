// SPDX-License-Identifier: Apache-2.0
#include "protocols/regex_syntax.h"

#include <cstddef>
#include <cstdint>

namespace deepinfer::protocols {

namespace {

class Scanner {
 public:
  explicit Scanner(std::string_view pattern) : pattern_(pattern) {}

  bool Run() {
    size_t num_open = 0;
    bool can_repeat = false;
    while (!AtEnd()) {
      const char c = Next();
      switch (c) {
        case '\\':
          if (AtEnd()) return false;
          ++at_;
          can_repeat = true;
          break;
        case '[':
          if (!Class()) return false;
          can_repeat = true;
          break;
        case '(':
          if (!GroupHead()) return false;
          ++num_open;
          can_repeat = false;
          break;
        case ')':
          if (num_open == 0) return false;
          --num_open;
          can_repeat = true;
          break;
        case '|': can_repeat = false; break;
        case '*':
        case '+':
        case '?':
          if (!can_repeat) return false;
          break;
        case '{':
          if (!Repetition(can_repeat)) return false;
          can_repeat = true;
          break;
        default: can_repeat = true; break;
      }
    }
    return num_open == 0;
  }

 private:
  bool AtEnd() const { return at_ >= pattern_.size(); }
  char Next() { return pattern_[at_++]; }
  bool Accept(std::string_view text) {
    if (pattern_.substr(at_, text.size()) != text) return false;
    at_ += text.size();
    return true;
  }

  // After '['.
  bool Class() {
    Accept("^");
    if (Accept("]")) return true;  // ECMA: matches nothing, or anything
    int previous = -1;             // literal character that a '-' could make a range of
    while (!AtEnd()) {
      const char c = Next();
      if (c == ']') return true;
      if (c == '\\') {
        if (AtEnd()) return false;
        ++at_;
        previous = -1;
      } else if (c == '-' && previous >= 0 && !AtEnd() && pattern_[at_] != ']' && pattern_[at_] != '\\') {
        const auto last = static_cast<unsigned char>(Next());
        // Only ASCII ends are compared; a multi-byte end is above every ASCII start.
        if (last < 0x80 && previous < 0x80 && last < previous) return false;
        previous = -1;
      } else {
        previous = static_cast<unsigned char>(c);
      }
    }
    return false;
  }

  // After '('.
  bool GroupHead() {
    if (!Accept("?")) return true;
    for (const char* head : {":", "=", "!", "<=", "<!", ">"}) {
      if (Accept(head)) return true;
    }
    if (Accept("P<") || Accept("<")) {
      const size_t close = pattern_.find('>', at_);
      if (close == std::string_view::npos || close == at_) return false;
      at_ = close + 1;
      return true;
    }
    // Flags: (?i) or (?i-s:...).
    size_t end = at_;
    while (end < pattern_.size() && std::string_view("imsxuUR-").find(pattern_[end]) != std::string_view::npos) ++end;
    if (end == at_ || end >= pattern_.size()) return false;
    if (pattern_[end] == ':') {
      at_ = end + 1;
      return true;
    }
    if (pattern_[end] == ')') {  // the caller reads the ')'
      at_ = end;
      return true;
    }
    return false;
  }

  // After '{': a bound, or else a literal brace.
  bool Repetition(bool can_repeat) {
    size_t at = at_;
    uint64_t low = 0;
    if (!Digits(at, low)) return true;
    uint64_t high = low;
    if (at < pattern_.size() && pattern_[at] == ',') {
      ++at;
      if (!Digits(at, high)) high = UINT64_MAX;
    }
    if (at >= pattern_.size() || pattern_[at] != '}') return true;
    at_ = at + 1;
    return can_repeat && low <= high;
  }

  bool Digits(size_t& at, uint64_t& value) const {
    const size_t begin = at;
    value = 0;
    while (at < pattern_.size() && pattern_[at] >= '0' && pattern_[at] <= '9') {
      if (value < UINT64_MAX / 16) value = value * 10 + static_cast<uint64_t>(pattern_[at] - '0');
      ++at;
    }
    return at > begin;
  }

  std::string_view pattern_;
  size_t at_ = 0;
};

}  // namespace

bool IsRegexSyntax(std::string_view pattern) { return Scanner(pattern).Run(); }

}  // namespace deepinfer::protocols
