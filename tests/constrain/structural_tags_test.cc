// SPDX-License-Identifier: Apache-2.0
#include "constrain/structural_tags.h"

#include <gtest/gtest.h>

#include "constrain/grammar_fixture.h"

namespace deepinfer::constrain {
namespace {

TagRequest Weather() {
  TagRequest request;
  request.tools = ToolSchemasFromJson(R"([{"type":"function","function":{"name":"weather","description":null,"parameters":
      {"type":"object","properties":{"city":{"type":"string"},"days":{"type":"integer"},"opts":{"type":"object"}},
       "required":["city"]},"strict":null}},
      {"type":"function","function":{"name":"ns::now","parameters":{}}}])")
                      .value();
  return request;
}

TEST(StructuralTags, TextOfOneTool) {
  TagRequest request = Weather();
  request.tools.resize(1);
  request.choice = ToolChoice::kRequired;
  request.parallel_tool_calls = false;
  const std::string block =
      R"({"type":"tags_with_separator","tags":[{"type":"tag","begin":"<｜DSML｜ invoke name=\"weather\">\n","content":)"
      R"({"type":"json_schema","style":"deepseek_v4_1_xml","any_order":true,"excludes":["</｜DSML｜"],"json_schema":)"
      R"({"type":"object","properties":{"city":{"type":"string"},"days":{"type":"integer"},"opts":{"type":"object"}},)"
      R"("required":["city"]}},"end":"</｜DSML｜ invoke>\n"}],"separator":"","at_least_one":true,"stop_after_first":true})";
  EXPECT_EQ(StructuralTagText(request), R"({"type":"structural_tag","format":{"type":"sequence","elements":[)" + block +
                                            R"(,{"type":"const_string","value":"</｜DSML｜ calls>"}]}})");
  request.choice = ToolChoice::kAuto;
  EXPECT_EQ(StructuralTagText(request),
            R"({"type":"structural_tag","format":{"type":"triggered_tags","triggers":["<｜DSML｜"],"tags":[{"type":"tag",)"
            R"("begin":"<｜DSML｜ calls>\n","content":)" + block +
                R"(,"end":"</｜DSML｜ calls>"}],"excludes":["<think>","</think>"],"stop_after_first":true}})");
  request.choice = ToolChoice::kNone;
  request.is_thinking = true;
  EXPECT_EQ(StructuralTagText(request),
            R"({"type":"structural_tag","format":{"type":"sequence","elements":[{"type":"any_text","excludes":["<think>",)"
            R"("</think>"]},{"type":"const_string","value":"</think>"},{"type":"any_text","excludes":["<think>","</think>",)"
            R"("<｜DSML｜ calls>"]}]}})");
}

// In any order a grammar only counts parameters: one given twice would stand for another that is missing.
TEST(StructuralTags, StrictToolsKeepTheOrderOfTheSchema) {
  const auto text = [](const char* strict) {
    TagRequest request;
    request.tools = ToolSchemasFromJson(std::string(R"([{"type":"function","function":{"name":"f","parameters":{},"strict":)") + strict + "}}]").value();
    request.choice = ToolChoice::kRequired;
    return StructuralTagText(request);
  };
  EXPECT_NE(text("true").find(R"("any_order":false)"), std::string::npos);
  EXPECT_NE(text("null").find(R"("any_order":true)"), std::string::npos);
}

TEST(StructuralTags, ToolsThatAreNoList) {
  EXPECT_FALSE(ToolSchemasFromJson("{}").ok());
  EXPECT_FALSE(ToolSchemasFromJson("[{}]").ok());
  EXPECT_FALSE(ToolSchemasFromJson("[").ok());
}

TEST(StructuralTags, SpecsOfTheOtherKinds) {
  const GrammarSpec any = JsonSpec("", 7);
  EXPECT_EQ(any.kind, GrammarKind::kJsonObject);
  EXPECT_EQ(any.trigger_token_ids, std::vector<int32_t>{7});
  EXPECT_EQ(any.max_whitespace_cnt, kServerMaxWhitespace);
  EXPECT_EQ(JsonSpec("{}", {}).kind, GrammarKind::kJsonSchema);
  EXPECT_EQ(RegexSpec("a", {}).kind, GrammarKind::kRegex);
}

#if DEEPINFER_HAVE_XGRAMMAR

std::string Parameter(const std::string& name, const std::string& value, bool is_string) {
  return "<｜DSML｜ parameter name=\"" + name + "\" string=\"" + (is_string ? "true" : "false") + "\">" + value +
         "</｜DSML｜ parameter>\n";
}
std::string Invoke(const std::string& name, const std::string& parameters) {
  return "<｜DSML｜ invoke name=\"" + name + "\">\n" + parameters + "</｜DSML｜ invoke>\n";
}
const std::string kEnd = "</｜DSML｜ calls>";
const std::string kBerlin = Parameter("city", "Berlin", true);

class ToolCalls : public ::testing::Test {
 protected:
  bool Required(const std::string& text) { return Check(ToolChoice::kRequired, text); }
  bool Auto(const std::string& text) { return Check(ToolChoice::kAuto, text); }
  bool Check(ToolChoice choice, const std::string& text) {
    request.choice = choice;
    return Accepts(StructuralTagSpec(request), text);
  }
  TagRequest request = Weather();
};

