// SPDX-License-Identifier: Apache-2.0
#include "constrain/schema_prepass.h"

#include <gtest/gtest.h>

namespace deepinfer::constrain {
namespace {

std::string Prepared(const std::string& text) {
  const auto prepared = PrepareSchema(text);
  return prepared.ok() ? prepared->text : prepared.status().message();
}

TEST(PrepareSchema, WhatNeedsNoWorkKeepsItsBytes) {
  const std::string text = R"({ "type" : "object", "properties": {"pattern": {"type":"number", "maximum": 1.50}} })";
  EXPECT_EQ(Prepared(text), text);
}

TEST(PrepareSchema, MergesAllOf) {
  EXPECT_EQ(Prepared(R"({"allOf":[{"type":"object","properties":{"a":{"type":"string"}},"required":["a"]},
                                  {"type":"object","properties":{"b":{"type":"integer"}},"required":["b"]}]})"),
            R"({"type":"object","properties":{"a":{"type":"string"},"b":{"type":"integer"}},"required":["a","b"]})");
  // Bounds and types of one property meet.
  EXPECT_EQ(Prepared(R"({"allOf":[{"properties":{"n":{"type":"number","minimum":1,"maximum":9}}},
                                  {"properties":{"n":{"type":"integer","minimum":3,"maximum":20}}}]})"),
            R"({"properties":{"n":{"type":"integer","minimum":3,"maximum":9}}})");
  // References, and what stands beside the allOf.
  EXPECT_EQ(Prepared(R"({"properties":{"b":{"const":1}},"allOf":[{"$ref":"#/$defs/base"}],"$defs":{"base":{"type":"object"}}})"),
            R"({"$defs":{"base":{"type":"object"}},"type":"object","properties":{"b":{"const":1}}})");
  EXPECT_EQ(Prepared(R"({"allOf":[{"type":"string"},{"minLength":3}]})"), R"({"type":"string","minLength":3})");
  EXPECT_EQ(Prepared(R"({"allOf":[{"type":"string"},{"enum":["a",1]}]})"), R"({"type":"string","enum":["a"]})");
}

TEST(PrepareSchema, AClosedEntryForbidsTheOthersProperties) {
  EXPECT_EQ(Prepared(R"({"allOf":[{"properties":{"a":{}},"additionalProperties":false},{"properties":{"b":{}}}]})"),
            R"({"properties":{"a":{}},"additionalProperties":false})");
}

TEST(PrepareSchema, ContradictionsAreErrors) {
  for (const auto& [text, keyword] : {
           std::pair{R"({"allOf":[{"type":"string"},{"type":"integer"}]})", "type"},
           std::pair{R"({"allOf":[{"minimum":5},{"maximum":3}]})", "minimum"},
           std::pair{R"({"allOf":[{"const":5},{"const":3}]})", "const"},
           std::pair{R"({"allOf":[{"enum":[5]},{"enum":[3]}]})", "enum"},
           std::pair{R"({"allOf":[{"properties":{"a":{}},"additionalProperties":false},{"required":["b"]}]})", "required"},
       }) {
    const auto prepared = PrepareSchema(text);
    ASSERT_FALSE(prepared.ok()) << text;
    EXPECT_EQ(prepared.status().message(), std::string("allOf: the entries contradict each other in ") + keyword);
  }
}

TEST(PrepareSchema, WhatHasNoMergedFormIsListed) {
  for (const char* text : {R"({"allOf":[{"pattern":"a"},{"pattern":"b"}]})", R"({"allOf":[{"$ref":"#"},{"type":"object"}]})",
                           R"({"allOf":[{"anyOf":[{"type":"string"}]},{"type":"object"}]})",
                           R"({"allOf":[{"$ref":"https://x/y"},{"type":"object"}]})"}) {
    const auto prepared = PrepareSchema(text);
    ASSERT_TRUE(prepared.ok()) << prepared.status().ToString();
    EXPECT_EQ(prepared->text, text);
    EXPECT_NE(std::find(prepared->warnings.begin(), prepared->warnings.end(), "allOf of several entries"),
              prepared->warnings.end());
  }
}

TEST(PrepareSchema, ReferencesThatMultiplyEndEarly) {
  std::string text = R"({"allOf":[{"$ref":"#/$defs/d0"},{"$ref":"#/$defs/d0"}],"$defs":{)";
  for (int i = 0; i < 30; ++i) {
    const std::string next = "{\"$ref\":\"#/$defs/d" + std::to_string(i + 1) + "\"}";
    text += "\"d" + std::to_string(i) + "\":{\"allOf\":[" + next + "," + next + "]},";
  }
  const auto prepared = PrepareSchema(text + R"("d30":{"type":"object"}}})");
  EXPECT_TRUE(prepared.ok());
}

TEST(PrepareSchema, ListsWhatIsNotEnforced) {
  const auto prepared = PrepareSchema(R"({"anyOf":[{"type":"number","multipleOf":0.5}],"properties":{},"not":{},"if":{},
      "$defs":{"a":{"type":"array","uniqueItems":true,"contains":{}},"b":{"type":"string","format":"phone","minLength":1},
               "c":{"type":"string","pattern":"a","minLength":1},"d":{"$ref":"other.json"}}})");
  ASSERT_TRUE(prepared.ok());
  for (const char* expected : {"multipleOf of numbers", "properties beside anyOf", "not", "if", "uniqueItems", "contains",
                               "format phone", "minLength and maxLength beside pattern or format", "$ref out of the document"}) {
    EXPECT_NE(std::find(prepared->warnings.begin(), prepared->warnings.end(), expected), prepared->warnings.end()) << expected;
  }
}

TEST(PrepareSchema, PatternsAreReducedWhereTheyAreKeywords) {
  EXPECT_EQ(Prepared(R"({"properties":{"pattern":{"pattern":"(a+)+"}},"default":{"pattern":"(a+)+"}})"),
            R"({"properties":{"pattern":{"pattern":"a+"}},"default":{"pattern":"(a+)+"}})");
  const auto tag = PrepareStructuralTag(
      R"({"type":"structural_tag","format":{"type":"sequence","elements":[{"type":"regex","pattern":"(a+)+"},
          {"type":"json_schema","json_schema":{"pattern":"(b+)+","not":{}}}]}})");
  ASSERT_TRUE(tag.ok());
  EXPECT_EQ(tag->text.find("+)+"), std::string::npos);
  EXPECT_EQ(tag->warnings, std::vector<std::string>{"not"});
}

}  // namespace
}  // namespace deepinfer::constrain
