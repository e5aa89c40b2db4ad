// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cli/commands/bench_serve_client.h"
#include "cli/commands/bench_serve_load.h"
#include "cli/commands/bench_serve_response.h"
#include "core/json.h"

namespace deepinfer::cli {
namespace {

constexpr std::string_view kHead = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n";

TEST(ResponseReader, ReadsChunksInPiecesOfAnySize) {
  const std::string bytes = std::string(kHead) + "0000000c\r\ndata: {}\n\n: \r\n5\r\nping\n\r\n0\r\n\r\n";
  for (size_t size = 1; size <= bytes.size(); ++size) {
    ResponseReader reader;
    for (size_t at = 0; at < bytes.size(); at += size) reader.Feed(std::string_view(bytes).substr(at, size));
    EXPECT_TRUE(reader.is_done()) << size;
    EXPECT_EQ(reader.status(), 200);
    EXPECT_TRUE(reader.is_event_stream());
    EXPECT_TRUE(reader.keep_alive());
    EXPECT_EQ(reader.body(), "data: {}\n\n: ping\n");
  }
}

TEST(ResponseReader, LengthEndAndFaults) {
  ResponseReader length;
  length.Feed("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 429 Too Many Requests\r\ncontent-length: 2\r\nConnection: close\r\n\r\nno");
  EXPECT_TRUE(length.is_done());
  EXPECT_EQ(length.status(), 429);
  EXPECT_FALSE(length.keep_alive());
  EXPECT_EQ(length.body(), "no");

  ResponseReader until_end;
  until_end.Feed("HTTP/1.0 200 OK\r\n\r\nall of it");
  EXPECT_FALSE(until_end.is_done());
  until_end.End();
  EXPECT_TRUE(until_end.is_done());
  EXPECT_FALSE(until_end.keep_alive());

  ResponseReader cut;
  cut.Feed(kHead);
  cut.Feed("5\r\nda");
  cut.End();
  EXPECT_TRUE(cut.has_failed());

  for (const char* bytes : {"nonsense\r\n\r\n", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n", "HTTP/1.1 204 No Content\r\n\r\nmore"}) {
    ResponseReader reader;
    reader.Feed(bytes);
    EXPECT_TRUE(reader.has_failed()) << bytes;
  }
}

TEST(EventCounter, ChatIsCompleteWithReasonAndEnd) {
  EventCounter events(LoadApi::kChat);
  std::string body = ": keep-alive\n\ndata: {\"choices\":[{\"delta\":{\"content\":\"a\"},\"finish_reason\":null}],\"usage\":null}\n\ndata: {\"cho";
  EXPECT_EQ(events.Take(body), 1);
  EXPECT_EQ(body, "data: {\"cho");
  body += "ices\":[{\"finish_reason\":\"stop\"}],\"usage\":null}\n\n";
  EXPECT_EQ(events.Take(body), 1);
  EXPECT_FALSE(events.is_complete());
  body += "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":3,\"prompt_cache_hit_tokens\":4}}\r\n\r\ndata: [DONE]\n\n";
  EXPECT_EQ(events.Take(body), 1);
  EXPECT_TRUE(events.is_complete());
  EXPECT_TRUE(body.empty());
  EXPECT_EQ(events.prompt_tokens(), 9);
  EXPECT_EQ(events.cached_tokens(), 4);
  EXPECT_EQ(events.output_tokens(), 3);
}

TEST(EventCounter, MessagesAndResponses) {
  EventCounter messages(LoadApi::kMessages);
  std::string body =
      "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"usage\":{\"input_tokens\":5,\"cache_read_input_tokens\":7,\"output_tokens\":1}}}\n\n"
      "event: ping\ndata: {\"type\":\"ping\"}\n\n"
      "event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"end_turn\"},\"usage\":{\"output_tokens\":20}}\n\n"
      "event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n";
  EXPECT_EQ(messages.Take(body), 3);
  EXPECT_TRUE(messages.is_complete());
  EXPECT_EQ(messages.prompt_tokens(), 12);
  EXPECT_EQ(messages.output_tokens(), 20);

  EventCounter responses(LoadApi::kResponses);
  body = "event: response.completed\ndata: {\"response\":{\"usage\":{\"input_tokens\":5,\"input_tokens_details\":{\"cached_tokens\":2},\"output_tokens\":6}}}\n\n";
  EXPECT_EQ(responses.Take(body), 1);
  EXPECT_TRUE(responses.is_complete());
  EXPECT_EQ(responses.cached_tokens(), 2);

  EventCounter failed(LoadApi::kMessages);
  body = "event: error\ndata: {\"type\":\"error\"}\n\n";
  EXPECT_EQ(failed.Take(body), 0);
  EXPECT_FALSE(failed.is_complete());
  EXPECT_THAT(failed.error(), ::testing::HasSubstr("event: error"));
}

TEST(ServerUrl, IsTakenApart) {
  const ServerAddress plain = ParseServerUrl("http://localhost:8000/v1").value();
  EXPECT_EQ(plain.host, "localhost");
  EXPECT_EQ(plain.port, 8000);
  EXPECT_EQ(plain.prefix, "");
  const ServerAddress proxied = ParseServerUrl("http://[::1]/llm/").value();
  EXPECT_EQ(proxied.host, "::1");
  EXPECT_EQ(proxied.port, 80);
  EXPECT_EQ(proxied.prefix, "/llm");
  for (const char* url : {"https://host", "host:1", "http://", "http://host:x", "http://host:99999"}) {
    const auto result = ParseServerUrl(url);
    ASSERT_FALSE(result.ok()) << url;
    EXPECT_THAT(result.status().message(), ::testing::HasSubstr("--url")) << url;
  }
}

TEST(LoadRequest, IsTheSameForASeed) {
  ServerLoad load;
  load.model = "m";
  load.input_tokens = 20;
  load.with_tool = true;
  for (const LoadApi api : {LoadApi::kChat, LoadApi::kCompletions, LoadApi::kMessages, LoadApi::kResponses}) {
    load.api = api;
    const std::string request = MakeLoadRequest(load, 3, 8);
    EXPECT_EQ(request, MakeLoadRequest(load, 3, 8));
    EXPECT_NE(request, MakeLoadRequest(load, 4, 8));
    const size_t body = request.find("\r\n\r\n") + 4;
    EXPECT_TRUE(ParseJson(std::string_view(request).substr(body)).ok());
    EXPECT_THAT(request, ::testing::HasSubstr("Content-Length: " + std::to_string(request.size() - body)));
  }
}

}  // namespace
}  // namespace deepinfer::cli
