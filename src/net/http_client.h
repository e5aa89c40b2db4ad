// SPDX-License-Identifier: Apache-2.0
//
// HttpClient: blocking HTTP/1.1 requests. Connections are kept and used again; one that the server has closed meanwhile is
// opened anew without the caller noticing. A client belongs to one thread. Redirects are not followed.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/config_env.h"
#include "core/status.h"
#include "net/url.h"

namespace deepinfer::net {

struct HttpClientOptions {
  int64_t connect_ms = 15'000;  // name, connection, proxy and TLS together
  int64_t idle_ms = 60'000;     // without a byte in either direction
  std::string user_agent = "deepinfer";
  std::string ca_file;  // PEM of the authorities to trust; empty = the system's
  std::string http_proxy, https_proxy;  // addresses; empty = none
  std::string no_proxy;                 // comma list of hosts and domains that are asked directly; "*" = all
  const std::atomic<bool>* is_cancelled = nullptr;  // looked at ten times a second; outlives the client

  // Proxies (http_proxy, https_proxy, no_proxy in either case) and SSL_CERT_FILE.
  static HttpClientOptions FromEnvironment(const Environment& environment);
};

struct HttpCall {
  std::string method = "GET";
  Url url;
  std::vector<std::pair<std::string, std::string>> headers;
  std::string body;
};

struct HttpAnswer {
  int status = 0;
  std::vector<std::pair<std::string, std::string>> headers;  // names in lower case
  std::string body;  // of Send

  // Null if there is none; the first of several.
  const std::string* Find(std::string_view name) const;
};

// All errors are of the way to an answer, whatever its status: kUnavailable (no connection, or it broke), kDeadlineExceeded,
// kPermissionDenied (the server's certificate), kTooLarge, kCancelled, and what the caller's functions return.
class HttpClient {
 public:
  explicit HttpClient(HttpClientOptions options);
  ~HttpClient();
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;

  // The body of the answer in one piece.
  Result<HttpAnswer> Send(const HttpCall& call, int64_t max_body_bytes);
  // `on_head` sees the status and headers, `on_body` the pieces of the body, which are valid during the call. An error of
  // either ends the request and closes the connection.
  Result<HttpAnswer> Stream(const HttpCall& call, const std::function<Status(const HttpAnswer&)>& on_head,
                            const std::function<Status(std::string_view)>& on_body);
  void CloseAll();

 private:
  class Wire;
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace deepinfer::net
