// SPDX-License-Identifier: Apache-2.0
//
// The cases 01-12 of tests/golden/cases: inputs that broke servers of this model family. The grammars of 12 are compiled by other
// tests.
#include <functional>
#include <string>
#include <vector>

#include "core/utf8.h"
#include "protocols/convert_request.h"
#include "protocols/debug_stream.h"
#include "protocols/golden_cases.h"
#include "protocols/output_stream.h"

namespace deepinfer::protocols {
namespace {

struct Folded {
  std::string reasoning;
  std::string content;
  std::vector<std::pair<std::string, std::string>> calls;
  FinishReason reason = FinishReason::kStop;
  int last_idx = 0;
};

Folded Fold(const ConvertedRequest& request, const std::vector<std::string>& pieces, EngineFinish finish) {
  OutputStream stream(request.parsing, nullptr, 1);
  Folded out;
  const auto fold = [&out](const OutputEvent& event) {
    switch (event.kind) {
      case OutputEvent::Kind::kReasoning: out.reasoning += event.text; break;
      case OutputEvent::Kind::kContent: out.content += event.text; break;
      case OutputEvent::Kind::kToolCallBegin:
        EXPECT_EQ(event.tool_idx, static_cast<int>(out.calls.size()));
        EXPECT_EQ(event.tool_id.size(), std::string("call_00_").size() + 24);
        out.calls.emplace_back(event.text, "");
        break;
      case OutputEvent::Kind::kArguments:
        EXPECT_GE(event.tool_idx, out.last_idx);  // indexes never go back
        out.last_idx = event.tool_idx;
        out.calls[static_cast<size_t>(event.tool_idx)].second += event.text;
        break;
      case OutputEvent::Kind::kToolCallEnd: break;
    }
  };
  for (const std::string& piece : pieces) {
    for (const OutputEvent& event : stream.PushText(piece, 1)) fold(event);
  }
  for (const OutputEvent& event : stream.Finish()) fold(event);
  out.reason = stream.ReasonFor(finish);
  return out;
}

void Expect(const Folded& folded, const Json& expected) {
  EXPECT_EQ(folded.reasoning, expected["reasoning_content"].get<std::string>());
  EXPECT_EQ(folded.content, expected["content"].get<std::string>());
  EXPECT_EQ(folded.content.find("<｜end▁of▁sentence｜>"), std::string::npos);
  ASSERT_EQ(folded.calls.size(), expected["tool_calls"].size());
  for (size_t i = 0; i < folded.calls.size(); ++i) {
    EXPECT_EQ(folded.calls[i].first, expected["tool_calls"][i]["name"].get<std::string>());
    EXPECT_EQ(folded.calls[i].second, expected["tool_calls"][i]["arguments"].get<std::string>());
  }
  const std::string reason = expected["finish_reason"];
  EXPECT_EQ(folded.reason,
            reason == "tool_calls" ? FinishReason::kToolCalls : reason == "length" ? FinishReason::kLength : FinishReason::kStop);
}

ConvertedRequest Convert(const Json& request, const ConvertOptions& options = {}, Api api = Api::kChat) {
  Result<ConvertedRequest> converted = ConvertRequest(api, DumpJson(request), options);
  EXPECT_TRUE(converted.ok()) << converted.status().ToString();
  return converted.ok() ? *converted : ConvertedRequest();
}

// Whole; pieces of 1, 2, 3, 5, 7, 11 code points; every cut into two at a byte.
void ForEachChunking(const std::string& text, const std::function<void(const std::vector<std::string>&)>& fn) {
  fn({text});
  for (const int size : {1, 2, 3, 5, 7, 11}) {
    std::vector<std::string> pieces;
    std::string_view rest = text;
    while (!rest.empty()) {
      size_t n = 0;
      for (int i = 0; i < size && n < rest.size(); ++i) n += DecodeUtf8(rest.substr(n)).num_bytes;
      pieces.emplace_back(rest.substr(0, n));
      rest.remove_prefix(n);
    }
    fn(pieces);
  }
  for (size_t cut = 1; cut < text.size(); ++cut) fn({text.substr(0, cut), text.substr(cut)});
}

void CheckCompletions(const Json& test_case) {
  for (const Json& completion : test_case["completions"]) {
    SCOPED_TRACE(completion["name"].get<std::string>());
    const ConvertedRequest request =
        Convert(completion.contains("request") ? completion["request"] : test_case["request"]);
    const EngineFinish finish = completion["finish"] == "length" ? EngineFinish::kLength : EngineFinish::kStop;
    ForEachChunking(completion["text"], [&](const std::vector<std::string>& pieces) {
      if (::testing::Test::HasFailure()) return;
      Expect(Fold(request, pieces, finish), completion["expect"]);
    });
  }
}

TEST(Cases, StreamTagSplit) { CheckCompletions(ReadCase("01-stream-tag-split.json")); }
TEST(Cases, ToolCallInsideThinking) { CheckCompletions(ReadCase("02-tool-call-inside-thinking.json")); }
TEST(Cases, ThinkingNeverClosed) { CheckCompletions(ReadCase("03-thinking-never-closed.json")); }

TEST(Cases, ReasoningTokensBeforeTheClosingTag) {
  Json body = Json::parse(R"({"model":"DeepSeek-V4.1-Flash","messages":[{"role":"user","content":"x"}]})");
  const ConvertedRequest request = Convert(body);
  for (const bool closes : {true, false}) {
    OutputStream stream(request.parsing, nullptr, 1);
    for (const char* piece : {"I", " think", "."}) stream.PushText(piece, 1);
    if (closes) {
      stream.PushText("</think>", 1);
      stream.PushText("Yes", 1);
    }
    stream.Finish();
    EXPECT_EQ(stream.num_reasoning_tokens(), 3);
    EXPECT_EQ(stream.num_tokens(), closes ? 5 : 3);
  }
}

std::string TailOf(const std::string& prompt) {
  const size_t user = prompt.find("<｜User｜>");
  return user == std::string::npos ? prompt : prompt.substr(user);
}

TEST(Cases, HistoryArgumentsNotObject) {
  const Json test_case = ReadCase("04-history-arguments-not-object.json");
  for (const Json& item : test_case["items"]) {
    Json request = test_case["base_request"];
    for (Json& message : request["messages"]) {
      if (message.contains("tool_calls")) message["tool_calls"][0]["function"]["arguments"] = item["arguments"];
    }
    EXPECT_EQ(TailOf(Convert(request).prompt.text), item["expect_prompt_tail"].get<std::string>()) << item["arguments"];
  }
}

void CheckItems(const Json& test_case) {
  const Api api = ParseApi(test_case["protocol"].get<std::string>()).value();
  for (const Json& item : test_case["items"]) {
    SCOPED_TRACE(item["name"].get<std::string>());
    if (item.contains("expect")) {
      const Result<ConvertedRequest> refused = ConvertRequest(api, DumpJson(item["request"]), ConvertOptions());
      ASSERT_FALSE(refused.ok());
      EXPECT_EQ(HttpStatus(refused.status()), item["expect"]["http_status"].get<int>());
      continue;
    }
    const std::string prompt = Convert(item["request"], {}, api).prompt.text;
    if (item.contains("expect_prompt")) {
      EXPECT_EQ(prompt, item["expect_prompt"].get<std::string>());
    } else {
      EXPECT_EQ(TailOf(prompt), item["expect_prompt_tail"].get<std::string>());
    }
  }
}

TEST(Cases, SystemMessagesAnywhere) { CheckItems(ReadCase("05-system-messages-anywhere.json")); }

TEST(Cases, ReasoningMissingInHistory) {
  const Json test_case = ReadCase("06-reasoning-missing-in-history.json");
  CheckItems(test_case);
  const Json& strict = test_case["strict_policy"];
  ConvertOptions options;
  options.reject_missing_reasoning = true;
  for (const Json& item : test_case["items"]) {
    const Result<ConvertedRequest> request = ConvertRequest(Api::kChat, DumpJson(item["request"]), options);
    if (item["name"] == strict["request"]) {
      ASSERT_FALSE(request.ok());
      EXPECT_EQ(HttpStatus(request.status()), strict["expect"]["http_status"].get<int>());
      EXPECT_NE(request.status().message().find(strict["expect"]["message_mentions"].get<std::string>()), std::string::npos);
    }
    if (item["name"] == "present") {
      EXPECT_TRUE(request.ok()) << request.status().ToString();
    }
  }
}

TEST(Cases, ForcedToolChoice) {
  const Json test_case = ReadCase("07-forced-tool-choice.json");
  for (const Json& row : test_case["rows"]) {
    SCOPED_TRACE(DumpJson(row));
    Json body = test_case["base_request"];
    body["tool_choice"] = row["tool_choice"];
    if (row["thinking"] == "disabled") body["thinking"]["type"] = "disabled";
    const Result<ConvertedRequest> request = ConvertRequest(Api::kChat, DumpJson(body), ConvertOptions());
    const Json& expected = row["expect"];
    if (expected["http_status"] != 200) {
      ASSERT_FALSE(request.ok());
      EXPECT_EQ(HttpStatus(request.status()), expected["http_status"].get<int>());
      continue;
    }
    ASSERT_TRUE(request.ok()) << request.status().ToString();
    EXPECT_EQ(request->prompt.text.find("## Tools") != std::string::npos, expected["tools_in_prompt"].get<bool>());
    EXPECT_TRUE(request->prompt.text.ends_with(expected["prompt_ends_with"].get<std::string>()));
    if (expected["constraint"].is_null()) {
      EXPECT_FALSE(request->inference.constraint.has_value());
    } else {
      ASSERT_TRUE(request->inference.constraint.has_value());
      EXPECT_EQ(ConstraintKindName(request->inference.constraint->kind), expected["constraint"].get<std::string>());
    }
  }
}

// The option: a forced choice while thinking renders as auto and constrains the answer.
TEST(Cases, ForcedToolChoiceWhileThinkingByGrammar) {
  Json body = ReadCase("07-forced-tool-choice.json")["base_request"];
  body["tool_choice"] = "required";
  ConvertOptions options;
  options.tool_choice_thinking_grammar = true;
  const ConvertedRequest request = Convert(body, options);
  EXPECT_TRUE(request.prompt.text.ends_with("<｜Assistant｜><think>"));
  EXPECT_FALSE(request.parsing.starts_in_tool_calls);
  ASSERT_TRUE(request.inference.constraint.has_value());
  EXPECT_EQ(request.inference.constraint->kind, ConstraintKind::kToolCallRequired);
}

TEST(Cases, VolatileSystemHeader) { CheckItems(ReadCase("08-volatile-system-header.json")); }

// The events of `request` for pieces of one token each.
std::vector<Json> Events(const ConvertedRequest& request, const std::string& id, int64_t prompt_tokens, int64_t cached_tokens,
                         const std::vector<std::string>& pieces) {
  ProtocolStream stream(request, nullptr, MakeResponseSetup(request, id, 0), 0);
  std::string out;
  stream.Start(prompt_tokens, cached_tokens, out);
  for (const std::string& piece : pieces) stream.PushText(piece, 1, out);
  stream.Finish(EngineFinish::kStop, 0, out);
  return ReadServerSentEvents(out);
}

TEST(Cases, MessagesStreamUsage) {
  const Json test_case = ReadCase("09-messages-stream-usage.json");
  const ConvertedRequest request = Convert(test_case["request"], {}, Api::kMessages);
  const std::vector<Json> lines = Events(request, test_case["response_id"], test_case["prompt_tokens"], test_case["cached_prompt_tokens"],
                                         test_case["pieces"].get<std::vector<std::string>>());
  const Json& expected = test_case["expect_events"];
  ASSERT_EQ(lines.size(), expected.size());  // nothing follows message_stop
  for (size_t i = 0; i < lines.size(); ++i) {
    EXPECT_EQ(lines[i]["event"], expected[i]["type"]);
    EXPECT_EQ(lines[i]["data"], expected[i]);
  }
}

TEST(Cases, ThinkingSignatureRoundtrip) { CheckItems(ReadCase("10-thinking-signature-roundtrip.json")); }

TEST(Cases, ResponsesReasoningRoundtrip) {
  const Json test_case = ReadCase("11-responses-reasoning-roundtrip.json");
  CheckItems(test_case);
  const Json body = {{"model", "DeepSeek-V4.1-Flash"}, {"input", "q"}, {"stream", true}};
  std::vector<std::string> events;
  for (const Json& line : Events(Convert(body, {}, Api::kResponses), "ID", 1, 0, {"I ", "think", "</think>", "yes", "."})) {
    std::string name = line["event"];
    if (name.ends_with(".delta")) name += " ...";
    if (name == "response.output_item.added") name += " (" + line["data"]["item"]["type"].get<std::string>() + ")";
    if (events.empty() || events.back() != name) events.push_back(name);
  }
  EXPECT_EQ(Json(events), test_case["stream_events_for_thinking"]);
}

TEST(Cases, JsonSchemaOutput) {
  for (const Json& item : ReadCase("12-json-schema-output.json")["items"]) {
    SCOPED_TRACE(item["name"].get<std::string>());
    if (item.contains("expect")) {
      const Result<ConvertedRequest> refused = ConvertRequest(Api::kChat, DumpJson(item["request"]), ConvertOptions());
      ASSERT_FALSE(refused.ok());
      EXPECT_EQ(HttpStatus(refused.status()), item["expect"]["http_status"].get<int>());
      continue;
    }
    const ConvertedRequest request = Convert(item["request"]);
    if (item.contains("expect_prompt")) {
      EXPECT_EQ(request.prompt.text, item["expect_prompt"].get<std::string>());
    }
    if (!item.contains("expect_constraint")) continue;
    ASSERT_TRUE(request.inference.constraint.has_value());
    EXPECT_EQ(ConstraintKindName(request.inference.constraint->kind), item["expect_constraint"]["kind"].get<std::string>());
    EXPECT_EQ(ParseJson(request.inference.constraint->schema).value(), item["expect_constraint"]["schema"]);
  }
}

}  // namespace
}  // namespace deepinfer::protocols
