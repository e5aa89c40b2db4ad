// SPDX-License-Identifier: Apache-2.0
//
// Messages requests: what the golden cases do not have.
#include "protocols/messages_request.h"

#include <gtest/gtest.h>

#include "protocols/convert_request.h"

namespace deepinfer::protocols {
namespace {

constexpr char kTools[] = R"("tools":[{"name":"w","input_schema":{"type":"object"}}])";

Result<ConvertedRequest> Convert(const std::string& messages, const std::string& fields = "", const ConvertOptions& options = {}) {
  const std::string body =
      R"({"model":"claude-sonnet","max_tokens":8,"messages":)" + messages + (fields.empty() ? "" : "," + fields) + "}";
  return ConvertRequest(Api::kMessages, body, options);
}

std::string ErrorOf(const Result<ConvertedRequest>& request) {
  EXPECT_FALSE(request.ok());
  return request.status().message();
}

constexpr char kHi[] = R"([{"role":"user","content":"Hi"}])";
constexpr char kOff[] = R"("thinking":{"type":"disabled"})";

TEST(MessagesRequest, EffortMayBeANumber) {
  const auto request = Convert(kHi, R"("output_config":{"effort":33})");
  ASSERT_TRUE(request.ok()) << request.status().message();
  EXPECT_EQ(request->conversation.effort, 33);
  EXPECT_EQ(ErrorOf(Convert(kHi, R"("output_config":{"effort":101})")),
            "Invalid reasoning_effort value, the valid range of reasoning_effort is [1, 100]");
}

TEST(MessagesRequest, LargeMaxTokensIsCut) {
  const auto request = ConvertRequest(
      Api::kMessages, R"({"model":"claude","max_tokens":99999999999,"messages":[{"role":"user","content":"Hi"}]})", {});
  ASSERT_TRUE(request.ok()) << request.status().message();
  EXPECT_EQ(request->inference.max_tokens, 393216);
}

TEST(MessagesRequest, OutputFormatInBothPlaces) {
  for (const char* fields : {R"("output_format":{"type":"json_schema","schema":{"type":"object"}})",
                             R"("output_config":{"format":{"type":"json_schema","schema":{"type":"object"}}})"}) {
    const auto request = Convert(kHi, fields);
    ASSERT_TRUE(request.ok()) << request.status().message();
    ASSERT_TRUE(request->inference.constraint.has_value());
    EXPECT_EQ(request->inference.constraint->kind, ConstraintKind::kJson);
    EXPECT_EQ(request->inference.constraint->schema, R"({"type":"object"})");
    EXPECT_NE(request->prompt.text.find("## Response Format:"), std::string::npos);
  }
  EXPECT_EQ(ErrorOf(Convert(kHi, R"("output_format":{"type":"xml"})")).find("Failed to deserialize"), 0u);
}

TEST(MessagesRequest, PrefillIsContinuedOnlyWhenAsked) {
  const char* messages = R"([{"role":"user","content":"U"},{"role":"assistant","content":"A"}])";
  EXPECT_TRUE(Convert(messages, kOff)->prompt.text.ends_with("</think>A<｜end▁of▁sentence｜><｜Assistant｜></think>"));
  ConvertOptions options;
  options.messages_prefill = true;
  EXPECT_TRUE(Convert(messages, kOff, options)->prompt.text.ends_with("<｜Assistant｜></think>A"));
  const auto thinking = Convert(messages, "", options);
  EXPECT_TRUE(thinking->prompt.text.ends_with("<｜Assistant｜><think></think>A"));
  EXPECT_EQ(thinking->parsing.initial_stage, text::InitialStage::kContentContinuation);
}

TEST(MessagesRequest, AnyIsRequiredByGrammarWhileThinkingIfSo) {
  ConvertOptions options;
  options.tool_choice_thinking_grammar = true;
  const auto request = Convert(kHi, std::string(kTools) + R"(,"tool_choice":{"type":"any","disable_parallel_tool_use":true})", options);
  ASSERT_TRUE(request.ok()) << request.status().message();
  EXPECT_EQ(request->inference.constraint->kind, ConstraintKind::kToolCallRequired);
  EXPECT_FALSE(request->inference.parallel_tool_calls);
  EXPECT_TRUE(request->prompt.text.ends_with("<think>"));
}

TEST(MessagesRequest, MissingThinkingMayBeRefused) {
  ConvertOptions options;
  options.reject_missing_reasoning = true;
  const char* messages = R"([{"role":"user","content":"U"},{"role":"assistant","content":"A"},{"role":"user","content":"V"}])";
  EXPECT_EQ(ErrorOf(Convert(messages, kTools, options)),
            "The `content[].thinking` in the thinking mode must be passed back to the API.");
  EXPECT_TRUE(Convert(messages, "", options).ok());
}

// Unknown to this protocol: what other servers' clients send there is not checked.
TEST(MessagesRequest, FieldsOfOtherProtocolsAreIgnored) {
  EXPECT_TRUE(Convert(kHi, R"("frequency_penalty":"x","seed":"y","top_k":"z","metadata":7,"logprobs":"x")").ok());
  ConvertOptions options;
  options.sampling_policy = SamplingPolicy::kClient;
  const auto request = Convert(kHi, R"("top_k":5,"temperature":0.25)", options);
  ASSERT_TRUE(request.ok());
  EXPECT_EQ(request->inference.client.top_k, 5);
  EXPECT_EQ(request->inference.temperature, 0.25);
}

TEST(MessagesRequest, BlocksShownAsText) {
  const auto request = Convert(
      R"([{"role":"user","content":[{"type":"search_result","source":"s","title":"t","content":[{"type":"text","text":"a"},)"
      R"({"type":"text","text":"b"}]},{"type":"document","source":{"type":"url","url":"https://x"}}]}])",
      kOff);
  ASSERT_TRUE(request.ok()) << request.status().message();
  EXPECT_NE(request->prompt.text.find("<｜User｜>a\n\nb\n\n[Unsupported document type: url]<｜Assistant｜>"), std::string::npos);
}

TEST(MessagesRequest, BlocksOnlyWhereTheyBelong) {
  const auto block_in = [](const char* role, const char* block) {
    return std::string(R"([{"role":")") + role + R"(","content":[)" + block + "]}]";
  };
  EXPECT_EQ(ErrorOf(Convert(block_in("user", R"({"type":"tool_use","id":"a","name":"w","input":{}})"))),
            "messages.0: `tool_use` blocks can only be in `assistant` messages");
  EXPECT_EQ(ErrorOf(Convert(block_in("assistant", R"({"type":"tool_result","tool_use_id":"a"})"))),
            "messages.0: `tool_result` blocks can only be in `user` messages");
  EXPECT_EQ(ErrorOf(Convert(block_in("user", R"({"type":"tool_addition","tool":{"type":"tool_reference","name":"w"}})"))),
            "messages.0: `tool_addition` blocks can only be in `system` messages");
  EXPECT_EQ(ErrorOf(Convert(block_in("assistant", R"({"type":"image","source":{"type":"url","url":"https://x"}})"))),
            "Image in assistant message is not supported");
  EXPECT_EQ(ErrorOf(Convert(block_in("user", R"({"type":"web_search_tool_result","tool_use_id":"s","content":[]})"))),
            "Unsupported content block: server tools are not supported");
  EXPECT_EQ(ErrorOf(Convert(block_in("user", R"({"type":"container_upload"})"))).find("Failed to deserialize"), 0u);
}

TEST(MessagesRequest, RoundsOfCalls) {
  const auto history = [](const char* calls, const char* next) {
    return std::string(R"([{"role":"user","content":"U"},{"role":"assistant","content":[)") + calls + "]}," + next + "]";
  };
  constexpr char kCall[] = R"({"type":"tool_use","id":"t1","name":"w","input":{}})";
  EXPECT_EQ(ErrorOf(Convert(history((std::string(kCall) + "," + kCall).c_str(), R"({"role":"user","content":"x"})"))),
            "messages.1.content.1: `tool_use` ids must be unique");
  EXPECT_EQ(ErrorOf(Convert(history(kCall, R"({"role":"user","content":[{"type":"tool_result","tool_use_id":"zz"}]})"))),
            "unexpected `messages.2.content.0: tool_use_id` found in `tool_result` blocks: zz. Each `tool_result` block must have a "
            "corresponding `tool_use` block in the previous message.");
  EXPECT_EQ(ErrorOf(Convert(history(kCall, R"({"role":"system","content":"x"})"))),
            "messages.2: `tool_use` ids were found without `tool_result` blocks immediately after: t1. Each `tool_use` block must have "
            "a corresponding `tool_result` block in the next message.");
  EXPECT_EQ(ErrorOf(Convert(R"([{"role":"user","content":[{"type":"tool_result","tool_use_id":"t1"}]}])")),
            "unexpected `messages.0.content.0: tool_use_id` found in `tool_result` blocks: t1. Each `tool_result` block must have a "
            "corresponding `tool_use` block in the previous message.");
}

TEST(MessagesRequest, WrongTypesAreReportedFirst) {
  for (const char* body :
       {R"({"model":"claude","messages":[]  ,"temperature":"x"})", R"({"model":"claude","messages":[{"role":"user","content":7}]})",
        R"({"model":"claude","messages":[{"role":"user","content":[7]}]})", R"({"model":"claude","messages":{}})",
        R"({"model":7,"messages":[]})", "[]", "7", "{", R"({"model":"claude","messages":[],"tools":[{"name":7}]})",
        R"({"model":"claude","messages":[{"role":"user","content":[{"type":"image","source":7}]}]})"}) {
    EXPECT_EQ(ErrorOf(ConvertRequest(Api::kMessages, body, {})).find("Failed to deserialize the JSON body into the target type: "), 0u)
        << body;
  }
}

// Anthropic's library then sends the whole conversation.
TEST(MessagesRequest, NoConversationIsStored) {
  for (const char* thread : {R"({"type":"create"})", R"({"type":"continue","previous_message_id":"m"})", "true"}) {
    const auto request = Convert(kHi, std::string(R"("thread":)") + thread);
    EXPECT_EQ(ErrorOf(request), "thread is not supported: no conversation is stored here; send all of it in messages");
    EXPECT_EQ(ErrorBody(Api::kMessages, request.status())["error"]["details"]["error_code"], "thread_unsupported_request");
  }
  EXPECT_TRUE(Convert(kHi, R"("thread":null)").ok());
  EXPECT_TRUE(Convert(kHi, R"("thread":false)").ok());
}

// A request with very many calls is read in linear time.
TEST(MessagesRequest, ManyCalls) {
  std::string calls, results;
  for (int i = 0; i < 20000; ++i) {
    const std::string id = std::to_string(i);
    if (i > 0) calls += ',', results += ',';
    calls += R"({"type":"tool_use","id":")" + id + R"(","name":"w","input":{}})";
    results += R"({"type":"tool_result","tool_use_id":")" + id + R"(","content":[{"type":"tool_reference","tool_name":"w"}]})";
  }
  const auto request =
      Convert(R"([{"role":"assistant","content":[)" + calls + R"(]},{"role":"user","content":[)" + results + "]}]", kTools);
  EXPECT_TRUE(request.ok()) << request.status().message();
}

}  // namespace
}  // namespace deepinfer::protocols
