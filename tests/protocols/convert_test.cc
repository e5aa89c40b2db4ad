// SPDX-License-Identifier: Apache-2.0
//
// The golden conversions of the three protocols: request -> prompt, options, errors.
#include <map>
#include <set>

#include <fmt/format.h>

#include "protocols/convert_request.h"
#include "protocols/debug_render.h"
#include "protocols/golden_cases.h"
#include "protocols/golden_tokenizer.h"

namespace deepinfer::protocols {
namespace {

constexpr Api kApis[] = {Api::kChat, Api::kResponses, Api::kMessages};

std::vector<Json> ConvertCases(Api api) { return ReadJsonLines(fmt::format("protocols/{}_convert.jsonl", ApiName(api))); }

// Where ours differs on purpose (README of the golden cases). A value: our message must start with it.
const std::map<std::string, std::string>& FreeMessages() {
  static const auto* const prefixes = new std::map<std::string, std::string>{
      {"chat/err-strict-format", "Invalid tool parameters schema : "},
      {"chat/err-strict-anyof-member", "Invalid tool parameters schema : "},
      {"chat/err-strict-type-list-object", "Invalid tool parameters schema : "},
      {"chat/err-strict-int-fraction", "Invalid tool parameters schema : "},
      {"chat/err-unknown-model",
       "The supported API model names are DeepSeek-V4.1-Flash, deepseek-flash, deepseek-ai/DeepSeek-V4.1-Flash, "
       "deepseek-v4-flash, but you passed gpt-x."},
  };
  return *prefixes;
}

// Refused by the reference, accepted by us.
const std::set<std::string>& Accepted() {
  static const auto* const ids = new std::set<std::string>{"chat/file-nested", "chat/err-msgs-developer", "messages/tool-err-custom",
                                                           "messages/err-model", "messages/msgs-err-redacted"};
  return *ids;
}

std::string RequestText(const Json& test_case) {
  if (const auto it = test_case.find("request_text"); it != test_case.end()) return it->get<std::string>();
  return DumpJson(test_case["request"]);
}

Json DescribeImages(const std::vector<text::ImageRef>& images) {
  Json out = Json::array();
  for (const text::ImageRef& image : images) {
    Json json = Json::object();
    json["kind"] = image.kind == text::ImageRef::Kind::kUrl ? "url" : "data_url";
    json["detail"] = image.detail;
    json["source"] = image.source;
    json["path"] = image.path;
    out.push_back(json);
  }
  return out;
}

Json DescribeNamespaces(const ConvertedRequest& request) {
  Json out = Json::object();
  if (!request.responses_echo) return out;
  for (const auto& [name, parts] : request.responses_echo->namespace_tools) out[name] = Json::array({parts.first, parts.second});
  return out;
}

bool SameMembers(const Json& a, const Json& b) { return nlohmann::json(a) == nlohmann::json(b); }

void CompareRequest(const std::string& id, const ConvertedRequest& request, Json expected) {
  if (id == "chat/param-mct") expected["inference"]["max_tokens"] = 5;
  const Json ours = DescribeRequest(request);
  EXPECT_EQ(ours["prompt"], expected["prompt"]) << id;
  EXPECT_EQ(ours["special_ranges"], expected["special_ranges_utf8"]) << id;
  for (const char* key : {"stream", "inference", "parsing", "thinking", "effort"}) {
    EXPECT_EQ(ours[key], expected[key]) << id << " " << key;
  }
  const Json images = DescribeImages(request.prompt.images);
  EXPECT_EQ(images, expected.contains("images") ? expected["images"] : Json::array()) << id;
  const Json spaces = expected.contains("namespace_tool_map") ? expected["namespace_tool_map"] : Json::object();
  EXPECT_TRUE(SameMembers(DescribeNamespaces(request), spaces)) << id;
}

void CompareError(Api api, const std::string& id, const Status& status, const Json& expected) {
  EXPECT_EQ(HttpStatus(status), expected["status"].get<int>()) << id;
  Json body = ErrorBody(api, status, "req_1");
  if (api == Api::kMessages) {
    EXPECT_EQ(body["type"], "error");
    EXPECT_EQ(body["request_id"], "req_1");
    Json inner = Json::object();
    inner["error"] = body["error"];
    body = inner;
  }
  if (const auto it = FreeMessages().find(id); it != FreeMessages().end()) {
    EXPECT_EQ(status.message().substr(0, it->second.size()), it->second) << id;
  } else if (expected["stage"] == "convert") {
    EXPECT_EQ(body, expected["body"]) << id;
  } else {
    EXPECT_EQ(body["error"]["type"], expected["type"]) << id;
    EXPECT_EQ(status.message().find("Failed to deserialize the JSON body into the target type: "), 0u) << id << status.message();
  }
}

class Convert : public ::testing::TestWithParam<Api> {};

TEST_P(Convert, GoldenCases) {
  const Api api = GetParam();
  const std::set<std::string> others = {"messages/tc-any", "responses/param-ignored"};  // DeliberateDifferences
  int num_cases = 0;
  for (const Json& test_case : ConvertCases(api)) {
    const std::string id = test_case["id"];
    ++num_cases;
    if (others.contains(id)) continue;
    const Result<ConvertedRequest> request = ConvertRequest(api, RequestText(test_case), ConvertOptions());
    const Json& expected = test_case["expect"];
    if (expected.contains("ok")) {
      EXPECT_TRUE(request.ok()) << id << ": " << request.status().ToString();
      if (request.ok()) CompareRequest(id, *request, expected["ok"]);
    } else if (Accepted().contains(id)) {
      EXPECT_TRUE(request.ok()) << id << ": " << request.status().ToString();
    } else {
      EXPECT_FALSE(request.ok()) << id;
      if (!request.ok()) CompareError(api, id, request.status(), expected["error"]);
    }
  }
  EXPECT_EQ(num_cases, api == Api::kChat ? 197 : api == Api::kResponses ? 62 : 91);
}

// Rendered prompts through the tokenizer: the ids of the reference.
TEST_P(Convert, GoldenTokenIds) {
  const auto tokens = text::PromptTokens::FromTokenizer(GoldenTokenizer());
  ASSERT_TRUE(tokens.ok()) << tokens.status().ToString();
  EXPECT_EQ(tokens->image, "<｜deepseek_image｜>");
  int num_compared = 0;
  for (const Json& test_case : ConvertCases(GetParam())) {
    if (!test_case["expect"].contains("ok") || test_case["id"] == "messages/tc-any") continue;
    ConvertOptions options;
    options.ignore_previous_response_id = true;
    const DebugRenderResult rendered = DebugRender(GetParam(), RequestText(test_case), GoldenTokenizer(), options);
    EXPECT_FALSE(rendered.is_error) << test_case["id"];
    EXPECT_EQ(rendered.json["ids"], test_case["expect"]["ok"]["token_ids"]) << test_case["id"];
    ++num_compared;
  }
  EXPECT_GT(num_compared, 40);
}

INSTANTIATE_TEST_SUITE_P(Protocols, Convert, ::testing::ValuesIn(kApis),
                         [](const auto& api) { return std::string(ApiName(api.param)); });

TEST(ResolveMaxTokens, GoldenCases) {
  int num_cases = 0;
  for (const Json& test_case : ReadJsonLines("protocols/resolve_max_tokens.jsonl")) {
    SCOPED_TRACE(test_case["id"].get<std::string>());
    const Api api = ParseApi(test_case["api"].get<std::string>()).value();
    const Result<ConvertedRequest> request = ConvertRequest(api, DumpJson(test_case["request"]), ConvertOptions());
    ASSERT_TRUE(request.ok()) << request.status().ToString();
    const Result<int64_t> resolved = ResolveMaxTokens(request->inference,
                                                      request->conversation.thinking,
                                                      request->conversation.effort,
                                                      test_case["prompt_tokens"].get<int64_t>(),
                                                      test_case["context_limit"].get<int64_t>());
    const Json& expected = test_case["expect"];
    if (expected.contains("max_tokens")) {
      ASSERT_TRUE(resolved.ok()) << resolved.status().ToString();
      EXPECT_EQ(*resolved, expected["max_tokens"].get<int64_t>());
    } else {
      ASSERT_FALSE(resolved.ok());
      EXPECT_EQ(HttpStatus(resolved.status()), expected["error"]["status"].get<int>());
      EXPECT_EQ(ErrorBody(Api::kChat, resolved.status()), expected["error"]["body"]);
    }
    ++num_cases;
  }
  EXPECT_EQ(num_cases, 14);
}

Json GoldenCase(Api api, const std::string& id) {
  for (Json& test_case : ConvertCases(api)) {
    if (test_case["id"] == id) return std::move(test_case);
  }
  ADD_FAILURE() << id;
  return Json::object();
}

ConvertedRequest ConvertCase(Api api, const std::string& id, const ConvertOptions& options = {}) {
  Result<ConvertedRequest> request = ConvertRequest(api, RequestText(GoldenCase(api, id)), options);
  EXPECT_TRUE(request.ok()) << id << ": " << request.status().ToString();
  return request.ok() ? *request : ConvertedRequest();
}

TEST(ConvertDifferences, Chat) {
  const ConvertedRequest file = ConvertCase(Api::kChat, "chat/file-nested");
  EXPECT_TRUE(file.prompt.text.ends_with("<｜User｜>x\n\n<｜deepseek_image｜><｜Assistant｜></think>"));
  EXPECT_EQ(DescribeImages(file.prompt.images),
            Json::parse(R"([{"kind":"data_url","detail":"high","source":"data:image/png;base64,iVBORw0KGgo=","path":".messages[2]"}])"));
  EXPECT_EQ(ConvertCase(Api::kChat, "chat/err-msgs-developer").prompt.text, "<｜begin▁of▁sentence｜><｜System｜>x<｜Assistant｜></think>");
}

TEST(ConvertDifferences, Messages) {
  const ConvertedRequest any = ConvertCase(Api::kMessages, "messages/tc-any");
  EXPECT_EQ(any.inference.constraint->kind, ConstraintKind::kToolCallRequired);
  EXPECT_TRUE(any.prompt.text.ends_with("</think>\n\n<｜DSML｜ calls>\n"));
  const std::string redacted = ConvertCase(Api::kMessages, "messages/msgs-err-redacted").prompt.text;
  EXPECT_EQ(redacted, "<｜begin▁of▁sentence｜><｜User｜>U<｜Assistant｜></think><｜end▁of▁sentence｜><｜User｜>V<｜Assistant｜></think>");
  EXPECT_NE(ConvertCase(Api::kMessages, "messages/tool-err-custom").prompt.text.find(R"({"name": "c",)"), std::string::npos);
  EXPECT_EQ(ConvertCase(Api::kMessages, "messages/err-model").model, "claude-x");
}

TEST(ConvertDifferences, Responses) {
  Json test_case = GoldenCase(Api::kResponses, "responses/param-ignored");
  for (const char* field : {"previous_response_id", "conversation"}) {
    const auto request = ConvertRequest(Api::kResponses, DumpJson(test_case["request"]), ConvertOptions());
    ASSERT_FALSE(request.ok());
    EXPECT_EQ(request.status().message(), fmt::format("{} is not supported", field));
    EXPECT_EQ(HttpStatus(request.status()), 400);
    test_case["request"].erase(field);
  }
  ConvertOptions options;
  options.ignore_previous_response_id = true;
  CompareRequest("responses/param-ignored", ConvertCase(Api::kResponses, "responses/param-ignored", options),
                 test_case["expect"]["ok"]);
}

}  // namespace
}  // namespace deepinfer::protocols
