// SPDX-License-Identifier: Apache-2.0
// Sockets to backend and back in one process, so that the sanitizers see every thread.
#include "server/http_server.h"

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/json.h"
#include "core/metrics.h"
#include "e2e/scripted_backend.h"
#include "server/blocking_client.h"
#include "server/service.h"
#include "temporary_dir.h"
#include "text/prompt_renderer.h"
#include "text/tokenizer.h"

namespace deepinfer::server {
namespace {

using ::deepinfer::testing::BlockingClient;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

const text::Tokenizer& GoldenTokenizer() {
  static const auto tokenizer = text::Tokenizer::Load(std::string(DEEPINFER_SOURCE_DIR) + "/tests/golden/tokenizer").value();
  return *tokenizer;
}

class HttpServerTest : public ::testing::Test {
 protected:
  void Start(std::unique_ptr<ApiKeys> keys = ApiKeys::Create({}, "").value()) {
    keys_ = std::move(keys);
    ServiceOptions options;
    options.convert.tokens = text::PromptTokens::FromTokenizer(GoldenTokenizer()).value();
    options.max_streams_per_key = 1000;
    service_ = std::make_unique<Service>(backend_, *keys_, registry_, log_, std::move(options));
    http_ = std::make_unique<HttpServer>(2, ConnectionLimits{});
    port_ = http_->Listen("127.0.0.1", 0, *service_).value()->port();
    http_->Start();
  }
  void TearDown() override {
    service_->AbortAll();
    service_->StopWorkers();
    http_->Stop();
    // The last outputs of a cancelled request come from the backend's thread.
    backend_.WaitForRunning(0);
  }

  // `script`: of the scripted backend.
  static std::string Chat(std::string_view script, bool is_stream, std::string_view headers = "") {
    const std::string body =
        fmt::format(R"({{"model":"deepseek-flash","messages":[{{"role":"user","content":"hello"}}],"stream":{},"max_tokens":300000}})", is_stream);
    return fmt::format("POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nX-Request-Id: {}\r\n{}Content-Length: {}\r\n\r\n{}",
                       script, headers, body.size(), body);
  }
  static std::string Get(std::string_view path) { return fmt::format("GET {} HTTP/1.1\r\nHost: localhost\r\n\r\n", path); }