TEST_F(ToolCalls, ValidOnesAreAccepted) {
  EXPECT_TRUE(Required(Invoke("weather", kBerlin) + kEnd));
  EXPECT_TRUE(Required(Invoke("weather", kBerlin + Parameter("days", "3", false)) + kEnd));
  EXPECT_TRUE(Required(Invoke("weather", Parameter("days", "3", false) + kBerlin) + kEnd));  // any order
  EXPECT_TRUE(Required(Invoke("weather", kBerlin + Parameter("opts", "{\"a\": [1, \"x\"]}", false)) + kEnd));
  EXPECT_TRUE(Required(Invoke("ns::now", "\n") + kEnd));  // without parameters: an empty line
  EXPECT_TRUE(Required(Invoke("weather", kBerlin) + Invoke("ns::now", "") + kEnd));
  EXPECT_TRUE(Required(Invoke("weather", Parameter("city", "a < b & \"c\" <｜DSML｜ x \n", true)) + kEnd));
}

TEST_F(ToolCalls, OthersAreRejected) {
  EXPECT_FALSE(Required(Invoke("wheather", kBerlin) + kEnd));
  EXPECT_FALSE(Required(Invoke("weather", kBerlin + Parameter("extra", "1", false)) + kEnd));
  EXPECT_FALSE(Required(Invoke("weather", "") + kEnd));                                       // city is missing
  EXPECT_FALSE(Required(Invoke("weather", Parameter("city", "Berlin", false)) + kEnd));       // the wrong attribute
  EXPECT_FALSE(Required(Invoke("weather", kBerlin + Parameter("days", "x", false)) + kEnd));  // no integer
  EXPECT_FALSE(Required("<｜DSML｜invoke name=\"weather\">\n" + kBerlin + "</｜DSML｜ invoke>\n" + kEnd));  // no blank
  EXPECT_FALSE(Required(kEnd));
  EXPECT_FALSE(Required("text"));
  EXPECT_FALSE(Required(Invoke("weather", kBerlin) + kEnd + "text"));
}

// In any order the library only counts the parameters; in the order of the schema it knows which one is missing.
TEST_F(ToolCalls, InOrderARequiredParameterCannotBeReplaced) {
  request.choice = ToolChoice::kRequired;
  GrammarSpec spec = StructuralTagSpec(request);
  for (size_t at; (at = spec.text.find("\"any_order\":true")) != std::string::npos;) spec.text.replace(at, 16, "\"any_order\":false");
  EXPECT_FALSE(Accepts(spec, Invoke("weather", Parameter("days", "3", false)) + kEnd));
  EXPECT_FALSE(Accepts(spec, Invoke("weather", Parameter("days", "3", false) + kBerlin) + kEnd));
  EXPECT_TRUE(Accepts(spec, Invoke("weather", kBerlin + Parameter("days", "3", false)) + kEnd));
}

TEST_F(ToolCalls, AValueCannotHoldWhatEndsIt) {
  EXPECT_FALSE(Required(Invoke("weather", Parameter("city", "a</｜DSML｜ x", true)) + kEnd));
  EXPECT_FALSE(Required(Invoke("weather", kBerlin + Parameter("opts", "{\"a\":\"</｜DSML｜ x\"}", false)) + kEnd));
}

TEST_F(ToolCalls, FreeTextThenOneBlock) {
  const std::string block = "<｜DSML｜ calls>\n" + Invoke("weather", kBerlin) + kEnd;
  EXPECT_TRUE(Auto("No call, <a and <b>."));
  EXPECT_TRUE(Auto("Let me see.\n\n" + block));
  EXPECT_FALSE(Auto("<｜DSML｜ x"));
  EXPECT_FALSE(Auto("<｜DSML｜ calls>x"));
  EXPECT_FALSE(Auto("a <think> b"));
  EXPECT_FALSE(Auto(block + " more"));
  EXPECT_FALSE(Auto(block + block));
}

TEST_F(ToolCalls, NoParallelCalls) {
  request.parallel_tool_calls = false;
  EXPECT_TRUE(Required(Invoke("weather", kBerlin) + kEnd));
  EXPECT_FALSE(Required(Invoke("weather", kBerlin) + Invoke("ns::now", "") + kEnd));
}

TEST_F(ToolCalls, WithoutTools) {
  EXPECT_TRUE(Check(ToolChoice::kNone, "free <a ｜DSML｜"));
  EXPECT_FALSE(Check(ToolChoice::kNone, "<｜DSML｜ calls>"));
  EXPECT_FALSE(Check(ToolChoice::kNone, "</think>"));
}

TEST_F(ToolCalls, AfterThinking) {
  request.is_thinking = true;
  const std::string calls = Invoke("weather", kBerlin) + kEnd;
  EXPECT_TRUE(Auto("Hm. <｜DSML｜ x</think>Answer."));
  EXPECT_TRUE(Auto("Hm.</think>\n\n<｜DSML｜ calls>\n" + calls));
  EXPECT_FALSE(Auto("Hm."));
  EXPECT_FALSE(Auto("Hm.<think></think>"));
  EXPECT_TRUE(Required("Hm.</think>\n\n<｜DSML｜ calls>\n" + calls));
  EXPECT_FALSE(Required("Hm.</think>" + calls));
  EXPECT_FALSE(Required("Hm.</think>Answer."));
}

TEST_F(ToolCalls, JsonAnswers) {
  request.response_schema = Json::parse(R"({"type":"object","properties":{"a":{"type":"integer"}},"required":["a"]})");
  EXPECT_TRUE(Auto("{\"a\": 1}"));
  EXPECT_TRUE(Auto("\n\n<｜DSML｜ calls>\n" + Invoke("weather", kBerlin) + kEnd));
  EXPECT_FALSE(Auto("text"));
  EXPECT_FALSE(Auto("{\"a\":" + std::string(9, ' ') + "1}"));  // more blanks than the server allows
  request.is_thinking = true;
  EXPECT_TRUE(Check(ToolChoice::kNone, "Hm.</think>{\"a\":1}"));
  EXPECT_FALSE(Check(ToolChoice::kNone, "{\"a\":1}"));
}

#endif

}  // namespace
}  // namespace deepinfer::constrain
