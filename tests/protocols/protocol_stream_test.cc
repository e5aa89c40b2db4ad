// SPDX-License-Identifier: Apache-2.0
//
// ProtocolStream: ends, errors, keep-alive, and no allocation for a token.
#include "protocols/protocol_stream.h"

#include <gtest/gtest.h>

#include "count_allocations.h"
#include "protocols/convert_request.h"
#include "protocols/custom_tool_input.h"
#include "protocols/debug_stream.h"
#include "protocols/golden_tokenizer.h"

namespace deepinfer::protocols {
namespace {

constexpr Api kApis[] = {Api::kChat, Api::kResponses, Api::kMessages};

std::string BodyOf(Api api, const std::string& fields = "") {
  const std::string more = fields.empty() ? "" : "," + fields;
  if (api == Api::kResponses) {
    return R"({"model":"deepseek-flash","input":"Hi","stream":true,"tools":[{"type":"function","name":"w"}])" + more + "}";
  }
  const std::string tool = api == Api::kChat ? R"({"type":"function","function":{"name":"w"}})" : R"({"name":"w","input_schema":{"type":"object"}})";
  return R"({"model":"deepseek-flash","max_tokens":9,"messages":[{"role":"user","content":"Hi"}],"stream":true,"tools":[)" + tool + "]" + more + "}";
}

ConvertedRequest Request(Api api, const std::string& fields = "", const ConvertOptions& options = {}) {
  Result<ConvertedRequest> request = ConvertRequest(api, BodyOf(api, fields), options);
  EXPECT_TRUE(request.ok()) << request.status().message();
  return request.ok() ? *request : ConvertedRequest();
}

ProtocolStream MakeStream(const ConvertedRequest& request, bool is_stream = true) {
  ResponseSetup setup = MakeResponseSetup(request, "ID", 0);
  setup.is_stream = is_stream;
  return ProtocolStream(request, &GoldenTokenizer(), setup, 1);
}

TEST(ProtocolStream, StopSequenceOfMessages) {
  const ConvertedRequest request = Request(Api::kMessages, R"("stop_sequences":["x","END"],"thinking":{"type":"disabled"})");
  ProtocolStream stream = MakeStream(request);
  std::string out;
  stream.Start(3, 1, out);
  stream.PushText("abEN", 1, out);
  EXPECT_FALSE(stream.is_stopped());
  stream.PushText("D and more", 1, out);
  EXPECT_TRUE(stream.is_stopped());
  stream.PushText("ignored", 0, out);
  stream.Finish(EngineFinish::kLength, 0, out);
  const std::vector<Json> lines = ReadServerSentEvents(out);
  const Json& end = lines[lines.size() - 2]["data"];
  EXPECT_EQ(end["delta"], Json::parse(R"({"stop_reason":"stop_sequence","stop_sequence":"END"})"));
  EXPECT_EQ(end["usage"]["output_tokens"], 2);
}

TEST(ProtocolStream, ErrorsInsideAStream) {
  const Status status = Unavailable("try again");
  std::string out;
  MakeStream(Request(Api::kChat)).Fail(status, out);
  EXPECT_EQ(out,
            "data: {\"error\":{\"message\":\"try again\",\"type\":\"overloaded_error\",\"param\":null,\"code\":\"overloaded_error\"}}\n\n");
  out.clear();
  MakeStream(Request(Api::kMessages)).Fail(status, out);
  EXPECT_EQ(out, "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\",\"message\":\"try again\"}}\n\n");
  out.clear();
  ProtocolStream responses = MakeStream(Request(Api::kResponses));
  responses.Start(3, 1, out);
  responses.PushText("think", 1, out);
  responses.Fail(status, out);
  const std::vector<Json> lines = ReadServerSentEvents(out);
  EXPECT_EQ(lines.back()["event"], "response.failed");
  const Json& response = lines.back()["data"]["response"];
  EXPECT_EQ(response["status"], "failed");
  EXPECT_EQ(response["error"], Json::parse(R"({"code":"overloaded_error","message":"try again"})"));
  EXPECT_EQ(response["output"][0]["status"], "incomplete");
  EXPECT_EQ(lines.back()["data"]["sequence_number"], lines.size() - 1);
}

// Status 200 is out already: the error object is the body.
TEST(ProtocolStream, ErrorsInsteadOfABody) {
  for (const Api api : kApis) {
    ProtocolStream stream = MakeStream(Request(api), /*is_stream=*/false);
    std::string out;
    stream.KeepAlive(out);
    EXPECT_EQ(out, "\n");
    stream.Start(3, 1, out);
    stream.PushText("x", 1, out);
    EXPECT_EQ(out, "\n");
    stream.Fail(Internal("why"), out);
    EXPECT_EQ(ParseJson(out).value()["error"]["message"], "why");
  }
}

TEST(ProtocolStream, KeepAlive) {
  for (const Api api : kApis) {
    ProtocolStream stream = MakeStream(Request(api));
    std::string out;
    stream.KeepAlive(out);
    EXPECT_EQ(out, ": keep-alive\n\n");
    out.clear();
    stream.Start(3, 1, out);
    out.clear();
    stream.KeepAlive(out);
    EXPECT_EQ(out, api == Api::kMessages ? "event: ping\ndata: {\"type\":\"ping\"}\n\n" : ": keep-alive\n\n");
  }
}

TEST(ProtocolStream, UsageChunk) {
  ConvertOptions options;
  options.openai_usage_chunk = true;
  for (const bool include : {true, false}) {
    const ConvertedRequest request = Request(Api::kChat, include ? R"("stream_options":{"include_usage":true})" : "", options);
    ProtocolStream stream = MakeStream(request);
    std::string out;
    stream.Start(3, 1, out);
    stream.Finish(EngineFinish::kStop, 0, out);
    const std::vector<Json> lines = ReadServerSentEvents(out);
    ASSERT_EQ(lines.size(), include ? 4u : 3u);
    if (!include) continue;
    EXPECT_TRUE(lines[2]["data"]["choices"].empty());
    EXPECT_EQ(lines[2]["data"]["usage"], lines[1]["data"]["usage"]);
  }
}

TEST(CustomToolInput, FormsOfArguments) {
  const auto run = [](std::string_view arguments, size_t piece) {
    CustomToolInput input;
    std::string out;
    for (size_t i = 0; i < arguments.size(); i += piece) input.Push(arguments.substr(i, piece), out);
    return out;
  };
  for (const size_t piece : {1, 2, 3, 100}) {
    EXPECT_EQ(run(R"({"input": "a\n\"\\\u0007é", "b": 1})", piece), "a\n\"\\\aé");
    EXPECT_EQ(run(R"({"input": 5})", piece), R"({"input": 5})");
    EXPECT_EQ(run(R"({"inp": "x"})", piece), R"({"inp": "x"})");
    EXPECT_EQ(run("{}", piece), "{}");
    EXPECT_EQ(run(R"({"in)", piece), "");
  }
}

// Once the buffers have grown, a token costs no allocation, whatever part of the answer it is in.
TEST(ProtocolStream, SteadyStateAllocatesNothing) {
  std::string text;
  for (int i = 0; i < 300; ++i) text += " Consider the lilies of the field; \"how\" they grow\n";
  const std::vector<int32_t> words = GoldenTokenizer().EncodeFull(text);
  const std::vector<int32_t> end_thinking = GoldenTokenizer().EncodeFull("</think>\n\n");
  const std::vector<int32_t> call =
      GoldenTokenizer().EncodeFull("\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"w\">\n<｜DSML｜ parameter name=\"a\" string=\"true\">");
  for (const Api api : kApis) {
    ProtocolStream stream = MakeStream(Request(api));
    std::string out;
    out.reserve(1 << 16);
    stream.Start(3, 1, out);
    const auto push = [&](const std::vector<int32_t>& ids) {
      int64_t allocations = 0;
      for (size_t i = 0; i < ids.size(); ++i) {
        out.clear();
        const int64_t before = num_allocations.load();
        stream.PushTokens(std::span(&ids[i], 1), {}, out);
        if (i >= 100) allocations += num_allocations.load() - before;
      }
      return allocations;
    };
    // Responses repeats the text at its end: its copy grows by doubling.
    const int64_t allowed = api == Api::kResponses ? 12 : 0;
    EXPECT_LE(push(words), allowed) << ApiName(api) << ": reasoning";
    push(end_thinking);
    EXPECT_LE(push(words), allowed) << ApiName(api) << ": content";
    push(call);
    EXPECT_LE(push(words), allowed) << ApiName(api) << ": arguments";
  }
}

}  // namespace
}  // namespace deepinfer::protocols
