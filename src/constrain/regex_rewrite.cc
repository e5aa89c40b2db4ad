// SPDX-License-Identifier: Apache-2.0
#include "constrain/regex_rewrite.h"

#include <algorithm>
#include <limits>
#include <vector>

#include <fmt/format.h>

namespace deepinfer::constrain {
namespace {

constexpr size_t kNone = std::string_view::npos;
constexpr int kMaxGroupDepth = 400;

size_t Utf8Length(unsigned char lead) { return lead < 0x80 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4; }

// End of the escape that begins at `at` with a backslash.
size_t EscapeEnd(std::string_view s, size_t at) {
  if (at + 1 >= s.size()) return s.size();
  size_t length = 1 + Utf8Length(static_cast<unsigned char>(s[at + 1]));
  switch (s[at + 1]) {
    case 'x': length = 4; break;
    case 'c': length = 3; break;
    case 'u':
      if (at + 2 < s.size() && s[at + 2] == '{') {
        const size_t close = s.find('}', at);
        return close == kNone ? s.size() : close + 1;
      }
      length = 6;
      break;
    default: break;
  }
  return std::min(at + length, s.size());
}

// End of the class that begins at `at` with "[".
size_t ClassEnd(std::string_view s, size_t at) {
  for (size_t i = at + 1; i < s.size();) {
    if (s[i] == ']') return i + 1;
    i = s[i] == '\\' ? EscapeEnd(s, i) : i + 1;
  }
  return s.size();
}

// End of the single character, class or escape at `at`; kNone if something else stands there.
size_t AtomEnd(std::string_view s, size_t at) {
  if (at >= s.size()) return kNone;
  const char c = s[at];
  if (c == '\\') return EscapeEnd(s, at);
  if (c == '[') return ClassEnd(s, at);
  if (std::string_view("()|*+?{}]^$").find(c) != kNone) return kNone;
  return std::min(at + Utf8Length(static_cast<unsigned char>(c)), s.size());
}

bool IsQuantifier(std::string_view s, size_t at) { return at < s.size() && (s[at] == '*' || s[at] == '+' || s[at] == '?'); }

// Group content that is one atom and one quantifier (a lazy mark may follow).
struct Repetition {
  std::string atom;
  char quantifier = 0;
};
bool ReadRepetition(std::string_view content, Repetition* out) {
  const size_t end = AtomEnd(content, 0);
  if (end == kNone || !IsQuantifier(content, end)) return false;
  const size_t rest = content.size() - end;
  if (rest != 1 && !(rest == 2 && content[end + 1] == '?')) return false;
  out->atom = content.substr(0, end);
  out->quantifier = content[end];
  return true;
}

// Bytes of "(", "(?:" or "(?<name>" at `at`; 0 for look-around and flags.
size_t GroupHeadLength(std::string_view s, size_t at) {
  if (s.substr(at, 2) != "(?") return 1;
  if (s.substr(at, 3) == "(?:") return 3;
  if (s.substr(at, 3) != "(?<" || s.substr(at, 4) == "(?<=" || s.substr(at, 4) == "(?<!") return 0;
  const size_t close = s.find('>', at);
  return close == kNone ? 0 : close + 1 - at;
}

char Combine(char inner, char outer) {
  if (inner == outer) return inner;
  return '*';  // one of them allows none, the other many
}

}  // namespace

std::string ReduceNestedRepetition(std::string_view regex) {
  struct Group {
    size_t begin;         // of "(" in out
    size_t content_begin;  // behind "(", "(?:", "(?<name>"; 0: look-around, left alone
  };
  std::string out;
  out.reserve(regex.size());
  std::vector<Group> groups;
  size_t i = 0;
  while (i < regex.size()) {
    const char c = regex[i];
    if (c == '\\' || c == '[') {
      const size_t end = c == '[' ? ClassEnd(regex, i) : EscapeEnd(regex, i);
      out += regex.substr(i, end - i);
      i = end;
      continue;
    }
    if (c == '(') {
      const size_t head = GroupHeadLength(regex, i);
      groups.push_back({out.size(), head == 0 ? 0 : out.size() + head});
      out += regex.substr(i, std::max<size_t>(head, 1));
      i += std::max<size_t>(head, 1);
      continue;
    }
    out += c;
    ++i;
    if (c != ')' || groups.empty()) continue;
    const Group group = groups.back();
    groups.pop_back();
    Repetition inner;
    if (group.content_begin == 0) continue;
    const std::string_view content = std::string_view(out).substr(group.content_begin, out.size() - 1 - group.content_begin);
    if (!ReadRepetition(content, &inner)) continue;
    const bool has_counts = i < regex.size() && regex[i] == '{';
    if (has_counts) continue;
    out.resize(group.begin);
    if (IsQuantifier(regex, i)) {
      inner.quantifier = Combine(inner.quantifier, regex[i]);
      ++i;
      if (i < regex.size() && regex[i] == '?') ++i;  // lazy: says nothing about the language
    }
    out += inner.atom;
    out += inner.quantifier;
  }
  return out;
}

std::string FindRegexFault(std::string_view s) {
  int depth = 0;
  bool can_repeat = false;  // something stands before
  // Positions count code points, from 1, as in the library's messages.
  const auto fault = [&](size_t at, std::string_view what) {
    const auto position = std::count_if(s.begin(), s.begin() + static_cast<std::ptrdiff_t>(at),
                                        [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; });
    return fmt::format("Regex parsing error at position {}: {}", position + 1, what);
  };
  for (size_t i = 0; i < s.size();) {
    const char c = s[i];
    if (c == '(') {
      if (++depth > kMaxGroupDepth) return fault(i, fmt::format("Groups are nested deeper than {}.", kMaxGroupDepth));
      i += std::max<size_t>(GroupHeadLength(s, i), 1);
      if (s[i - 1] == '(' && i < s.size() && s[i] == '?') return {};  // look-around, flags: the library says it
      can_repeat = false;
      continue;
    }
    if (IsQuantifier(s, i) && !can_repeat) return fault(i, "Nothing to repeat.");
    if (c == '{' && can_repeat) {
      int64_t bounds[2] = {0, -1};
      size_t k = i + 1;
      int which = 0;
      for (; k < s.size() && s[k] != '}' && k < i + 30; ++k) {
        if (s[k] >= '0' && s[k] <= '9') {
          bounds[which] = std::max<int64_t>(bounds[which], 0) * 10 + (s[k] - '0');
          if (bounds[which] > 1'000'000'000'000) return {};
        } else if (s[k] == ',') {
          which = 1;
        } else if (s[k] != ' ') {
          return {};
        }
      }
      if (bounds[1] >= 0 && bounds[1] < bounds[0]) return fault(i, "The lower bound is larger than the upper bound.");
      i = std::min(k + 1, s.size());
      continue;
    }
    if (c == ')') --depth;
    can_repeat = c != '|' && c != '^';
    if (const size_t end = AtomEnd(s, i); end != kNone) {
      i = end;
    } else {
      ++i;
    }
  }
  return {};
}

int64_t LargestRepetition(std::string_view s, bool is_ebnf) {
  int64_t largest = 0;
  for (size_t i = 0; i < s.size();) {
    if (s[i] == '\\') {
      i = EscapeEnd(s, i);
    } else if (s[i] == '[') {
      i = ClassEnd(s, i);
    } else if (is_ebnf && s[i] == '"') {
      ++i;
      while (i < s.size() && s[i] != '"' && s[i] != '\n') i += s[i] == '\\' ? 2 : 1;
      ++i;
    } else if (is_ebnf && s[i] == '#') {
      i = std::min(s.find('\n', i), s.size());
    } else if (s[i] == '{') {
      int64_t value = 0;
      for (++i; i < s.size() && s[i] != '}'; ++i) {
        if (s[i] >= '0' && s[i] <= '9') {
          const int digit = s[i] - '0';
          value = value > (std::numeric_limits<int64_t>::max() - digit) / 10 ? std::numeric_limits<int64_t>::max()
                                                                             : value * 10 + digit;
          largest = std::max(largest, value);
        } else if (s[i] == ',' || s[i] == ' ') {
          value = 0;
        } else {
          break;  // no repetition
        }
      }
    } else {
      ++i;
    }
  }
  return largest;
}

}  // namespace deepinfer::constrain
