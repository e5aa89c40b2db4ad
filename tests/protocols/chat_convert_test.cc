// SPDX-License-Identifier: Apache-2.0
#include <map>
#include <set>

#include "protocols/chat_request.h"
#include "protocols/debug_render.h"
#include "protocols/golden_cases.h"
#include "protocols/golden_tokenizer.h"

namespace deepinfer::protocols {
namespace {

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

const std::set<std::string>& Accepted() {
  static const auto* const ids = new std::set<std::string>{"chat/file-nested", "chat/err-msgs-developer"};
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
}

TEST(ChatConvert, GoldenCases) {
  int num_passed = 0;
  for (const Json& test_case : ReadJsonLines("protocols/chat_convert.jsonl")) {
    const std::string id = test_case["id"];
    const Result<ConvertedRequest> request = ConvertChatRequest(RequestText(test_case), ConvertOptions());
    const Json& expected = test_case["expect"];
    if (expected.contains("ok")) {
      ASSERT_TRUE(request.ok()) << id << ": " << request.status().ToString();
      CompareRequest(id, *request, expected["ok"]);
    } else if (Accepted().contains(id)) {
      EXPECT_TRUE(request.ok()) << id << ": " << request.status().ToString();
    } else {
      ASSERT_FALSE(request.ok()) << id;
      EXPECT_EQ(HttpStatus(request.status()), expected["error"]["status"].get<int>()) << id;
      const Json body = ErrorBody(Api::kChat, request.status());
      if (const auto it = FreeMessages().find(id); it != FreeMessages().end()) {
        EXPECT_EQ(request.status().message().substr(0, it->second.size()), it->second) << id;
      } else if (expected["error"]["stage"] == "convert") {
        EXPECT_EQ(body, expected["error"]["body"]) << id;
      } else {
        EXPECT_EQ(body["error"]["type"], expected["error"]["type"]) << id;
        EXPECT_EQ(request.status().message().find("Failed to deserialize the JSON body into the target type: "), 0u) << id;
      }
    }
    if (!HasFailure()) ++num_passed;
  }
  RecordProperty("cases", num_passed);
  EXPECT_EQ(num_passed, 197);
}

// Rendered prompts through the tokenizer: the ids of the reference.
TEST(ChatConvert, GoldenTokenIds) {
  const auto tokens = text::PromptTokens::FromTokenizer(GoldenTokenizer());
  ASSERT_TRUE(tokens.ok()) << tokens.status().ToString();
  EXPECT_EQ(tokens->image, "<｜deepseek_image｜>");
  int num_compared = 0;
  for (const Json& test_case : ReadJsonLines("protocols/chat_convert.jsonl")) {
    if (!test_case["expect"].contains("ok")) continue;
    const DebugRenderResult rendered =
        DebugRender(Api::kChat, RequestText(test_case), GoldenTokenizer(), ConvertOptions());
    ASSERT_FALSE(rendered.is_error) << test_case["id"];
    EXPECT_EQ(rendered.json["ids"], test_case["expect"]["ok"]["token_ids"]) << test_case["id"];
    ++num_compared;
  }
  RecordProperty("cases", num_compared);
  EXPECT_GT(num_compared, 100);
}

TEST(ResolveMaxTokens, GoldenCases) {
  int num_chat = 0;
  for (const Json& test_case : ReadJsonLines("protocols/resolve_max_tokens.jsonl")) {
    SCOPED_TRACE(test_case["id"].get<std::string>());
    // The rule is common to the protocols; a request of another one is written as the chat request with the same options.
    Json body = test_case["request"];
    bool clamp = false;
    if (test_case["api"] != "chat") {
      clamp = test_case["api"] == "messages";
      Json chat = Json::object();
      chat["model"] = body["model"];
      chat["messages"] = Json::parse(R"([{"role":"user","content":"Hi"}])");
      if (body.contains("thinking")) chat["thinking"] = body["thinking"];
      if (body.contains("reasoning")) chat["reasoning_effort"] = body["reasoning"]["effort"];
      if (body.contains("max_output_tokens")) chat["max_tokens"] = body["max_output_tokens"];
      if (body.contains("max_tokens")) chat["max_tokens"] = body["max_tokens"];
      body = chat;
    }
    const ConvertOptions options;
    const Result<Json> json = ParseJson(DumpJson(body));
    ASSERT_TRUE(json.ok());
    auto parsed = ParseChatRequest(*json, options);
    ASSERT_TRUE(parsed.ok()) << parsed.status().ToString();
    InferenceOptions inference;
    const bool thinking = parsed->thinking.value_or(!(parsed->effort && parsed->effort->is_none));
    ASSERT_TRUE(ApplySampling(parsed->sampling, thinking, clamp, options, inference).ok());
    const int effort = parsed->effort ? parsed->effort->value : text::kDefaultEffort;
    const Result<int64_t> resolved = ResolveMaxTokens(inference,
                                                      thinking,
                                                      effort,
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
    ++num_chat;
  }
  EXPECT_EQ(num_chat, 14);
}

TEST(ChatConvert, DeliberateDifferences) {
  for (const Json& test_case : ReadJsonLines("protocols/chat_convert.jsonl")) {
    const std::string id = test_case["id"];
    if (id == "chat/file-nested") {
      const auto request = ConvertChatRequest(RequestText(test_case), ConvertOptions());
      ASSERT_TRUE(request.ok()) << request.status().ToString();
      const std::string tail = "<｜User｜>x\n\n<｜deepseek_image｜><｜Assistant｜></think>";
      ASSERT_GE(request->prompt.text.size(), tail.size());
      EXPECT_EQ(request->prompt.text.substr(request->prompt.text.size() - tail.size()), tail);
      EXPECT_EQ(DescribeImages(request->prompt.images),
                Json::parse(R"([{"kind":"data_url","detail":"high","source":"data:image/png;base64,iVBORw0KGgo=","path":".messages[2]"}])"));
    } else if (id == "chat/err-msgs-developer") {
      const auto request = ConvertChatRequest(RequestText(test_case), ConvertOptions());
      ASSERT_TRUE(request.ok());
      EXPECT_EQ(request->prompt.text, "<｜begin▁of▁sentence｜><｜System｜>x<｜Assistant｜></think>");
    }
  }
}

}  // namespace
}  // namespace deepinfer::protocols
