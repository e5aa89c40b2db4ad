// SPDX-License-Identifier: Apache-2.0
#include "text/python_json.h"

#include <gtest/gtest.h>

#include "core/json.h"

namespace deepinfer::text {
namespace {

struct Spelling {
  const char* json;
  const char* python;
  const char* compact;
};

TEST(PythonJson, Spellings) {
  const Spelling kSpellings[] = {
      {"1.0", "1.0", "1.0"},
      {"1e3", "1000.0", "1000.0"},
      {"1e-7", "1e-07", "1e-7"},
      {"1.25e-7", "1.25e-07", "1.25e-7"},
      {"0.00001", "1e-05", "0.00001"},
      {"0.000001", "1e-06", "1e-6"},
      {"0.0001", "0.0001", "0.0001"},
      {"1e15", "1000000000000000.0", "1000000000000000.0"},
      {"1e16", "1e+16", "1e+16"},
      {"1.5e300", "1.5e+300", "1.5e+300"},
      {"5e-324", "5e-324", "5e-324"},
      {"-0.0", "-0.0", "-0.0"},
      {"0.1", "0.1", "0.1"},
      {"123456.789", "123456.789", "123456.789"},
      {"18446744073709551615", "18446744073709551615", "18446744073709551615"},
      {"-9223372036854775808", "-9223372036854775808", "-9223372036854775808"},
      {"12345678901234567890123", "1.2345678901234568e+22", "1.2345678901234568e+22"},
      {"[1,{\"b\":null,\"a\":[]}]", "[1, {\"b\": null, \"a\": []}]", "[1,{\"b\":null,\"a\":[]}]"},
      {"\"\\u2028\\u0001\\u007f\\/\\n\\\"\\\\\\ud83d\\ude00\"",
       "\"\xe2\x80\xa8\\u0001\x7f/\\n\\\"\\\\😀\"",
       "\"\xe2\x80\xa8\\u0001\x7f/\\n\\\"\\\\😀\""},
      {"{\"a\":1,\"b\":2,\"a\":3}", "{\"a\": 3, \"b\": 2}", "{\"a\":3,\"b\":2}"},
  };
  for (const Spelling& spelling : kSpellings) {
    const Result<Json> json = ParseJson(spelling.json);
    ASSERT_TRUE(json.ok()) << spelling.json;
    EXPECT_EQ(PythonJson(*json), spelling.python);
    EXPECT_EQ(CompactJson(*json), spelling.compact);
  }
}

TEST(PythonJson, IsJsonText) {
  for (const char* text : {"1", " [1, 2.5, null, true] ", "\"x\"", "{\"a\": {}}"}) EXPECT_TRUE(IsJsonText(text)) << text;
  for (const char* text : {"", "oops", "[1,", "{\"a\": 1,}", "1 2", "1e400", "\"\\ud800\"", "NaN"}) {
    EXPECT_FALSE(IsJsonText(text)) << text;
  }
  EXPECT_TRUE(IsJsonText(std::string(100000, '[') + std::string(100000, ']')));
}

}  // namespace
}  // namespace deepinfer::text
