// SPDX-License-Identifier: Apache-2.0
#include "core/json.h"

#include <string>

#include <gtest/gtest.h>

namespace deepinfer {
namespace {

TEST(Json, KeepsOrderAndTypes) {
  const Result<Json> json = ParseJson(R"( {"b":[1,-2,2.5,true,null,"x",{}],"a":{"c":[]}} )");
  ASSERT_TRUE(json.ok()) << json.status().ToString();
  EXPECT_EQ(DumpJson(*json), R"({"b":[1,-2,2.5,true,null,"x",{}],"a":{"c":[]}})");
  EXPECT_TRUE((*json)["b"][0].is_number_unsigned());
}

TEST(Json, LastDuplicateWinsInTheFirstPlace) {
  EXPECT_EQ(DumpJson(*ParseJson(R"({"a":{"x":1},"b":2,"a":[3]})")), R"({"a":[3],"b":2})");
  std::string large = "{";
  for (int i = 0; i < 100; ++i) large += "\"k" + std::to_string(i) + "\":0,";
  large += R"("k7":7,"k99":99})";
  const Result<Json> json = ParseJson(large);
  ASSERT_TRUE(json.ok());
  EXPECT_EQ(json->size(), 100u);
  EXPECT_EQ((*json)["k7"], 7);
  EXPECT_EQ(json->begin().key(), "k0");
}

TEST(Json, Errors) {
  for (const char* text : {"", "{", "[1,]", "{\"a\":1,}", "1 2", "NaN", "1e400", "\"\\ud800\"", "\"\xff\"", "{1:2}", "[1 2]"}) {
    const Result<Json> json = ParseJson(text);
    EXPECT_FALSE(json.ok()) << text;
    EXPECT_EQ(json.status().message().find("invalid JSON"), 0u) << json.status().ToString();
  }
  EXPECT_FALSE(ParseJson(std::string_view("{}\0", 3)).ok());  // NUL is no end of text
  EXPECT_FALSE(ParseJson(std::string_view("[1]\0x", 5)).ok());
  EXPECT_EQ(ParseJson("[1,").status().message().find("invalid JSON at byte 4: "), 0u) << ParseJson("[1,").status().ToString();
}

TEST(Json, DepthLimit) {
  EXPECT_TRUE(ParseJson(std::string(256, '[') + std::string(256, ']')).ok());
  EXPECT_FALSE(ParseJson(std::string(257, '[') + std::string(257, ']')).ok());
  EXPECT_FALSE(ParseJson(std::string(1000000, '[')).ok());
  EXPECT_TRUE(ParseJson("[[1]]", 2).ok());
  EXPECT_FALSE(ParseJson("[[1]]", 1).ok());
}

TEST(Json, ManyKeysTakeLinearTime) {
  std::string text = "{";
  for (int i = 0; i < 200000; ++i) text += "\"key" + std::to_string(i) + "\":1,";
  text.back() = '}';
  const Result<Json> json = ParseJson(text);  // a quadratic parser needs minutes
  ASSERT_TRUE(json.ok());
  EXPECT_EQ(json->size(), 200000u);
}

}  // namespace
}  // namespace deepinfer
