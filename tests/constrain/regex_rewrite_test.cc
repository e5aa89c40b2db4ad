// SPDX-License-Identifier: Apache-2.0
#include "constrain/regex_rewrite.h"

#include <random>
#include <regex>

#include <gtest/gtest.h>

namespace deepinfer::constrain {
namespace {

TEST(ReduceNestedRepetition, OfOneCharacterOrClass) {
  for (const auto& [from, to] : {
           std::pair{"(a+)+b", "a+b"},
           std::pair{"(a*)*b", "a*b"},
           std::pair{"(a+)*", "a*"},
           std::pair{"(a*)+", "a*"},
           std::pair{"(a+)?", "a*"},
           std::pair{"(a?)+", "a*"},
           std::pair{"(a?)?", "a?"},
           std::pair{"([a-z]+)*x", "[a-z]*x"},
           std::pair{"([)(+]+)*x", "[)(+]*x"},
           std::pair{"(\\d+)+", "\\d+"},
           std::pair{"(\\x41+)+", "\\x41+"},
           std::pair{"(\\u{1F600}+)+", "\\u{1F600}+"},
           std::pair{"(é+)+", "é+"},
           std::pair{"(.*)*", ".*"},
           std::pair{"(?:a+)+", "a+"},
           std::pair{"(?<n>a+)+", "a+"},
           std::pair{"(a+?)+?", "a+"},
           std::pair{"(((a+)+)+)*b", "a*b"},
           std::pair{"((a+))+", "a+"},
           std::pair{"x(a+)y", "xa+y"},
       }) {
    EXPECT_EQ(ReduceNestedRepetition(from), to);
  }
}

TEST(ReduceNestedRepetition, LeavesTheRestAlone) {
  for (const char* same : {"", "abc", "(ab+)+", "(a+b)+", "(a|b+)+", "(a+){3}", "(a{2,})+", "\\(a+\\)+", "[(a+)+]", "(?=a+)+",
                           "(?<=a+)b", "(?<!a+)b", "(", ")", "(a+", "a+)+", "[a", "\\", "(?<n", "()", "(+)+"}) {
    EXPECT_EQ(ReduceNestedRepetition(same), same);
  }
}

// The reduced pattern matches what the first one matches.
TEST(ReduceNestedRepetition, KeepsTheLanguage) {
  std::mt19937 random(3);
  const std::string parts[] = {"a", "b", "[ab]", "(a+)+", "(b*)*", "([ab]?)+", "(a+)?", "((b+)*)", "(ab*)+", "|"};
  for (int round = 0; round < 300; ++round) {
    std::string pattern;
    for (int i = 0; i < 4; ++i) pattern += parts[random() % 10];
    const std::regex before(pattern);
    const std::regex after(ReduceNestedRepetition(pattern));
    for (int i = 0; i < 20; ++i) {
      std::string text;
      for (uint32_t n = random() % 6; n > 0; --n) text += "abc"[random() % 3];
      ASSERT_EQ(std::regex_match(text, before), std::regex_match(text, after)) << pattern << " " << text;
    }
  }
}

TEST(FindRegexFault, SaysWhere) {
  for (const auto& [regex, position] : {std::pair{"*a", 1}, std::pair{"a|*b", 3}, std::pair{"(+a)", 2}, std::pair{"a{3,2}", 2},
                                        std::pair{"é?(?:*)", 6}}) {
    EXPECT_EQ(FindRegexFault(regex).rfind("Regex parsing error at position " + std::to_string(position) + ": ", 0), 0u)
        << regex << ": " << FindRegexFault(regex);
  }
  EXPECT_NE(FindRegexFault(std::string(401, '(')), "");
  for (const char* fine : {"", "a*", "a{2,3}?", "(a)*", "[*]", "\\*", "a|b", "(?:a)+", "(?=*)", "a++", "x{,3}", "{", "()"}) {
    EXPECT_EQ(FindRegexFault(fine), "") << fine;
  }
}

}  // namespace
}  // namespace deepinfer::constrain
