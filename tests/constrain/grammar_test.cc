// SPDX-License-Identifier: Apache-2.0
#include "constrain/grammar.h"

#include <gtest/gtest.h>

#include "constrain/limits.h"

namespace deepinfer::constrain {
namespace {

TEST(SoArgs, ReadsEveryKey) {
  const auto spec = ParseSoArgsText(R"({"schema_type":"json","schema":{"type":"object","z":1,"a":2},"trigger_token_ids":[5,6],
      "bound_token_id":7,"strict":false,"any_order":true,"any_whitespace":false,"max_whitespace_cnt":8})");
  ASSERT_TRUE(spec.ok()) << spec.status().ToString();
  EXPECT_EQ(spec->kind, GrammarKind::kJsonSchema);
  EXPECT_EQ(spec->text, R"({"type":"object","z":1,"a":2})");
  EXPECT_EQ(spec->trigger_token_ids, (std::vector<int32_t>{5, 6}));
  EXPECT_EQ(spec->bound_token_id, 7);
  EXPECT_FALSE(spec->strict);
  EXPECT_TRUE(spec->any_order);
  EXPECT_FALSE(spec->any_whitespace);
  EXPECT_EQ(spec->max_whitespace_cnt, 8);
  EXPECT_TRUE(spec->invalid.empty());
}

TEST(SoArgs, EveryTypeHasItsName) {
  for (const GrammarKind kind : {GrammarKind::kJsonSchema, GrammarKind::kJsonObject, GrammarKind::kRegex, GrammarKind::kEbnf,
                                 GrammarKind::kStructuralTag, GrammarKind::kChoice, GrammarKind::kLark}) {
    Json args = {{"schema_type", GrammarKindName(kind)}, {"schema", "x"}};
    const auto spec = ParseSoArgs(args);
    ASSERT_TRUE(spec.ok());
    EXPECT_EQ(spec->kind, kind);
    EXPECT_TRUE(spec->invalid.empty());
  }
  EXPECT_EQ(ParseSoArgsText(R"({"schema_type":"choice","schema":["a","b"]})")->text, R"(["a","b"])");
}

TEST(SoArgs, SomeFaultsAreRefusedAtOnce) {
  for (const auto& [text, field] : {std::pair{R"({"schema_type":"regex"})", "so_args.schema"},
                                    std::pair{R"({"schema_type":"regex","schema":7})", "so_args.schema"},
                                    std::pair{R"({"schema_type":"regex","schema":{}})", "so_args.schema"},
                                    std::pair{R"({"schema_type":"regex","schema":"a","serialized":""})", "so_args.serialized"},
                                    std::pair{R"({"schema_type":"regex","schema":"a","bound_token_ids":[1]})",
                                              "so_args.bound_token_ids"},
                                    std::pair{R"({"schema_type":"regex","schema":"a","strict":1})", "so_args.strict"},
                                    std::pair{R"({"schema_type":"regex","schema":"a","max_whitespace_cnt":0})",
                                              "so_args.max_whitespace_cnt"},
                                    std::pair{R"({"schema_type":"regex","schema":"a","trigger":[1]})", "so_args.trigger"},
                                    std::pair{"[]", "so_args"}}) {
    const auto spec = ParseSoArgsText(text);
    ASSERT_FALSE(spec.ok()) << text;
    EXPECT_EQ(spec.status().code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(spec.status().field(), field);
  }
  EXPECT_FALSE(ParseSoArgsText("{").ok());
}

TEST(SoArgs, OthersFailWhenTheRequestRuns) {
  for (const auto& [text, message] : {
           std::pair{R"({"schema_type":"xml","schema":"a"})", "Unsupported Grammar Type"},
           std::pair{R"({"schema":"a"})", "Unsupported Grammar Type"},
           std::pair{R"({"schema_type":"regex","schema":"a","trigger_token_ids":5})", "trigger_token_ids"},
           std::pair{R"({"schema_type":"regex","schema":"a","trigger_token_ids":[true]})", "trigger_token_ids"},
           std::pair{R"({"schema_type":"regex","schema":"a","trigger_token_ids":[-1]})", "trigger_token_ids"},
           std::pair{R"({"schema_type":"regex","schema":"a","trigger_token_ids":[1.5]})", "trigger_token_ids"},
           std::pair{R"({"schema_type":"regex","schema":"a","trigger_token_ids":[4294967296]})", "trigger_token_ids"},
           std::pair{R"({"schema_type":"regex","schema":"a","bound_token_id":5})", "needs trigger_token_ids"},
           std::pair{R"({"schema_type":"regex","schema":"a","trigger_token_ids":[1],"bound_token_id":true})", "bound_token_id"},
       }) {
    const auto spec = ParseSoArgsText(text);
    ASSERT_TRUE(spec.ok()) << text;
    EXPECT_NE(spec->invalid.find(message), std::string::npos) << spec->invalid;
  }
}

TEST(SoArgs, TheKeyIsTheGrammarNotTheTrigger) {
  GrammarSpec a;
  a.text = "{}";
  GrammarSpec b = a;
  b.trigger_token_ids = {1};
  EXPECT_EQ(GrammarKey(a), GrammarKey(b));
  b.any_order = true;
  EXPECT_NE(GrammarKey(a), GrammarKey(b));
  b = a;
  b.kind = GrammarKind::kRegex;
  EXPECT_NE(GrammarHash(a), GrammarHash(b));
}

Status Check(GrammarKind kind, std::string text, bool any_order = false) {
  GrammarSpec spec;
  spec.kind = kind;
  spec.text = std::move(text);
  spec.any_order = any_order;
  return CheckLimits(spec, {});
}

std::string Repeat(int n, const std::string& text, const std::string& separator = "") {
  std::string out;
  for (int i = 0; i < n; ++i) out += (i > 0 ? separator : "") + text;
  return out;
}

std::string Properties(int n) {
  std::string out = R"({"type":"object","properties":{)";
  for (int i = 0; i < n; ++i) out += (i > 0 ? ",\"p" : "\"p") + std::to_string(i) + "\":{}";
  return out + "}}";
}

TEST(Limits, EachIsNamed) {
  const GrammarKind json = GrammarKind::kJsonSchema;
  const auto expect = [](const Status& status, const std::string& name) {
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(status.message().rfind("grammar limit " + name + ": ", 0), 0u) << status.ToString();
  };
  expect(Check(json, std::string((1 << 20) + 1, ' ')), "max_text_bytes");
  expect(Check(json, Repeat(257, R"({"items":)") + "{}" + Repeat(257, "}")), "max_json_depth");
  expect(Check(json, Properties(5001), true), "max_properties");
  expect(Check(json, Properties(501)), "max_optional_properties");
  expect(Check(json, "{\"enum\":[" + Repeat(10001, "1", ",") + "]}"), "max_enum_entries");
  expect(Check(json, "{\"anyOf\":[" + Repeat(50000, "{}", ",") + "]}"), "max_schema_nodes");
  expect(Check(json, R"({"type":"string","pattern":"a{1,100001}"})"), "max_repetition");
  expect(Check(GrammarKind::kRegex, std::string((64 << 10) + 1, 'a')), "max_regex_bytes");
  expect(Check(GrammarKind::kRegex, "a{100001}"), "max_repetition");
  expect(Check(GrammarKind::kRegex, "a{2,99999999999999999999999}"), "max_repetition");
  expect(Check(GrammarKind::kEbnf, "root ::= \"a\"{100001}"), "max_repetition");
  expect(Check(GrammarKind::kEbnf, Repeat(10001, "r ::= \"a\"", "\n")), "max_ebnf_rules");
  expect(Check(GrammarKind::kChoice, "[" + Repeat(10001, "\"a\"", ",") + "]"), "max_enum_entries");
  expect(Check(GrammarKind::kStructuralTag, Repeat(300, "[")), "max_json_depth");
}

TEST(Limits, WhatIsWithinThemPasses) {
  const GrammarKind json = GrammarKind::kJsonSchema;
  EXPECT_TRUE(Check(json, Repeat(255, R"({"items":)") + "{}" + Repeat(255, "}")).ok());
  EXPECT_TRUE(Check(json, Properties(5000), true).ok());
  EXPECT_TRUE(Check(json, Properties(500)).ok());
  EXPECT_TRUE(Check(json, R"({"type":"string","maxLength":1000000})").ok());
  EXPECT_TRUE(Check(GrammarKind::kRegex, "[{999999}]\\{999999}a{100000}").ok());  // in a class, escaped
  EXPECT_TRUE(Check(GrammarKind::kEbnf, "root ::= \"{999999}\" # {999999}").ok());
  EXPECT_EQ(Check(json, "{\"a\":").message().rfind("invalid JSON at byte", 0), 0u);
}

}  // namespace
}  // namespace deepinfer::constrain
