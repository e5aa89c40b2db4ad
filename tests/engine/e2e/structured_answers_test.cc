// SPDX-License-Identifier: Apache-2.0
//
// Structured outputs through the public API on the demo model: what a request asks for is what it gets, or the first part of it.
#include <algorithm>
#include <memory>
#include <regex>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "constrain/structural_tags.h"
#include "constrain/tokenizer_view.h"
#include "constrain/xgrammar_backend.h"
#include "core/json.h"
#include "deepinfer/engine.h"
#include "deepinfer/llm.h"
#include "text/tokenizer.h"

namespace deepinfer {
namespace {

const std::string kSource = DEEPINFER_SOURCE_DIR;

EngineOptions Options() {
  EngineOptions options;
  options.model = kSource + "/models/demo";
  options.max_num_seqs = 8;
  return options;
}
LLM& Demo() {
  static const std::unique_ptr<LLM> llm = std::move(LLM::Load(Options())).value();
  return *llm;
}
const text::Tokenizer& Words() {
  static const std::unique_ptr<text::Tokenizer> words = std::move(text::Tokenizer::Load(kSource + "/models/demo")).value();
  return *words;
}

class StructuredAnswers : public testing::Test {
 protected:
  void SetUp() override {
    if (!constrain::HasXgrammar()) GTEST_SKIP() << "this build has no grammar library";
  }
};

StructuredOutput Grammar(std::string type, std::string schema) {
  StructuredOutput so_args;
  so_args.schema_type = std::move(type);
  so_args.schema = std::move(schema);
  return so_args;
}
SamplingParams Params(StructuredOutput so_args, int64_t max_tokens = 80, std::optional<uint64_t> seed = std::nullopt) {
  SamplingParams params;
  params.temperature = seed ? 1.0 : 0.0;
  params.seq_seed = seed;
  params.max_tokens = max_tokens;
  params.so_args = std::move(so_args);
  params.skip_special_tokens = true;
  return params;
}

// What the matcher says of a text: not allowed, a beginning, or a whole one.
enum class Fit { kNone, kPart, kWhole };
Fit FitOf(const constrain::GrammarSpec& spec, std::string_view text) {
  const int width = Words().vocab_size();
  static const auto backend = constrain::MakeXgrammarBackend(constrain::MakeTokenizerView(Words(), constrain::ViewKind::kPlain, width),
                                                             constrain::MakeTokenizerView(Words(), constrain::ViewKind::kTags, width))
                                  .value();
  const auto grammar = backend->Compile(spec);
  EXPECT_TRUE(grammar.ok()) << grammar.status().message();
  if (!grammar.ok()) return Fit::kNone;
  const auto matcher = (*grammar)->NewMatcher().value();
  if (!matcher->AcceptText(text).value()) return Fit::kNone;
  return matcher->IsCompleted() ? Fit::kWhole : Fit::kPart;
}

TEST_F(StructuredAnswers, Patterns) {
  const std::regex date(R"(\d{4}-\d{2}-\d{2})");
  for (const uint64_t seed : {1, 2, 3}) {
    for (const char* prompt : {"The date is ", "My name is", "def f(x):"}) {
      const Completion c = Demo().Generate(prompt, Params(Grammar("regex", R"(\d{4}-\d{2}-\d{2})"), 40, seed)).value();
      EXPECT_EQ(c.finish_reason, FinishReason::kStop);
      EXPECT_TRUE(std::regex_match(c.text, date)) << c.text;
    }
  }
  const Completion choice = Demo().Generate("Yes or no?", Params(Grammar("choice", R"(["yes","no","perhaps"])"))).value();
  EXPECT_TRUE(choice.text == "yes" || choice.text == "no" || choice.text == "perhaps") << choice.text;
  const Completion sum = Demo().Generate("1+", Params(Grammar("ebnf", "root ::= [0-9]{1,3} (\" + \" [0-9]{1,3}){2}"))).value();
  EXPECT_TRUE(std::regex_match(sum.text, std::regex(R"(\d{1,3} \+ \d{1,3} \+ \d{1,3})"))) << sum.text;
}

TEST_F(StructuredAnswers, JsonSchema) {
  const std::string schema =
      R"({"type":"object","properties":{"name":{"type":"string","maxLength":12},"age":{"type":"integer","minimum":0,"maximum":150},)"
      R"("tags":{"type":"array","items":{"enum":["a","b"]},"maxItems":3}},"required":["name","age","tags"]})";
  for (const uint64_t seed : {1, 2, 3, 4, 5}) {
    StructuredOutput so_args = Grammar("json", schema);
    so_args.max_whitespace_cnt = 2;
    const Completion c = Demo().Generate("A person: ", Params(so_args, 120, seed)).value();
    ASSERT_EQ(c.finish_reason, FinishReason::kStop) << c.text;
    const Json json = ParseJson(c.text).value();
    EXPECT_TRUE(json["name"].is_string()) << c.text;
    EXPECT_LE(json["age"].get<int64_t>(), 150);
    EXPECT_LE(json["tags"].size(), 3u);
    EXPECT_EQ(json.size(), 3u);
    // Control tokens have texts that a string may hold; they never come.
    for (size_t i = 0; i + 1 < c.ids.size(); ++i) EXPECT_FALSE(Words().IsAddedToken(c.ids[i])) << c.ids[i];
  }
}

TEST_F(StructuredAnswers, OneCallAloneAndManyTogether) {
  std::vector<BatchRequest> requests;
  for (uint64_t i = 0; i < 8; ++i) {
    requests.push_back({Demo().Encode(i % 2 == 0 ? "One " : "Another "),
                        Params(Grammar(i % 3 == 0 ? "regex" : "json_object", i % 3 == 0 ? "[a-z ]{5,30}" : ""), 40, i)});
    if (i % 4 == 3) requests.back().params.so_args.reset();
  }
  const auto together = Demo().GenerateBatch(requests).value();
  for (size_t i = 0; i < requests.size(); ++i) {
    const Completion alone = Demo().GenerateFromIds(requests[i].prompt_ids, requests[i].params).value();
    EXPECT_EQ(together[i][0].ids, alone.ids) << i;
    EXPECT_EQ(together[i][0].finish_reason, alone.finish_reason) << i;
  }
}

TEST_F(StructuredAnswers, WhatDoesNotCompile) {
  const StructuredOutput bad = Grammar("regex", "(a");
  const Status status = Demo().CheckStructuredOutput(bad);
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(Demo().CheckStructuredOutput(Grammar("poem", "a")).code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(Demo().CheckStructuredOutput(Grammar("regex", "a")).ok());
  const Completion c = Demo().Generate("a", Params(bad)).value();
  EXPECT_EQ(c.ids, std::vector<int32_t>{0});
  EXPECT_EQ(c.text, "");
  EXPECT_EQ(FinishReasonName(c.finish_reason), "xgrammar runtime errors or timeout");
  ChatOptions options;
  options.thinking = false;
  const auto chat = Demo().Chat({{.role = "user", .content = "a"}}, Params(bad), options);
  ASSERT_FALSE(chat.ok());
  EXPECT_EQ(chat.status().code(), StatusCode::kInvalidArgument);
  // The next one is not touched.
  EXPECT_TRUE(Demo().Generate("a", Params(Grammar("regex", "bc"))).value().text.starts_with("bc"));
}

Json ReadCase(const std::string& name) { return ReadJsonFile(kSource + "/tests/golden/cases/" + name).value(); }

ChatOptions OptionsOf(const Json& request, bool thinking) {
  ChatOptions options;
  options.thinking = thinking;
  if (request.contains("tools")) options.tools_json = DumpJson(request["tools"]);
  if (request.contains("response_format")) options.response_format_json = DumpJson(request["response_format"]);
  if (request.contains("tool_choice")) {
    const Json& choice = request["tool_choice"];
    options.tool_choice = choice.is_string() ? choice.get<std::string>() : choice["function"]["name"].get<std::string>();
  }
  return options;
}

TEST_F(StructuredAnswers, Case07ForcedToolChoice) {
  const Json test_case = ReadCase("07-forced-tool-choice.json");
  for (const Json& row : test_case["rows"]) {
    SCOPED_TRACE(DumpJson(row));
    Json request = test_case["base_request"];
    request["tool_choice"] = row["tool_choice"];
    // Short values, so that the demo model comes to an end.
    request["tools"][0]["function"]["parameters"]["properties"]["word"]["maxLength"] = 8;
    request["tools"][0]["function"]["parameters"]["required"] = {"word"};
    ChatOptions options = OptionsOf(request, row["thinking"] == "default");
    options.parallel_tool_calls = false;
    const bool is_constrained = row["expect"].value("constraint", Json()) == "tool_call_required";
    int num_whole = 0;
    for (const uint64_t seed : {1, 2, 3}) {
      SamplingParams params = LLM::ChatDefaults();
      params.max_tokens = is_constrained ? 150 : 5;
      params.seq_seed = seed;
      const auto answer = Demo().Chat({{.role = "user", .content = "go"}}, params, options);
      if (row["expect"]["http_status"] != 200) {
        EXPECT_FALSE(answer.ok());
        break;
      }
      ASSERT_TRUE(answer.ok()) << answer.status().message();
      if (!is_constrained) break;
      ASSERT_EQ(answer->message.tool_calls.size(), 1u) << answer->completion.text;
      EXPECT_EQ(answer->message.tool_calls[0].name, "lookup");
      EXPECT_EQ(answer->message.content, "");
      if (answer->finish_reason != "tool_calls") continue;
      ++num_whole;
      const Json arguments = ParseJson(answer->message.tool_calls[0].arguments).value();
      ASSERT_EQ(arguments.size(), 1u);
      EXPECT_TRUE(arguments["word"].is_string());
    }
    EXPECT_TRUE(!is_constrained || num_whole > 0);
  }
}

TEST_F(StructuredAnswers, Case12JsonSchemas) {
  const Json test_case = ReadCase("12-json-schema-output.json");
  for (const Json& item : test_case["items"]) {
    SCOPED_TRACE(item["name"].get<std::string>());
    const Json& request = item["request"];
    const std::string content = request["messages"][0]["content"];
    for (const bool thinking : {false, true}) {
      SamplingParams params = LLM::ChatDefaults();
      params.max_tokens = thinking ? 200 : 80;
      params.seq_seed = 3;
      const auto answer = Demo().Chat({{.role = "user", .content = content}}, params, OptionsOf(request, thinking));
      if (item.contains("expect")) {
        ASSERT_FALSE(answer.ok());
        EXPECT_EQ(answer.status().code(), StatusCode::kInvalidArgument);
        continue;
      }
      ASSERT_TRUE(answer.ok()) << answer.status().message();
      // The schema that the answer was held to: closed, with the client's own limits.
      const constrain::GrammarSpec spec = constrain::JsonSpec(DumpJson(item["expect_constraint"]["schema"]), std::nullopt);
      const Fit fit = FitOf(spec, answer->message.content);
      EXPECT_TRUE(fit == Fit::kWhole || (fit == Fit::kPart && answer->finish_reason == "length")) << answer->message.content;
    }
  }
}

// The public engine, requests of all kinds at once: a failing one and a slow one leave the others as they are.
TEST_F(StructuredAnswers, PathologicalGrammarsUnderLoad) {
  auto engine = Engine::Start(Options()).value();
  std::vector<std::vector<int32_t>> expected;
  std::vector<SamplingParams> params;
  for (uint64_t i = 0; i < 4; ++i) {
    SamplingParams p = Params(Grammar("regex", "[a-z ]{10,60}"), 60, i);
    if (i % 2 == 0) p.so_args.reset();
    params.push_back(p);
    Request alone = engine->Submit("Once upon a time", p).value();
    expected.push_back(alone.TakeCompletions()[0].ids);
  }
  // Nested repetition, matched in time that grows with the fourth power; the model can write nothing but a.
  SamplingParams slow = Params(Grammar("ebnf", "root ::= ((\"a\"*)*)* \"b\""), 2000);
  slow.allowed_token_ids = engine->Encode("a");
  ASSERT_EQ(slow.allowed_token_ids->size(), 1u);
  std::string deep;
  for (int i = 0; i < 300; ++i) deep += R"({"type":"array","items":)";
  deep += "{}" + std::string(300, '}');
  const SamplingParams nested = Params(Grammar("json", deep));
  const SamplingParams huge = Params(Grammar("json", R"({"type":"string","description":")" + std::string(1 << 20, 'x') + "\"}"));
  std::vector<Request> bad;
  for (const SamplingParams& p : {slow, nested, huge}) bad.push_back(engine->Submit("Once upon a time", p).value());
  std::vector<Request> good;
  for (const SamplingParams& p : params) good.push_back(engine->Submit("Once upon a time", p).value());
  for (size_t i = 0; i < good.size(); ++i) EXPECT_EQ(good[i].TakeCompletions()[0].ids, expected[i]) << i;
  for (Request& request : bad) {
    const Completion c = request.TakeCompletions()[0];
    EXPECT_EQ(c.finish_reason, FinishReason::kStructuredOutputFailed);
    EXPECT_LT(c.ids.size(), 2000u);
  }
  engine->Drain();
}

}  // namespace
}  // namespace deepinfer
