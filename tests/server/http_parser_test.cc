// SPDX-License-Identifier: Apache-2.0
//
// Requests however they are cut, and the statuses of those that are refused.
#include "server/http_parser.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace deepinfer::server {
namespace {

constexpr HttpLimits kLimits{.max_header_bytes = 1024, .max_body_bytes = 64};

// Feeds `data` in pieces of `size`, as a connection does.
HttpParser Parse(const std::string& data, size_t size, const HttpLimits& limits = kLimits) {
  HttpParser parser(limits);
  std::string waiting;
  for (size_t begin = 0; begin < data.size(); begin += size) {
    waiting += data.substr(begin, size);
    waiting.erase(0, parser.Feed(waiting));
  }
  return parser;
}

TEST(HttpParser, AnyCutGivesTheSame) {
  const std::string data =
      "POST /v1/messages?a=1 HTTP/1.1\r\nHost: localhost\r\nX-Api-Key:  k \r\nTransfer-Encoding: chunked\r\n\r\n"
      "3\r\nabc\r\n00000002\r\nde\r\n0\r\n\r\n";
  for (size_t size = 1; size <= data.size(); ++size) {
    HttpParser parser = Parse(data, size);
    ASSERT_EQ(parser.state(), HttpParser::State::kDone) << size << " " << parser.error();
    const HttpRequest request = parser.Take();
    EXPECT_EQ(request.method, "POST");
    EXPECT_EQ(request.path, "/v1/messages");
    EXPECT_EQ(request.query, "a=1");
    EXPECT_EQ(request.body, "abcde");
    ASSERT_NE(request.Find("x-api-key"), nullptr);
    EXPECT_EQ(*request.Find("x-api-key"), "k");
    EXPECT_TRUE(request.keep_alive);
  }
}

TEST(HttpParser, StopsAtTheEndOfARequest) {
  const std::string one = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";
  HttpParser parser(kLimits);
  EXPECT_EQ(parser.Feed(one + one), one.size());
  EXPECT_EQ(parser.state(), HttpParser::State::kDone);
}

TEST(HttpParser, HeadBeforeBody) {
  HttpParser parser(kLimits);
  parser.Feed("POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-Continue\r\nContent-Length: 3\r\n\r\n");
  EXPECT_EQ(parser.state(), HttpParser::State::kBody);
  EXPECT_TRUE(parser.expects_continue());
  parser.Feed("abc");
  EXPECT_EQ(parser.state(), HttpParser::State::kDone);
}

TEST(HttpParser, Refusals) {
  const std::string head = "POST / HTTP/1.1\r\nHost: a\r\n";
  for (const auto& [data, status] : std::vector<std::pair<std::string, int>>{
           {head + "Content-Length: 65\r\n\r\n", 413},
           {head + "Transfer-Encoding: chunked\r\n\r\n41\r\n" + std::string(65, 'x') + "\r\n", 413},
           {head + "X: " + std::string(2000, 'x') + "\r\n\r\n", 431},
           {head + "Content-Length: 1\r\nContent-Length: 2\r\n\r\n", 400},
           {head + "Content-Length: x\r\n\r\n", 400},
           {head + "Transfer-Encoding: chunked\r\n\r\nzz\r\n", 400},
           {head + "bad header\r\n\r\n", 400},
           {"GET / HTTP/2.0\r\n\r\n", 400},
           {std::string("G\0T / HTTP/1.1\r\n\r\n", 18), 400}}) {
    for (const size_t size : {data.size(), size_t{7}}) {
      const HttpParser parser = Parse(data, size);
      ASSERT_EQ(parser.state(), HttpParser::State::kFailed) << data;
      EXPECT_EQ(parser.error_status(), status) << data;
    }
  }
}

// Framing that a proxy in front could read in another way.
TEST(HttpParser, AmbiguousFraming) {
  const auto status = [](const std::string& fields) {
    HttpParser parser(kLimits);
    parser.Feed("POST / HTTP/1.1\r\nHost: a\r\n" + fields + "\r\n0\r\n\r\n");
    return parser.state() == HttpParser::State::kFailed ? parser.error_status() : 200;
  };
  EXPECT_EQ(status("Transfer-Encoding: Chunked\r\n"), 200);
  for (const char* coding : {"xchunked", "identity", "", "\"chunked\"", "chunked, chunked", "gzip, chunked", "chunked;a=b"}) {
    EXPECT_EQ(status(std::string("Transfer-Encoding: ") + coding + "\r\n"), 501) << coding;
  }
  EXPECT_EQ(status("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n"), 400);
  EXPECT_EQ(status("Transfer-Encoding: chunked\r\nContent-Length: 5\r\n"), 400);
  EXPECT_EQ(status("Content-Length: 5\r\nTransfer-Encoding: chunked\r\n"), 400);
  EXPECT_EQ(status("Host: b\r\n"), 400);
}

TEST(HttpParser, LongTrailers) {
  for (const size_t size : {100, 65'535, 65'536, 200'000}) {
    HttpParser parser(kLimits);
    parser.Feed("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n");
    parser.Feed("0\r\nX: " + std::string(size, 'y') + "\r\n\r\n");
    const bool is_failed = parser.state() == HttpParser::State::kFailed;
    EXPECT_TRUE(is_failed ? parser.error_status() == 431 : parser.state() == HttpParser::State::kDone) << size;
  }
}

TEST(HttpParser, TrailersAreNoHeaders) {
  HttpParser parser(kLimits);
  parser.Feed("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nHost: b\r\nAuthorization: x\r\n\r\n");
  ASSERT_EQ(parser.state(), HttpParser::State::kDone);
  EXPECT_EQ(parser.head().Find("authorization"), nullptr);
}

TEST(HttpParser, WholeAddresses) {
  for (const auto& [target, path] : {std::pair{"http://a/b?c", "/b"}, {"HTTPS://a:1", "/"}, {"/http://a/b", "/http://a/b"}, {"ftp://a/b", "ftp://a/b"}}) {
    HttpParser parser(kLimits);
    parser.Feed(std::string("GET ") + target + " HTTP/1.1\r\nHost: a\r\n\r\n");
    ASSERT_EQ(parser.state(), HttpParser::State::kDone) << target;
    EXPECT_EQ(parser.head().path, path);
  }
}

TEST(HttpMessage, Date) { EXPECT_EQ(HttpDate(784111777), "Sun, 06 Nov 1994 08:49:37 GMT"); }

}  // namespace
}  // namespace deepinfer::server
