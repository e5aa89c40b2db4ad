// SPDX-License-Identifier: Apache-2.0
//
// Rules of the chat conversion that have no golden case: our extensions and further error messages.
#include "protocols/convert_request.h"

#include <gtest/gtest.h>

#include "protocols/image_source.h"

namespace deepinfer::protocols {
namespace {

Result<ConvertedRequest> Convert(const std::string& fields, const ConvertOptions& options = {}) {
  const std::string body = R"({"model":"deepseek-flash","messages":[{"role":"user","content":"some json"}])" +
                           (fields.empty() ? std::string() : "," + fields) + "}";
  return ConvertRequest(Api::kChat, body, options);
}

Result<ConvertedRequest> ConvertMessages(const std::string& messages, const ConvertOptions& options = {}) {
  return ConvertRequest(Api::kChat, R"({"model":"deepseek-flash","messages":)" + messages + "}", options);
}

std::string ErrorOf(const Result<ConvertedRequest>& request) { return request.ok() ? "" : request.status().message(); }

TEST(ChatRequest, NumericEffort) {
  const struct {
    const char* fields;
    int effort;
  } kCases[] = {
      {R"("reasoning_effort":1)", 1},
      {R"("reasoning_effort":100)", 100},
      {R"("reasoning_effort":"37")", 37},
      {R"("reasoning_effort":0.5)", 50},
      {R"("reasoning_effort":0.001)", 1},
      {R"("chat_template_kwargs":{"reasoning_effort":20})", 20},
      {R"("reasoning_effort":30,"chat_template_kwargs":{"reasoning_effort":20})", 30},
  };
  for (const auto& test_case : kCases) {
    const auto request = Convert(test_case.fields);
    ASSERT_TRUE(request.ok()) << request.status().ToString();
    EXPECT_TRUE(request->conversation.thinking);
    EXPECT_EQ(request->conversation.effort, test_case.effort) << test_case.fields;
    EXPECT_EQ(request->effort_name, "");
  }
  for (const char* value : {"0", "101", "-1", "1.5", "0.0", "1.0", "\"0\"", "\"1000000000000\"", "18446744073709551615"}) {
    EXPECT_EQ(ErrorOf(Convert(std::string("\"reasoning_effort\":") + value)),
              "Invalid reasoning_effort value, the valid range of reasoning_effort is [1, 100]")
        << value;
  }
  EXPECT_NE(ErrorOf(Convert(R"("reasoning_effort":true)")), "");
}

TEST(ChatRequest, ThinkingSwitches) {
  const struct {
    const char* fields;
    bool thinking;
  } kCases[] = {
      {"", true},
      {R"("reasoning_effort":"none")", false},
      {R"("thinking":{"type":"enabled"},"reasoning_effort":"none")", true},
      {R"("thinking":{"type":"disabled"},"reasoning_effort":"max")", false},
      {R"("chat_template_kwargs":{"thinking":false})", false},
      {R"("chat_template_kwargs":{"enable_thinking":false})", false},
      {R"("chat_template_kwargs":{"thinking":false},"thinking":{"type":"adaptive"})", true},
      {R"("chat_template_kwargs":{"thinking":false},"reasoning_effort":"high")", true},
      {R"("chat_template_kwargs":{"reasoning_effort":"none"})", false},
  };
  for (const auto& test_case : kCases) {
    const auto request = Convert(test_case.fields);
    ASSERT_TRUE(request.ok()) << request.status().ToString();
    EXPECT_EQ(request->conversation.thinking, test_case.thinking) << test_case.fields;
  }
}

TEST(ChatRequest, ClientSamplingPolicy) {
  ConvertOptions options;
  options.sampling_policy = SamplingPolicy::kClient;
  const auto request = Convert(
      R"("temperature":0.3,"top_p":0.5,"top_k":40,"min_p":0.1,"repetition_penalty":1.1,"presence_penalty":0.5,"logit_bias":{"7":-100})",
      options);
  ASSERT_TRUE(request.ok()) << request.status().ToString();
  EXPECT_EQ(request->inference.temperature, 0.3);
  EXPECT_EQ(request->inference.top_p, 0.5);
  EXPECT_EQ(request->inference.client.top_k, 40);
  EXPECT_EQ(request->inference.client.logit_bias.size(), 1u);
  EXPECT_EQ(ErrorOf(Convert(R"("min_p":2)", options)), "Invalid min_p value, the valid range of min_p is [0, 1]");
  EXPECT_TRUE(Convert(R"("min_p":2,"top_k":"x","logit_bias":5)").ok());  // ignored under the official policy
}

TEST(ChatRequest, ContinueFinalMessageIsPrefix) {
  const auto request = ConvertRequest(
      Api::kChat, R"({"model":"deepseek-flash","continue_final_message":true,"thinking":{"type":"disabled"},"messages":[{"role":"user","content":"U"},{"role":"assistant","content":"A"}]})",
      ConvertOptions());
  ASSERT_TRUE(request.ok());
  EXPECT_TRUE(request->prompt.text.ends_with("<｜Assistant｜></think>A"));
}

TEST(ChatRequest, ErrorsOfHistory) {
  const std::string call = R"({"role":"assistant","content":null,"tool_calls":[{"id":"c1","type":"function","function":{"name":"f","arguments":"{}"}}]})";
  EXPECT_EQ(ErrorOf(ConvertMessages("[" + call + R"(,{"role":"tool","tool_call_id":"x","content":"r"}])")),
            "An assistant message with 'tool_calls' must be followed by tool messages responding to each 'tool_call_id', The "
            "following tool_call_ids did not have response messages: c1");
  EXPECT_EQ(ErrorOf(ConvertMessages("[" + call + R"(,{"role":"tool","tool_call_id":"c1","content":"r"},{"role":"tool","tool_call_id":"c1","content":"r"}])")),
            "Messages with role 'tool' must be a response to a preceding message with 'tool_calls'");
  EXPECT_EQ(ErrorOf(ConvertMessages("[" + call + R"(,{"role":"tool","tool_call_id":"c1","content":"r"},{"role":"assistant","content":"p","prefix":true}])")),
            "Function call should not be used with prefix");
  EXPECT_EQ(ErrorOf(ConvertMessages(R"([{"role":"assistant","content":"p","prefix":true},{"role":"user","content":"u"}])")),
            "Invalid completion message: prefix set true with message which is not final message or message role is not "
            "assistant");
}

TEST(ChatRequest, FurtherErrors) {
  EXPECT_EQ(ErrorOf(Convert(R"("stop":["a",""])")),
            "Invalid 'stop[1]': empty string. Expected a string with minimum length 1, but got an empty string instead.");
  EXPECT_EQ(ErrorOf(Convert(R"("max_tokens":393217)")),
            "Invalid max_tokens value, the valid range of max_tokens is [1, 393216]");
  EXPECT_EQ(ErrorOf(Convert(R"("presence_penalty":-2.5)")),
            "Invalid presence_penalty value, the valid range of presence_penalty is [-2, 2]");
  EXPECT_EQ(ErrorOf(Convert(R"("tools":[{"type":"function","function":{"name":""}}])")),
            "Invalid 'tools[0].function.name': empty string. Expected a string with minimum length 1, but got an empty string "
            "instead.");
  EXPECT_EQ(ErrorOf(Convert(R"("tools":[{"type":"function","function":{"name":"a","strict":true}},{"type":"function","function":{"name":"b"}}])")),
            "Cannot use strict tool with non-strict tool in the same request");
  EXPECT_EQ(ErrorOf(ConvertRequest(
      Api::kChat,           R"({"model":"deepseek-flash","messages":[{"role":"user","content":[{"type":"text","text":"js"},{"type":"text","text":"on"}]}],"response_format":{"type":"json_object"}})",
                ConvertOptions())),
            "Prompt must contain the word 'json' in some form to use 'response_format' of type 'json_object'.");
  EXPECT_EQ(ErrorOf(ConvertMessages(R"([{"role":"user","content":[{"type":"file","file_id":"f"}]}])")),
            ".messages[0]: file_id is not supported. Pass the image as a base64 data url instead.");
  EXPECT_EQ(ErrorOf(ConvertMessages(R"([{"role":"user","content":[{"type":"file","file_data":"https://x/y.png"}]}])")),
            ".messages[0]: file_data is not a valid base64 data url");
}

TEST(ChatRequest, EveryWrongTypeIsAParseError) {
  for (const char* fields : {R"("stop":5)", R"("stop":[5])", R"("stream":"yes")", R"("tools":{})", R"("tools":[5])",
                             R"("tool_choice":5)", R"("tool_choice":"x")", R"("tool_choice":{"type":"function"})",
                             R"("response_format":"json")", R"("response_format":{"type":"json_schema"})",
                             R"("response_format":{"type":"json_schema","json_schema":{"name":"n"}})", R"("seed":1.5)",
                             R"("max_tokens":"5")", R"("logprobs":1)", R"("thinking":{})", R"("stream_options":true)",
                             R"("temperature":"1")", R"("n":"1")", R"("priority":3)", R"("cache_mode":"x")"}) {
    EXPECT_EQ(ErrorOf(Convert(fields)).find("Failed to deserialize the JSON body into the target type: "), 0u) << fields;
  }
  for (const char* body : {"", "[]", "5", "null", "{}", R"({"model":"m"})", R"({"model":"m","messages":5})",
                           R"({"model":"m","messages":[5]})", R"({"model":"m","messages":[{"role":5}]})"}) {
    EXPECT_EQ(ErrorOf(ConvertRequest(Api::kChat, body, ConvertOptions())).find("Failed to deserialize"), 0u) << body;
  }
}

TEST(ImageSource, DataUrls) {
  const std::string png = "data:image/png;base64,";
  for (const std::string& good : {png + "iVBORw0KGgo=", png + "iVBORw0KGgo", png, std::string("DATA:Image/JPG;charset=x;base64,AAAA"),
                                  png + "AA AA", png + "AA%41A", png + "AAAA#x", png + "AA\nAA  \n", png + "QQ=="}) {
    EXPECT_TRUE(CheckImageUrl(good, "high", "p").ok()) << good;
  }
  for (const std::string& bad : {png + "A", png + "AAAA=", png + "QQ=", png + "A-AA", png + "A=AA", png + "AA!A"}) {
    EXPECT_EQ(CheckImageUrl(bad, "high", "p").status().message(), "p: Invalid base64 data") << bad;
  }
  for (const std::string& bad : {std::string("data:image/png;BASE64,AAAA"), std::string("data:image/png,AAAA"), std::string("x"), std::string()}) {
    EXPECT_EQ(CheckImageUrl(bad, "high", "p").status().message(), "p: Unsupported image_url format") << bad;
  }
}

}  // namespace
}  // namespace deepinfer::protocols
