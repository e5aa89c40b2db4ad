// SPDX-License-Identifier: Apache-2.0
#include "protocols/grammar_schema.h"

#include <gtest/gtest.h>

#include "protocols/answer_grammar.h"
#include "protocols/convert_request.h"
#include "protocols/golden_cases.h"

namespace deepinfer::protocols {
namespace {

std::string Closed(const char* schema) { return DumpJson(ClosedSchema(ParseJson(schema).value())); }

TEST(ClosedSchema, ObjectsAreClosedAndLimitsStay) {
  EXPECT_EQ(Closed(R"({"type":"object","properties":{"a":{"type":"string","minLength":2,"pattern":"x+"},"b":{"$ref":"#/$defs/b"}},)"
                   R"("$defs":{"b":{"type":"object","properties":{"c":{"type":"array","items":{"type":"integer"},"minItems":1}}}}})"),
            R"({"type":"object","properties":{"a":{"type":"string","minLength":2,"pattern":"x+"},"b":{"$ref":"#/$defs/b"}},)"
            R"("$defs":{"b":{"type":"object","properties":{"c":{"type":"array","items":{"type":"integer"},"minItems":1}},)"
            R"("required":["c"],"additionalProperties":false}},"required":["a","b"],"additionalProperties":false})");
}

TEST(ClosedSchema, WhatAGrammarWouldReadInsteadOfTheTypeIsLeftOut) {
  EXPECT_EQ(Closed(R"({"type":"object","properties":{"a":{"type":"integer","anyOf":[{"type":"string"}],"maximum":3}},"allOf":[{}],"not":{}})"),
            R"({"type":"object","properties":{"a":{"type":"integer","maximum":3}},"required":["a"],"additionalProperties":false})");
  EXPECT_EQ(Closed(R"({"anyOf":[{"type":"object","properties":{"a":{"type":"null"}}},{"type":"string"}],"oneOf":[]})"),
            R"({"anyOf":[{"type":"object","properties":{"a":{"type":"null"}},"required":["a"],"additionalProperties":false},{"type":"string"}]})");
  EXPECT_EQ(Closed(R"({"type":"object"})"), R"({"type":"object","properties":{},"required":[],"additionalProperties":false})");
}

ConvertedRequest Convert(const Json& request) {
  Result<ConvertedRequest> converted = ConvertRequest(Api::kChat, DumpJson(request), ConvertOptions());
  EXPECT_TRUE(converted.ok()) << converted.status().message();
  return *std::move(converted);
}

constexpr int32_t kEndThink = 128822;

TEST(AnswerGrammar, StartsBehindTheThinking) {
  Json request = ParseJson(R"({"model":"DeepSeek-V4.1-Flash","messages":[{"role":"user","content":"json"}],"response_format":{"type":"json_object"}})").value();
  auto spec = AnswerGrammar(Convert(request), kEndThink).value();
  ASSERT_TRUE(spec.has_value());
  EXPECT_EQ(spec->kind, constrain::GrammarKind::kJsonObject);
  EXPECT_EQ(spec->trigger_token_ids, std::vector<int32_t>{kEndThink});
  request["thinking"]["type"] = "disabled";
  spec = AnswerGrammar(Convert(request), kEndThink).value();
  EXPECT_TRUE(spec->trigger_token_ids.empty());
  request["response_format"] = {{"type", "regex"}, {"regex", "a+"}};
  spec = AnswerGrammar(Convert(request), kEndThink).value();
  EXPECT_EQ(spec->kind, constrain::GrammarKind::kRegex);
  EXPECT_EQ(spec->text, "a+");
  request.erase("response_format");
  EXPECT_FALSE(AnswerGrammar(Convert(request), kEndThink).value().has_value());
}

TEST(AnswerGrammar, Case12CompilesTheClosedSchema) {
  const Json test_case = ReadCase("12-json-schema-output.json");
  for (const Json& item : test_case["items"]) {
    if (!item.contains("expect_constraint")) continue;
    const auto spec = AnswerGrammar(Convert(item["request"]), kEndThink).value();
    ASSERT_TRUE(spec.has_value());
    EXPECT_EQ(spec->kind, constrain::GrammarKind::kJsonSchema);
    EXPECT_EQ(spec->trigger_token_ids, std::vector<int32_t>{kEndThink});
    Json compiled = ParseJson(spec->text).value(), expected = item["expect_constraint"]["schema"];
    EXPECT_EQ(nlohmann::json(compiled), nlohmann::json(expected)) << item["name"];
  }
}

TEST(AnswerGrammar, Case07BecomesAStructuralTag) {
  Json request = ReadCase("07-forced-tool-choice.json")["base_request"];
  request["thinking"]["type"] = "disabled";
  request["parallel_tool_calls"] = false;
  for (const char* choice : {"auto", "required"}) {
    request["tool_choice"] = choice;
    const auto spec = AnswerGrammar(Convert(request), kEndThink).value();
    ASSERT_TRUE(spec.has_value());
    EXPECT_EQ(spec->kind, constrain::GrammarKind::kStructuralTag);
    EXPECT_TRUE(spec->trigger_token_ids.empty());
    EXPECT_NE(spec->text.find("invoke name=\\\"lookup\\\""), std::string::npos) << spec->text;
    EXPECT_NE(spec->text.find("\"stop_after_first\":true"), std::string::npos);
    EXPECT_EQ(spec->text.find("triggered_tags") != std::string::npos, std::string_view(choice) == "auto");
  }
}

TEST(AnswerGrammar, StrictToolsAreCompiledFromTheClientsSchema) {
  Json request = ReadCase("07-forced-tool-choice.json")["base_request"];
  request["tool_choice"] = "required";
  request["thinking"]["type"] = "disabled";
  Json& function = request["tools"][0]["function"];
  function["strict"] = true;
  function["parameters"]["properties"]["word"]["maxLength"] = 7;
  const ConvertedRequest converted = Convert(request);
  EXPECT_EQ(converted.inference.constraint->schema.find("maxLength"), std::string::npos);
  const auto spec = AnswerGrammar(converted, kEndThink).value();
  EXPECT_NE(spec->text.find("\"maxLength\":7"), std::string::npos);
  EXPECT_NE(spec->text.find("\"additionalProperties\":false"), std::string::npos);
}

}  // namespace
}  // namespace deepinfer::protocols
