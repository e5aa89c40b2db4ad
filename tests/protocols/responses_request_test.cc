// SPDX-License-Identifier: Apache-2.0
//
// Responses requests: what the golden cases do not have.
#include "protocols/responses_request.h"

#include <gtest/gtest.h>

#include "protocols/convert_request.h"

namespace deepinfer::protocols {
namespace {

Result<ConvertedRequest> Convert(const std::string& fields, const ConvertOptions& options = {}) {
  return ConvertRequest(Api::kResponses, R"({"model":"deepseek-flash",)" + fields + "}", options);
}

std::string ErrorOf(const Result<ConvertedRequest>& request) {
  EXPECT_FALSE(request.ok());
  return request.status().message();
}

std::string PromptOf(const std::string& fields) {
  const auto request = Convert(R"("reasoning":{"effort":"none"},)" + fields);
  EXPECT_TRUE(request.ok()) << request.status().message();
  return request.ok() ? request->prompt.text : "";
}

TEST(ResponsesRequest, InstructionsAloneAreEnough) {
  EXPECT_EQ(PromptOf(R"("instructions":"I")"), "<｜begin▁of▁sentence｜><｜System｜>I<｜Assistant｜></think>");
  EXPECT_EQ(ErrorOf(Convert(R"("instructions":"")")), "Either input or instructions must be provided");
}

TEST(ResponsesRequest, EffortMayBeANumberAndIsShownAsSent) {
  const auto request = Convert(R"("input":"x","reasoning":{"effort":90})");
  ASSERT_TRUE(request.ok()) << request.status().message();
  EXPECT_EQ(request->conversation.effort, 90);
  EXPECT_EQ(request->responses_echo->reasoning_effort, "90");
}

TEST(ResponsesRequest, CustomCallsOfTheHistory) {
  EXPECT_NE(PromptOf(R"("input":[{"role":"user","content":"U"},{"type":"custom_tool_call","call_id":"c","name":"apply_patch",)"
                     R"("input":"a\"b"},{"type":"custom_tool_call_output","call_id":"c","output":"done"}])")
                .find("<｜DSML｜ invoke name=\"apply_patch\">\n<｜DSML｜ parameter name=\"input\" string=\"true\">a\"b</｜DSML｜ parameter>\n"
                      "</｜DSML｜ invoke>\n</｜DSML｜ calls><｜end▁of▁sentence｜><｜User｜><tool_result>done</tool_result>"),
            std::string::npos);
}

// An assistant's items are one message, in whatever order its answer and its calls come.
TEST(ResponsesRequest, AnswerAfterCallsJoinsThem) {
  EXPECT_NE(PromptOf(R"("input":[{"role":"user","content":"U"},{"type":"function_call","call_id":"c","name":"f","arguments":"{}"},)"
                     R"({"role":"assistant","content":"A"},{"type":"function_call_output","call_id":"c","output":"r"}])")
                .find("</think>A\n\n<｜DSML｜ calls>"),
            std::string::npos);
  EXPECT_NE(PromptOf(R"("input":[{"role":"assistant","content":"A"},{"role":"assistant","content":"B"}])")
                .find("A<｜end▁of▁sentence｜><｜Assistant｜></think>B<｜end▁of▁sentence｜>"),
            std::string::npos);
}

TEST(ResponsesRequest, ReasoningIntoAnOpenMessageWithoutText) {
  EXPECT_TRUE(Convert(R"("input":[{"role":"assistant","content":[]},{"type":"reasoning","content":[{"type":"reasoning_text","text":"r"}]}])").ok());
}

TEST(ResponsesRequest, UnknownItemsAndToolsAreDropped) {
  EXPECT_EQ(PromptOf(R"("input":[{"type":"compaction","x":1},{"role":"user","content":"U"}],"tools":[{"type":"new_tool"}])"),
            "<｜begin▁of▁sentence｜><｜User｜>U<｜Assistant｜></think>");
  EXPECT_EQ(Convert(R"("input":"x","tools":[{"type":"new_tool"}],"tool_choice":{"type":"web_search"})")->responses_echo->tool_choice, "\"auto\"");
}

TEST(ResponsesRequest, Tools) {
  const auto tools = [](const std::string& list) { return Convert(R"("input":"x","tools":[)" + list + "]"); };
  EXPECT_EQ(ErrorOf(tools(R"({"type":"function","name":"f"},{"type":"function","name":"f"})")), "Tool names must be unique.");
  EXPECT_EQ(ErrorOf(tools(R"({"type":"namespace","name":"n","tools":[{"type":"function","name":"f"},{"type":"function","name":"f"}]})")),
            "Tool names within a namespace must be unique.");
  EXPECT_EQ(ErrorOf(tools(R"({"type":"namespace","name":"n","tools":[{"type":"function","name":"a b"}]})")),
            "Invalid 'tools[0].tools[0].name': string does not match pattern. Expected a string that matches the pattern "
            "'^[a-zA-Z0-9_-]+$'.");
  EXPECT_TRUE(tools(R"({"type":"namespace","name":"n","tools":[{"type":"function","name":"f"}]},{"type":"function","name":"f"})").ok());
  const auto chosen = Convert(R"("input":"x","reasoning":{"effort":"none"},"tools":[{"type":"namespace","name":"n","tools":[)"
                              R"({"type":"function","name":"f"},{"type":"function","name":"g"}]}],)"
                              R"("tool_choice":{"type":"function","name":"g","namespace":"n"})");
  ASSERT_TRUE(chosen.ok()) << chosen.status().message();
  ASSERT_EQ(chosen->conversation.tools.size(), 1u);
  EXPECT_EQ(chosen->conversation.tools[0].name, "n::g");
}

TEST(ResponsesRequest, FormatOfTextIsNoFormat) {
  EXPECT_TRUE(Convert(R"("input":"x","text":{"format":{"type":"text"}},"tools":[{"type":"function","name":"f","strict":true}])").ok());
  EXPECT_EQ(ErrorOf(Convert(R"("input":"x","text":{"format":{"type":"json_object"}})")),
            "Response input messages must contain the word 'json' in some form to use 'text.format' of type 'json_object'.");
}

TEST(ResponsesRequest, MissingReasoningMayBeRefused) {
  ConvertOptions options;
  options.reject_missing_reasoning = true;
  const std::string call = R"({"type":"function_call","call_id":"c","name":"f","arguments":"{}"},)"
                           R"({"type":"function_call_output","call_id":"c","output":"r"}],"tools":[{"type":"function","name":"f"}])";
  EXPECT_FALSE(Convert(R"("input":[)" + call, options).ok());
  EXPECT_TRUE(Convert(R"("input":[{"type":"reasoning","content":[{"type":"reasoning_text","text":"r"}]},)" + call, options).ok());
}

TEST(ResponsesRequest, WrongTypesAreReportedFirst) {
  for (const char* fields : {R"("input":7)", R"("input":[7])", R"("input":[{"type":7}])", R"("input":[],"temperature":"x")",
                             R"("input":[{"type":"function_call","call_id":"c"}])", R"("input":[{"type":"function_call_output","call_id":"c"}])",
                             R"("input":"x","tools":[{"name":"f"}])", R"("input":"x","tools":[{"type":"namespace","name":"n"}])",
                             R"("input":"x","text":{"format":{"type":"json_schema","schema":{}}})", R"("input":"x","reasoning":7)"}) {
    EXPECT_EQ(ErrorOf(Convert(fields)).find("Failed to deserialize the JSON body into the target type: "), 0u) << fields;
  }
}

}  // namespace
}  // namespace deepinfer::protocols
