// SPDX-License-Identifier: Apache-2.0
#include "protocols/server_bodies.h"

#include <gtest/gtest.h>

#include "protocols/api.h"
#include "protocols/engine_finish.h"
#include "protocols/messages_request.h"
#include "protocols/protocol_stream.h"

namespace deepinfer::protocols {
namespace {

Json Parsed(const std::string& text) {
  const Result<Json> json = ParseJson(text);
  EXPECT_TRUE(json.ok()) << text;
  return json.ok() ? *json : Json();
}

TEST(ServerBodies, Models) {
  const ServedModel models[] = {{"a\"b", 0, 4096}, {"c", 1764484817, 8}};
  const Json list = Parsed(ModelListBody(models));
  EXPECT_EQ(list["data"][1], Json::parse(R"({"id":"c","object":"model","created":1764484817,"owned_by":"deepseek","type":"model",
    "display_name":"c","created_at":"2025-11-30T06:40:17Z","lifecycle":"active","max_model_len":8})"));
  EXPECT_EQ(list["data"][0], Parsed(ModelBody(models[0])));
  EXPECT_EQ(list["first_id"], "a\"b");
  EXPECT_EQ(list["last_id"], "c");
  EXPECT_EQ(list["has_more"], false);
  EXPECT_TRUE(Parsed(ModelListBody({}))["first_id"].is_null());
}

TEST(ServerBodies, Tokenizer) {
  const auto request = ParseTokenizeRequest(Parsed(R"({"text":"x","parse_special":false})"));
  ASSERT_TRUE(request.ok());
  EXPECT_EQ(request->text, "x");
  EXPECT_FALSE(request->parse_special);
  const int32_t ids[] = {1, 23};
  EXPECT_EQ(TokenizeBody(ids), R"({"ids":[1,23]})");
  EXPECT_EQ(ParseDetokenizeRequest(Parsed(R"({"ids":[1,23]})"), 24).value(), (std::vector<int32_t>{1, 23}));
  EXPECT_EQ(DetokenizeBody("a\n"), R"({"text":"a\n"})");
  for (const char* body : {R"({"ids":[24]})", R"({"ids":[-1]})", R"({"ids":[1.5]})", R"({"ids":1})", "{}", "[]"}) {
    const auto refused = ParseDetokenizeRequest(Parsed(body), 24);
    ASSERT_FALSE(refused.ok()) << body;
    EXPECT_EQ(HttpStatus(refused.status()), 400);
  }
  for (const char* body : {"{}", R"({"text":1})", "[]"}) EXPECT_FALSE(ParseTokenizeRequest(Parsed(body)).ok()) << body;
}

TEST(ServerBodies, CountTokens) { EXPECT_EQ(CountTokensBody(12), R"({"input_tokens":12})"); }

// The table of protocols.md 3.7.
TEST(ErrorBody, TypesByStatus) {
  struct Row {
    int status;
    const char* type;
    const char* messages_type;
  };
  constexpr Row kRows[] = {{400, "invalid_request_error", "invalid_request_error"},
                           {401, "authentication_error", "authentication_error"},
                           {402, "insufficient_quota", "insufficient_quota"},
                           {403, "permission_error", "permission_error"},
                           {404, "invalid_request_error", "not_found_error"},
                           {405, "invalid_request_error", "not_found_error"},
                           {408, "timeout", "timeout"},
                           {413, "request_too_large", "request_too_large"},
                           {429, "rate_limit_error", "rate_limit_error"},
                           {431, "invalid_request_error", "invalid_request_error"},
                           {500, "internal_error", "api_error"},
                           {503, "overloaded_error", "overloaded_error"},
                           {504, "timeout", "timeout"}};
  for (const Row& row : kRows) {
    for (const Api api : {Api::kChat, Api::kResponses, Api::kMessages}) {
      const char* type = api == Api::kMessages ? row.messages_type : row.type;
      const Json body = ErrorBody(api, row.status, "why", "req_1");
      EXPECT_EQ(body["error"], (Json{{"message", "why"}, {"type", type}, {"param", nullptr}, {"code", type}})) << row.status;
      EXPECT_EQ(body.size(), api == Api::kMessages ? 3u : 1u);
    }
  }
}

TEST(EngineFinishOf, EveryReason) {
  using Reason = deepinfer::FinishReason;
  EXPECT_EQ(EngineFinishOf(Reason::kStop).value(), EngineFinish::kStop);
  EXPECT_EQ(EngineFinishOf(Reason::kLength).value(), EngineFinish::kLength);
  for (const auto& [reason, status] : {std::pair(Reason::kPromptLengthExceeded, 400), std::pair(Reason::kInvalidToken, 400),
                                       std::pair(Reason::kTimeout, 504), std::pair(Reason::kAbort, 503),
                                       std::pair(Reason::kInsufficientResource, 503), std::pair(Reason::kInvalidLogits, 500),
                                       std::pair(Reason::kInternalError, 500)}) {
    EXPECT_EQ(HttpStatus(EngineFinishOf(reason).status()), status);
  }
}

TEST(MakeResponseId, NamesTheProtocol) {
  EXPECT_EQ(MakeResponseId(Api::kChat, 1, 0xab), "chatcmpl-000000000000000100000000000000ab");
  EXPECT_EQ(MakeResponseId(Api::kResponses, 0, 0).substr(0, 5), "resp_");
  EXPECT_EQ(MakeResponseId(Api::kMessages, 0, 0).substr(0, 4), "msg_");
}

}  // namespace
}  // namespace deepinfer::protocols
