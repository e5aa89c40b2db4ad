// SPDX-License-Identifier: Apache-2.0
#include "constrain/xgrammar_backend.h"

#include <atomic>
#include <thread>

#include <gtest/gtest.h>

#include "constrain/compile_service.h"
#include "constrain/constraint.h"
#include "constrain/grammar_fixture.h"
#include "constrain/random_text.h"

namespace deepinfer::constrain {
namespace {

#if DEEPINFER_HAVE_XGRAMMAR

std::string ErrorOf(GrammarKind kind, const std::string& text) {
  const auto result = ByteBackend().Compile(Spec(kind, text));
  if (result.ok()) return "";
  EXPECT_EQ(result.status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(result.status().field(), "so_args.schema");
  return result.status().message();
}
bool Regex(const std::string& pattern, std::string_view text) { return Accepts(Spec(GrammarKind::kRegex, pattern), text); }
bool Schema(const std::string& schema, std::string_view text) {
  return Accepts(Spec(GrammarKind::kJsonSchema, schema), text);
}

TEST(Xgrammar, RegexErrorsHaveAPosition) {
  for (const auto& [regex, message] : {
           std::pair{"a(?=b)", "Regex parsing error at position 4: Lookahead is not supported yet."},
           std::pair{"(?!b)", "Regex parsing error at position 3: Lookahead is not supported yet."},
           std::pair{"(?<=a)b", "Regex parsing error at position 3: Lookbehind is not supported yet."},
           std::pair{"(a)\\1", "Regex parsing error at position 4: Backreference is not supported yet."},
           std::pair{"\\p{L}", "Regex parsing error at position 1: Unicode character class escape sequence is not supported yet."},
           std::pair{"\\bword", "Regex parsing error at position 1: Word boundary is not supported yet."},
           std::pair{"(?i)a", "Regex parsing error at position 3: Group modifier flag is not supported yet."},
           std::pair{"[]", "Regex parsing error at position 2: Empty character class is not allowed in regex."},
           std::pair{"a{,3}", "Regex parsing error at position 3: Invalid repetition count."},
           std::pair{"a++", "Regex parsing error at position 3: Two consecutive repetition modifiers are not allowed."},
           std::pair{"(x+)+(a", "Regex parsing error at position 8: The parenthesis is not closed."},
           std::pair{"a)", "Regex parsing error at position 2: Unmatched ')'"},
           std::pair{"[a", "Regex parsing error at position 3: Unclosed '['"},
           std::pair{"*a", "Regex parsing error at position 1: Nothing to repeat."},
           std::pair{"a{3,2}", "Regex parsing error at position 2: The lower bound is larger than the upper bound."},
       }) {
    EXPECT_EQ(ErrorOf(GrammarKind::kRegex, regex), message) << regex;
  }
}

TEST(Xgrammar, SchemaErrors) {
  for (const auto& [schema, message] : {
           std::pair{"false", "Schema 'false' cannot accept any value"},
           std::pair{R"({"type":"strin"})", "Unsupported type \"strin\""},
           std::pair{R"({"enum":[]})", "enum array must not be empty"},
           std::pair{R"({"type":"integer","minimum":3,"maximum":2})", "Invalid range: minimum greater than maximum"},
           std::pair{R"({"type":"string","minLength":3,"maxLength":2})", "minLength 3 is greater than maxLength 2"},
           std::pair{R"({"type":"array","minItems":3,"maxItems":1})", "minItems is greater than maxItems: 3 > 1"},
           std::pair{R"({"$ref":"#/nope"})", "Cannot find field 'nope' in #/nope"},
           std::pair{R"({"$ref":"#"})", "Circular $ref chain with no schema content: # -> #"},
           std::pair{"[]", "Schema should be an object or bool, but got []"},
           std::pair{R"({"allOf":[{"type":"string"},{"type":"null"}]})", "allOf: the entries contradict each other in type"},
       }) {
    EXPECT_EQ(ErrorOf(GrammarKind::kJsonSchema, schema), message) << schema;
  }
  EXPECT_EQ(ErrorOf(GrammarKind::kJsonSchema, "{\"a\":").rfind("invalid JSON at byte ", 0), 0u);
}

TEST(Xgrammar, EbnfErrorsHaveLineAndColumn) {
  for (const auto& [ebnf, message] : {
           std::pair{"root ::= a", "EBNF parser error at line 1, column 10: Rule \"a\" is not defined"},
           std::pair{"root ::= \"a\"\nroot ::= \"b\"",
                     "EBNF parser error at line 2, column 1: Rule \"root\" is defined multiple times"},
           std::pair{"x ::= \"a\"", "EBNF parser error at line 1, column 1: The root rule with name \"root\" is not found"},
           std::pair{"root ::= (\"a\"", "EBNF parser error at line 1, column 14: Expect )"},
           std::pair{"root ::= \"a\"{,3}", "EBNF parser error at line 1, column 14: Expect integer, but got ,"},
           std::pair{"root ::= [a", "EBNF lexer error at line 1, column 12: Unterminated character class"},
       }) {
    EXPECT_EQ(ErrorOf(GrammarKind::kEbnf, ebnf), message) << ebnf;
  }
  EXPECT_NE(ErrorOf(GrammarKind::kEbnf, "root ::= " + std::string(20000, '(') + "\"a\""), "");
  EXPECT_NE(ErrorOf(GrammarKind::kRegex, std::string(20000, '(') + "a" + std::string(20000, ')')), "");
}

TEST(Xgrammar, TagAndChoiceErrors) {
  EXPECT_EQ(ErrorOf(GrammarKind::kStructuralTag, "{}"),
            "Invalid structural tag error: Structural tag must have a format field");
  EXPECT_EQ(ErrorOf(GrammarKind::kStructuralTag, R"({"type":"structural_tag","format":{"type":"nope"}})"),
            "Invalid structural tag error: Format type not recognized: nope");
  for (const char* choice : {"", "3", "[]", "[1]"}) EXPECT_NE(ErrorOf(GrammarKind::kChoice, choice), "");
}

TEST(Xgrammar, ChoicesAreTakenLiterally) {
  const GrammarSpec spec = Spec(GrammarKind::kChoice, R"(["yes", "a\"b\\", "日本", ".*", "\u0001"])");
  for (const char* text : {"yes", "a\"b\\", "日本", ".*", "\x01"}) EXPECT_TRUE(Accepts(spec, text)) << text;
  for (const char* text : {"", "no", "yess", "a", "xx"}) EXPECT_FALSE(Accepts(spec, text)) << text;
}

TEST(Xgrammar, RegexDialect) {
  EXPECT_TRUE(Regex("", ""));
  EXPECT_FALSE(Regex("", "a"));
  EXPECT_TRUE(Regex(".", "\n"));
  EXPECT_TRUE(Regex("^a$", "a"));
  EXPECT_TRUE(Regex("(?<n>a|)b", "b"));
  EXPECT_TRUE(Regex("a+?", "aaa"));
  EXPECT_FALSE(Regex("\\d", "٣"));  // ASCII only
  EXPECT_TRUE(Regex("[^a]", "é"));
  EXPECT_FALSE(Regex("abc", "ab"));
}

TEST(Xgrammar, JsonSchemaDialect) {
  EXPECT_TRUE(Schema(R"({"type":"object"})", "{ \"a\" :\n 1 , \"b\": [true, null] }"));
  EXPECT_FALSE(Schema(R"({"type":"object"})", "[1]"));
  EXPECT_TRUE(Schema("{}", "[1]"));
  const std::string closed = R"({"type":"object","properties":{"a":{"type":"integer"},"b":{"type":"integer"}}})";
  EXPECT_TRUE(Schema(closed, R"({"a":1,"b":2})"));
  EXPECT_FALSE(Schema(closed, R"({"b":2,"a":1})"));  // in the order of the schema
  EXPECT_FALSE(Schema(closed, R"({"a":1,"c":2})"));
  GrammarSpec free = Spec(GrammarKind::kJsonSchema, closed);
  free.any_order = true;
  EXPECT_TRUE(Accepts(free, R"({"b":2,"a":1})"));
  free.strict = false;
  EXPECT_TRUE(Accepts(free, R"({"a":1,"c":"x"})"));
  GrammarSpec compact = Spec(GrammarKind::kJsonSchema, closed);
  compact.any_whitespace = false;
  EXPECT_TRUE(Accepts(compact, R"({"a": 1, "b": 2})"));
  EXPECT_FALSE(Accepts(compact, R"({"a":1})"));
  GrammarSpec few = Spec(GrammarKind::kJsonSchema, closed);
  few.max_whitespace_cnt = 2;
  EXPECT_TRUE(Accepts(few, R"({  "a":1})"));
  EXPECT_FALSE(Accepts(few, R"({   "a":1})"));
  EXPECT_TRUE(Schema(R"({"allOf":[{"type":"string"},{"minLength":3}]})", "\"abc\""));
  EXPECT_FALSE(Schema(R"({"allOf":[{"type":"string"},{"minLength":3}]})", "12"));
  EXPECT_TRUE(Accepts(Spec(GrammarKind::kJsonObject, ""), "{\"x\":[1]}"));
  EXPECT_FALSE(Accepts(Spec(GrammarKind::kJsonObject, ""), "3"));
  EXPECT_TRUE(Accepts(Spec(GrammarKind::kLark, "start: \"a\"+ /[0-9]/"), "aa7"));
}

TEST(Xgrammar, StringsHoldNoRawControlCharacters) {
  for (const char* schema : {R"({"type":"string"})", R"({"type":"string","maxLength":5})", R"({"type":"string","minLength":1})",
                             R"({"type":"string","pattern":"^.*$"})", R"({"type":"string","pattern":"[^a]"})"}) {
    EXPECT_TRUE(Schema(schema, "\"x\"")) << schema;
    for (char c = 1; c < 32; ++c) EXPECT_FALSE(Schema(schema, std::string("\"") + c + "\"")) << schema << int{c};
  }
}

TEST(Xgrammar, FormatsAreExact) {
  const std::string date = R"({"type":"string","format":"date"})";
  EXPECT_TRUE(Schema(date, "\"2024-02-29\""));
  EXPECT_TRUE(Schema(date, "\"2000-02-29\""));
  EXPECT_FALSE(Schema(date, "\"2023-02-29\""));
  EXPECT_FALSE(Schema(date, "\"1900-02-29\""));
  EXPECT_FALSE(Schema(date, "\"2023-04-31\""));
  EXPECT_TRUE(Schema(R"({"type":"string","format":"ipv4"})", "\"10.0.255.9\""));
  EXPECT_FALSE(Schema(R"({"type":"string","format":"ipv4"})", "\"10.0.255.09\""));
}

TEST(Xgrammar, EbnfArithmeticAndLeftRecursion) {
  for (const char* ebnf : {"root ::= term ((\"+\" | \"-\") term)*\nterm ::= [0-9]+ | \"(\" root \")\"",
                           "root ::= root \"+\" term | root \"-\" term | term  # left\nterm ::= [0-9]+ | \"(\" root \")\""}) {
    const GrammarSpec spec = Spec(GrammarKind::kEbnf, ebnf);
    EXPECT_TRUE(Accepts(spec, "1+(23-4)-((5))"));
    for (const char* text : {"", "1+", "(1", "1)", "1++2", "()"}) EXPECT_FALSE(Accepts(spec, text)) << text;
  }
  const GrammarSpec greek = Spec(GrammarKind::kEbnf, "root ::= [α-ω]+ [^α-ω] \"\\u00e9\"");
  EXPECT_TRUE(Accepts(greek, "αβγ.é"));
  EXPECT_FALSE(Accepts(greek, "abc.é"));
}

// S3: what a model with random logits writes under a grammar can be read back.
bool ReadSum(std::string_view text, size_t& at, int depth = 0);
bool ReadTerm(std::string_view text, size_t& at, int depth) {
  if (depth > 3000 || at >= text.size()) return false;
  if (text[at] == '(') {
    ++at;
    return ReadSum(text, at, depth + 1) && at < text.size() && text[at++] == ')';
  }
  const size_t begin = at;
  while (at < text.size() && text[at] >= '0' && text[at] <= '9') ++at;
  return at > begin;
}
bool ReadSum(std::string_view text, size_t& at, int depth) {
  if (!ReadTerm(text, at, depth)) return false;
  while (at < text.size() && (text[at] == '+' || text[at] == '-')) {
    ++at;
    if (!ReadTerm(text, at, depth)) return false;
  }
  return true;
}

TEST(Xgrammar, WhatEbnfGrammarsWriteIsReadBack) {
  const TokenizerView view = ByteView();
  RandomWriter writer(view, 33);
  std::string problem;
  size_t longest = 0;
  for (const char* ebnf : {"root ::= term ((\"+\" | \"-\") term)*\nterm ::= [0-9]+ | \"(\" root \")\"",
                           "root ::= root \"+\" term | root \"-\" term | term\nterm ::= [0-9]+ | \"(\" root \")\""}) {
    const auto grammar = ByteBackend().Compile(Spec(GrammarKind::kEbnf, ebnf)).value();
    for (int i = 0; i < 100; ++i) {
      const auto matcher = grammar->NewMatcher().value();
      const auto text = writer.Write(matcher.get(), &problem);
      ASSERT_TRUE(text) << problem;
      size_t at = 0;
      EXPECT_TRUE(ReadSum(*text, at) && at == text->size()) << *text;
      longest = std::max(longest, text->size());
    }
  }
  EXPECT_GT(longest, 20u);
  // Two bytes of each letter, one code point each.
  const auto greek = ByteBackend().Compile(Spec(GrammarKind::kEbnf, "root ::= [α-ω]+ \"\\u00e9\"")).value();
  for (int i = 0; i < 100; ++i) {
    const auto matcher = greek->NewMatcher().value();
    const auto text = writer.Write(matcher.get(), &problem);
    ASSERT_TRUE(text) << problem;
    ASSERT_GE(text->size(), 4u);
    ASSERT_EQ(text->size() % 2, 0u);
    EXPECT_EQ(text->substr(text->size() - 2), "\xc3\xa9");
    for (size_t k = 0; k + 2 < text->size(); k += 2) {
      const int point = ((*text)[k] & 0x1f) << 6 | ((*text)[k + 1] & 0x3f);
      EXPECT_TRUE(point >= 0x3b1 && point <= 0x3c9) << point;
    }
  }
}

TEST(Xgrammar, ConcurrentCompilationsAndMatchers) {
  std::vector<std::thread> threads;
  std::atomic<int> num_good = 0;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 12; ++i) {
        const std::string n = std::to_string(i % 4);
        if (Regex("a{" + n + "}b", std::string(static_cast<size_t>(i % 4), 'a') + "b")) ++num_good;
        if (ErrorOf(GrammarKind::kRegex, "[" + n) == "Regex parsing error at position 3: Unclosed '['") ++num_good;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(num_good, 3 * 12 * 2);
}

TEST(Xgrammar, MatcherForksRollsBackAndEnds) {
  const auto matcher = Matcher(ByteBackend(), Spec(GrammarKind::kRegex, "ab|ac"));
  EXPECT_EQ(matcher->ForcedTokens(5), std::vector<int32_t>{'a'});
  EXPECT_TRUE(*matcher->Accept('a'));
  const auto fork = matcher->Fork();
  EXPECT_TRUE(*fork->Accept('b'));
  EXPECT_TRUE(fork->IsCompleted());
  EXPECT_FALSE(matcher->IsCompleted());
  EXPECT_TRUE(IsAllowed(Row(fork.get(), 258), 256));
  EXPECT_TRUE(IsAllowed(Row(fork.get(), 258), 257));  // both stop ids
  EXPECT_TRUE(*fork->Accept(257));
  EXPECT_TRUE(fork->IsTerminated());
  EXPECT_FALSE(*fork->Accept('b'));
  std::vector<uint32_t> row(9);
  EXPECT_FALSE(fork->Fill(row).ok());
  EXPECT_TRUE(fork->Rollback(2).ok());
  EXPECT_TRUE(*fork->Accept('c'));
  EXPECT_FALSE(fork->Rollback(100).ok());
  EXPECT_FALSE(*matcher->Accept(-1));
  EXPECT_FALSE(*matcher->Accept(258));
}

// A model that only writes 'a', under patterns whose matching gets slower with every token.
void DriveWithA(const std::string& pattern, bool* was_ended, double* worst_step_s) {
  const auto grammar = ByteBackend().Compile(Spec(GrammarKind::kRegex, pattern));
  ASSERT_TRUE(grammar.ok()) << grammar.status().ToString();
  Constraint constraint(Spec(GrammarKind::kRegex, pattern), *grammar, {});
  std::vector<uint32_t> row(9);
  *worst_step_s = 0;
  for (int i = 0; i < 3000 && !constraint.is_aborted(); ++i) {
    const double start = ThreadCpuClock().NowSeconds();
    constraint.BeginStep();
    (void)constraint.Accept('a');
    if (!constraint.is_aborted()) (void)constraint.Fill(row);
    *worst_step_s = std::max(*worst_step_s, ThreadCpuClock().NowSeconds() - start);
  }
  *was_ended = constraint.is_aborted();
  EXPECT_EQ(constraint.abort_message().rfind(*was_ended ? kConstraintFailed : "", 0), 0u) << constraint.abort_message();
}

TEST(Xgrammar, NestedRepetitionsAreReducedOrTheRequestEnds) {
  bool was_ended = false;
  double worst_step_s = 0;
  for (const char* harmless : {"(a+)+b", "(a*)*b", "([a-z]+)*x", "(((a+)*)+)*b", "(a|aa)+b"}) {
    DriveWithA(harmless, &was_ended, &worst_step_s);
    EXPECT_FALSE(was_ended) << harmless;
  }
  for (const char* slow : {"((a|b)+)+c", "(a+a*)+b", "((a*)*a*)*b"}) {  // no rewriting helps
    DriveWithA(slow, &was_ended, &worst_step_s);
    EXPECT_TRUE(was_ended) << slow;
    EXPECT_LT(worst_step_s, 1.0) << slow;
  }
}

TEST(Xgrammar, PathologicalTextsEndWithAnErrorOrSoon) {
  CompileService service([] { return MakeXgrammarBackend(ByteView(), ByteView()); }, {});
  const auto repeat = [](int n, const std::string& text) {
    std::string out;
    for (int i = 0; i < n; ++i) out += text;
    return out;
  };
  const GrammarKind json = GrammarKind::kJsonSchema;
  EXPECT_FALSE(service.Compile(Spec(json, repeat(300, R"({"items":)") + "{}" + repeat(300, "}"))).ok());
  EXPECT_FALSE(service.Compile(Spec(json, repeat(100000, "["))).ok());
  EXPECT_FALSE(service.Compile(Spec(json, "{\"description\":\"" + std::string(1 << 20, 'x') + "\"}")).ok());
  EXPECT_TRUE(service.Compile(Spec(json, "{\"description\":\"" + std::string(1000000, 'x') + "\"}")).ok());
  EXPECT_TRUE(service.Compile(Spec(json, repeat(100, R"({"type":"array","items":)") + "{}" + repeat(100, "}"))).ok());
  EXPECT_TRUE(service.Compile(Spec(json, R"({"type":"string","maxLength":1000000})")).ok());
  EXPECT_TRUE(service.Compile(Spec(json, R"({"not":{},"if":{},"contains":{},"type":"string","format":"phone"})")).ok());
  EXPECT_TRUE(service.Compile(Spec(GrammarKind::kRegex, "a{100000}")).ok());
  EXPECT_TRUE(service.Compile(Spec(GrammarKind::kRegex, "((a{300}){300}){300}")).ok());
  EXPECT_FALSE(service.Compile(Spec(GrammarKind::kRegex, repeat(10000, "(a"))).ok());
  const auto endless = service.Compile(Spec(GrammarKind::kEbnf, "root ::= root"));  // compiles, but allows nothing
  ASSERT_TRUE(endless.ok());
  Constraint constraint(Spec(GrammarKind::kEbnf, "root ::= root"), *endless, {});
  std::vector<uint32_t> row(9);
  EXPECT_FALSE(constraint.Fill(row).ok());
}

#else

TEST(Xgrammar, LeftOutOfTheBuildSaysSo) {
  EXPECT_FALSE(HasXgrammar());
  CompileService service([] { return MakeXgrammarBackend({}, {}); }, {});
  GrammarSpec spec;
  spec.text = "{}";
  const Status status = service.Compile(spec).status();
  EXPECT_EQ(status.code(), StatusCode::kUnimplemented);
  EXPECT_NE(status.message().find("DEEPINFER_XGRAMMAR=ON"), std::string::npos);
}

#endif

}  // namespace
}  // namespace deepinfer::constrain
