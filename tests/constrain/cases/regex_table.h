// SPDX-License-Identifier: Apache-2.0
//
// Sixty patterns over the whole dialect. `python` is the same pattern where Python spells it differently.
#pragma once

namespace deepinfer::constrain {

struct RegexCase {
  const char* pattern;
  const char* python = nullptr;
};

inline constexpr RegexCase kRegexTable[] = {
    {""},
    {"a"},
    {"abc"},
    {"a|b"},
    {"a|"},
    {"(|a|bc)d"},
    {"a*b"},
    {"a+b?c*"},
    {"[a-z]+"},
    {"[^a-z]{1,8}"},
    {"[A-Za-z0-9_.-]{3,10}"},
    {"\\d{4}-\\d{2}-\\d{2}"},
    {"\\D{2,5}"},
    {"\\w+@\\w+\\.(com|org)"},
    {"\\W{1,4}"},
    {"a\\sb", "a[\\s\\u00a0\\u1680\\u2000-\\u200a\\u2028\\u2029\\u202f\\u205f\\u3000\\ufeff]b"},
    {"\\S{1,10}"},
    {"."},
    {".{5}"},
    {".{0,20}!"},
    {"^abc$"},
    {"^(yes|no)$"},
    {"(a+)+b"},
    {"(a*)*b"},
    {"([a-z]+)*x"},
    {"(?:ab)+"},
    {"(?<year>\\d{4})", "(?P<year>\\d{4})"},
    {"a{3}"},
    {"a{2,}b"},
    {"a{2,4}"},
    {"(ab){2,3}c"},
    {"(a|b){5}"},
    {"a+?b"},
    {"a*?b??c"},
    {"x{0}y"},
    {"\\n\\t\\r\\f\\v"},
    {"\\x41\\x7a"},
    {"\\u00e9+"},
    {"\\u{1F600}{1,2}", "\\U0001F600{1,2}"},
    {"\\cA", "\\x01"},
    {"\\.\\*\\+\\?\\(\\)\\[\\]\\{\\}\\|\\\\\\^\\$"},
    {"[\\d.]+"},
    {"[\\w\\s]{4}", "[\\w\\s\\u00a0\\u1680\\u2000-\\u200a\\u2028\\u2029\\u202f\\u205f\\u3000\\ufeff]{4}"},
    {"[\\]\\\\^-]+"},
    {"[^\\n\"]{1,6}"},
    {"[\\u4e00-\\u9fff]{1,5}"},
    {"[\\u{1F600}-\\u{1F64F}]", "[\\U0001F600-\\U0001F64F]"},
    {"(\\d{1,3}\\.){3}\\d{1,3}"},
    {"#[0-9a-fA-F]{6}"},
    {"(https?|ftp)://[a-z]+(\\.[a-z]+)+(/[a-z0-9]*)*"},
    {"[+-]?(\\d+(\\.\\d*)?|\\.\\d+)([eE][+-]?\\d+)?"},
    {"\"([^\"\\\\]|\\\\.)*\""},
    {"<([a-z]+)>[^<]*</[a-z]+>"},
    {"(Mon|Tues|Wednes|Thurs|Fri|Satur|Sun)day"},
    {"([01]\\d|2[0-3]):[0-5]\\d"},
    {"(the |a )?(quick )*(fox|dog)s?"},
    {"((a|b)(c|d)){2}|e{3}"},
    {"(((x)))"},
    {"naïve café"},
    {"日本(語|人)*。"},
    {"(a|aa)+b"},
    {"\\/path\\/[a-z]+"},
};
static_assert(sizeof(kRegexTable) / sizeof(kRegexTable[0]) >= 60);

}  // namespace deepinfer::constrain