  MetricsRegistry registry_;
  RequestLog log_{registry_, nullptr, nullptr};
  std::unique_ptr<ApiKeys> keys_;
  ScriptedBackend backend_{GoldenTokenizer(), int64_t{1} << 20};
  std::unique_ptr<Service> service_;
  std::unique_ptr<HttpServer> http_;
  int port_ = 0;
};

TEST_F(HttpServerTest, StreamEnds) {
  Start();
  BlockingClient client(port_);
  ASSERT_TRUE(client.Send(Chat("short", true)));
  const std::string answer = client.ReadUntil("0\r\n\r\n");
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 200"));
  EXPECT_THAT(answer, HasSubstr("data: [DONE]"));
}

TEST_F(HttpServerTest, PipelinedRequestsAreAnsweredInOrder) {
  Start();
  BlockingClient client(port_);
  ASSERT_TRUE(client.Send(Chat("short", true) + Chat("short", false) + Get("/healthz") + Get("/v1/nothing")));
  EXPECT_THAT(client.ReadUntil("data: [DONE]\n\n"), HasSubstr("text/event-stream"));
  EXPECT_THAT(client.ReadUntil("chat.completion\""), HasSubstr("HTTP/1.1 200"));
  EXPECT_THAT(client.ReadUntil("HTTP/1.1 404"), HasSubstr("HTTP/1.1 200"));
}

TEST_F(HttpServerTest, HalfClosedClientsGetTheirAnswer) {
  Start();
  for (const bool is_stream : {false, true}) {
    BlockingClient client(port_);
    ASSERT_TRUE(client.Send(Chat("short", is_stream)));
    client.HalfClose();
    EXPECT_THAT(client.ReadAll(), HasSubstr("\"finish_reason\":\"stop\""));
  }
}

TEST_F(HttpServerTest, HalfClosedClientsGetAllTheirAnswersAndTheEnd) {
  Start();
  for (const bool is_stream : {false, true}) {
    BlockingClient client(port_);
    ASSERT_TRUE(client.Send(Chat("short", is_stream) + Get("/healthz") + Get("/version")));
    client.HalfClose();
    EXPECT_THAT(client.ReadAll(), HasSubstr("version"));
    EXPECT_TRUE(client.is_at_end());
  }
}

TEST_F(HttpServerTest, RequestsOfClientsThatLeaveEnd) {
  Start();
  {
    BlockingClient running(port_), silent(port_), closing(port_);
    ASSERT_TRUE(running.Send(Chat("endless", true)));
    ASSERT_TRUE(closing.Send(Chat("endless", true)));
    ASSERT_TRUE(silent.Send(Chat("silent", false)));
    running.ReadUntil("again");
    closing.ReadUntil("again");
    running.Reset();
    closing.Close();
    backend_.WaitForRunning(1);
    silent.Reset();
  }
  backend_.WaitForRunning(0);
}

TEST_F(HttpServerTest, SlowReadersGetEverything) {
  Json load{{"id", "load"}, {"finish", "stop"}, {"chunks", Json::array()}};
  for (int i = 0; i < 5000; ++i) load["chunks"].push_back(Json{{"text", "one two three four "}, {"tokens", 4}});
  backend_.AddCase(load);
  Start();
  BlockingClient slow(port_, 4096);
  ASSERT_TRUE(slow.Send(Chat("load", true)));
  // The backend has finished long before the last byte can leave.
  backend_.WaitForRunning(0);
  BlockingClient other(port_);
  ASSERT_TRUE(other.Send(Chat("short", true)));
  EXPECT_THAT(other.ReadUntil("0\r\n\r\n"), HasSubstr("data: [DONE]"));
  EXPECT_THAT(slow.ReadUntil("0\r\n\r\n"), EndsWith("data: [DONE]\n\n\r\n0\r\n\r\n"));
}

TEST_F(HttpServerTest, ManyThreadsManyEnds) {
  Start();
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([this, t] {
      for (int i = 0; i < 12; ++i) {
        BlockingClient client(port_);
        switch ((t + i) % 4) {
          case 0:
            client.Send(Chat("endless", true));
            client.ReadUntil("again");
            client.Reset();
            break;
          case 1:
            client.Send(Chat("endless", true));
            client.Close();
            break;
          case 2:
            client.Send(Chat("short", i % 2 == 0) + Get("/metrics"));
            client.HalfClose();
            EXPECT_THAT(client.ReadAll(), HasSubstr("deepinfer_requests_total"));
            break;
          default:
            client.Send(Chat("short", true));
            EXPECT_THAT(client.ReadUntil("0\r\n\r\n"), HasSubstr("data: [DONE]"));
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  backend_.WaitForRunning(0);
}

TEST_F(HttpServerTest, DrainingRefusesNewRequestsAndKeepsRunningOnes) {
  Start();
  BlockingClient running(port_), idle(port_);
  ASSERT_TRUE(idle.Send(Get("/readyz")));
  EXPECT_THAT(idle.ReadUntil("\r\n\r\n"), StartsWith("HTTP/1.1 200"));
  ASSERT_TRUE(running.Send(Chat("endless", true)));
  running.ReadUntil("again");
  service_->SetDraining(true);
  http_->CloseIdle();
  BlockingClient late(port_);
  ASSERT_TRUE(late.Send(Chat("short", false)));
  EXPECT_THAT(late.ReadUntil("\r\n\r\n"), StartsWith("HTTP/1.1 503"));
  BlockingClient probe(port_);
  ASSERT_TRUE(probe.Send(Get("/readyz")));
  EXPECT_THAT(probe.ReadUntil("\r\n\r\n"), StartsWith("HTTP/1.1 503"));
  EXPECT_THAT(running.ReadUntil("again"), HasSubstr("data: "));
  service_->AbortAll();
  EXPECT_THAT(running.ReadAll(), HasSubstr("error"));
}

TEST_F(HttpServerTest, StopsInTheMiddleOfEverything) {
  Start();
  std::vector<std::unique_ptr<BlockingClient>> clients;
  for (int i = 0; i < 16; ++i) {
    clients.push_back(std::make_unique<BlockingClient>(port_));
    ASSERT_TRUE(clients.back()->Send(i % 4 == 3 ? Chat("endless", true).substr(0, 100) : Chat(i % 2 == 0 ? "endless" : "silent", true)));
  }
  clients[0]->ReadUntil("again");
  http_->Stop();
  EXPECT_EQ(http_->num_connections(), 0);
}

TEST_F(HttpServerTest, KeysAreReadAgainWhileRequestsAreChecked) {
  const testing::TemporaryDir dir;
  const NewApiKey first = MakeApiKey("a"), second = MakeApiKey("b");
  const auto write = [&dir](const std::string& records) { return dir.Write("keys.json", "{\"keys\":[" + records + "]}"); };
  const std::string path = write(first.record);
  Start(ApiKeys::Create({}, path).value());
  const auto status = [this](const std::string& key) {
    BlockingClient client(port_);
    client.Send(Chat("short", false, "Authorization: Bearer " + key + "\r\n"));
    return client.ReadUntil("\r\n").substr(0, 12);
  };
  std::thread asking([&] {
    for (int i = 0; i < 20; ++i) EXPECT_EQ(status(first.key), "HTTP/1.1 200");
  });
  for (int i = 0; i < 20; ++i) {
    write(first.record + (i % 2 == 0 ? "," + second.record : ""));
    EXPECT_TRUE(keys_->Reload(true).ok());
    EXPECT_EQ(status(second.key), i % 2 == 0 ? "HTTP/1.1 200" : "HTTP/1.1 401");
  }
  asking.join();
}

TEST(Listener, APortInUseIsNamed) {
  std::vector<std::unique_ptr<IoThread>> threads;
  threads.push_back(std::make_unique<IoThread>());
  const auto first = Listener::Open("127.0.0.1", 0, threads);
  ASSERT_TRUE(first.ok());
  const auto second = Listener::Open("127.0.0.1", (*first)->port(), threads);
  ASSERT_FALSE(second.ok());
  EXPECT_THAT(second.status().message(), HasSubstr(fmt::format("port {} of 127.0.0.1 is in use", (*first)->port())));
}

TEST(Listener, AnAddressThatIsNotOfThisMachine) {
  std::vector<std::unique_ptr<IoThread>> threads;
  threads.push_back(std::make_unique<IoThread>());
  const auto opened = Listener::Open("192.0.2.1", 0, threads);
  ASSERT_FALSE(opened.ok());
  EXPECT_THAT(opened.status().message(), HasSubstr("192.0.2.1"));
}

}  // namespace
}  // namespace deepinfer::server
