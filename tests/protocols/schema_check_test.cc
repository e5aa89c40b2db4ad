// SPDX-License-Identifier: Apache-2.0
#include "protocols/schema_check.h"

#include <gtest/gtest.h>

#include "core/json.h"
#include "protocols/regex_syntax.h"
#include "protocols/strict_schema.h"
#include "protocols/uri.h"
#include "text/python_json.h"

namespace deepinfer::protocols {
namespace {

struct Check {
  const char* schema;
  const char* error;  // nullptr: valid
};

TEST(SchemaCheck, Messages) {
  const Check kChecks[] = {
      {R"({"type":"object","x-unknown":5,"format":"nonsense"})", nullptr},
      {"true", nullptr},
      {"{}", nullptr},
      {R"({"enum":[]})", nullptr},
      {R"({"$ref":"#"})", nullptr},
      {R"({"properties":{"a":{"$ref":"#/$defs/n"}},"$defs":{"n":{"items":{"$ref":"#/$defs/n"}}}})", nullptr},
      {R"("x")", R"("x" is not of types "boolean", "object")"},
      {"null", R"(null is not of types "boolean", "object")"},
      {"[1]", R"([1] is not of types "boolean", "object")"},
      {R"({"properties":{"a":1}})", R"(1 is not of types "boolean", "object")"},
      {R"({"items":[]})", R"([] is not of types "boolean", "object")"},
      {R"({"allOf":{}})", R"({} is not of type "array")"},
      {R"({"allOf":[]})", "[] has less than 1 item"},
      {R"({"properties":[]})", R"([] is not of type "object")"},
      {R"({"title":5})", R"(5 is not of type "string")"},
      {R"({"minLength":1.5})", R"(1.5 is not of type "integer")"},
      {R"({"minLength":2.0})", nullptr},
      {R"({"minLength":-1})", "-1 is less than the minimum of 0"},
      {R"({"multipleOf":0})", "0 is less than or equal to the minimum of 0"},
      {R"({"maximum":"1"})", R"("1" is not of type "number")"},
      {R"({"uniqueItems":1})", R"(1 is not of type "boolean")"},
      {R"({"required":["a","a"]})", R"(["a","a"] has non-unique elements)"},
      {R"({"required":[1]})", R"(1 is not of type "string")"},
      {R"({"type":"int"})", R"("int" is not valid under any of the schemas listed in the 'anyOf' keyword)"},
      {R"({"type":["string","string"]})", R"(["string","string"] is not valid under any of the schemas listed in the 'anyOf' keyword)"},
      {R"({"type":null})", "null is not valid under any of the schemas listed in the 'anyOf' keyword"},
      {R"({"pattern":"("})", R"("(" is not a "regex")"},
      {R"({"patternProperties":{"[":true}})", R"("[" is not a "regex")"},
      {R"({"$ref":"#/nope"})", "Pointer '/nope' does not exist"},
      {R"({"$ref":"#foo"})", "Anchor 'foo' does not exist"},
      {R"({"$ref":"#foo","$defs":{"a":{"$anchor":"foo"}}})", nullptr},
      {R"({"$ref":"https://x/y"})",
       "Resource 'https://x/y' is not present in a registry and retrieving it failed: Retrieval is disabled, cannot fetch "
       "https://x/y"},
      {R"({"$id":"https://x/root","$ref":"y#/a","$defs":{"s":{"$id":"y","a":{}}}})", nullptr},
      {R"({"$ref":"http://json-schema.org/draft-07/schema#"})", nullptr},
      {R"({"$schema":"https://example.com/mine"})",
       "Unknown meta-schema: 'https://example.com/mine'. Custom meta-schemas must be registered in the registry before use"},
      {R"({"$schema":5})", R"(5 is not of type "string")"},
      // Drafts differ.
      {R"({"$schema":"http://json-schema.org/draft-07/schema#","items":[{"type":"string"}]})", nullptr},
      {R"({"$schema":"http://json-schema.org/draft-04/schema#","exclusiveMinimum":true,"minimum":1})", nullptr},
      {R"({"exclusiveMinimum":true})", R"(true is not of type "number")"},
      {R"({"$schema":"http://json-schema.org/draft-04/schema#","properties":{"a":true}})", R"(true is not of type "object")"},
      {R"({"$schema":"http://json-schema.org/draft-06/schema#","enum":[]})", "[] has less than 1 item"},
      {R"({"$schema":"http://json-schema.org/draft-07/schema#","$ref":"#/definitions/a","definitions":{"a":{}}})", nullptr},
      {R"({"$schema":"https://json-schema.org/draft/2019-09/schema","dependentRequired":{"a":["b","b"]}})",
       R"(["b","b"] has non-unique elements)"},
  };
  for (const Check& check : kChecks) {
    const Result<Json> schema = ParseJson(check.schema);
    ASSERT_TRUE(schema.ok()) << check.schema;
    const Status status = CheckJsonSchema(*schema);
    if (check.error == nullptr) {
      EXPECT_TRUE(status.ok()) << check.schema << ": " << status.message();
    } else {
      EXPECT_EQ(status.message(), check.error) << check.schema;
    }
  }
}

TEST(RegexSyntax, Patterns) {
  for (const char* good : {"", "^(?=a)", "a{2,3}", "a{", "[a-z]", "[]a]", "\\d+\\.", "(?<n>x)\\k<n>", "(?i)a", "x|y", "[^]", "\\p{L}", "é*", "^*"}) {
    EXPECT_TRUE(IsRegexSyntax(good)) << good;
  }
  for (const char* bad : {"(", ")", "[", "a)", "*a", "(?", "(?z)", "a{3,2}", "[z-a]", "\\", "(*)", "x|*", "(?<n"}) {
    EXPECT_FALSE(IsRegexSyntax(bad)) << bad;
  }
}

TEST(Uri, Resolve) {
  EXPECT_EQ(ResolveUri("https://x/a/b", "c"), "https://x/a/c");
  EXPECT_EQ(ResolveUri("https://x/a/b", "../c"), "https://x/c");
  EXPECT_EQ(ResolveUri("https://x/a/b", "/c#f"), "https://x/c#f");
  EXPECT_EQ(ResolveUri("https://x", "c"), "https://x/c");
  EXPECT_EQ(ResolveUri("https://x/a", "#f"), "https://x/a#f");
  EXPECT_EQ(ResolveUri("https://x/a", "//y/z"), "https://y/z");
  EXPECT_EQ(ResolveUri("", "c"), "c");
  EXPECT_EQ(ResolveUri("https://x/a", "urn:b"), "urn:b");
}

struct Strict {
  const char* schema;
  const char* result;  // rebuilt, or the error
  StrictUse use = StrictUse::kToolParameters;
};

TEST(StrictSchema, Rebuild) {
  const Strict kCases[] = {
      {R"({"type":"object","properties":{"a":{"type":"string","enum":["x"],"default":"x","format":"uuid","description":"d"}}})",
       R"({"type":"object","properties":{"a":{"type":"string","description":"d","format":"uuid","enum":["x"]}},"additionalProperties":false,"required":["a"]})"},
      {R"({"type":"object","properties":{"a":{"type":["string","null"],"minLength":1}}})",
       R"({"type":"object","properties":{"a":{"type":["string","null"]}},"additionalProperties":false,"required":["a"]})"},
      {R"({"type":"object","properties":null,"required":null})",
       R"({"type":"object","properties":{},"additionalProperties":false,"required":[]})"},
      {R"({"type":"object","properties":{"a":{"type":"array"}}})", "Invalid tool parameters schema : missing field `items`"},
      {R"({"type":"object","properties":{"a":{"type":"null"},"b":{"type":"null"}},"required":["b"]})",
       "Required properties must match all properties in the object"},
      {R"({"type":"object","properties":{"b":{"type":"null"}},"required":["b","b"]})", "Duplicate required property 'b'"},
      {R"({"type":"object","properties":{"b":{"type":"null"}},"required":["c"]})", "Required property 'c' not found in object"},
      {R"({"type":"string"})", "The top level of the json schema must be an object.", StrictUse::kJsonSchema},
      {R"({"enum":[1]})", "Invalid json schema: one of `type`, `anyOf`, `$ref` field is required", StrictUse::kJsonSchema},
      {R"({"type":"object","properties":{}})", "An object with no properties is not allowed.", StrictUse::kJsonSchema},
  };
  for (const Strict& test_case : kCases) {
    const Result<Json> schema = ParseJson(test_case.schema);
    ASSERT_TRUE(schema.ok());
    const Result<Json> rebuilt = RebuildStrict(*schema, test_case.use);
    EXPECT_EQ(rebuilt.ok() ? text::CompactJson(*rebuilt) : rebuilt.status().message(), test_case.result);
  }
}

}  // namespace
}  // namespace deepinfer::protocols
