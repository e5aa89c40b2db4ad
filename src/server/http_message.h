// SPDX-License-Identifier: Apache-2.0
//
// A parsed HTTP/1.1 request, and the pieces of a response head. Plain data without sockets.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace deepinfer::server {

struct HttpRequest {
  std::string method;
  std::string target;  // as sent
  std::string path;    // target up to '?', not decoded
  std::string query;
  std::vector<std::pair<std::string, std::string>> headers;  // names in lower case
  std::string body;
  bool is_http10 = false;
  bool keep_alive = true;

  // The first header of that (lower-case) name; null when there is none.
  const std::string* Find(std::string_view name) const {
    for (const auto& [key, value] : headers) {
      if (key == name) return &value;
    }
    return nullptr;
  }
};

using HttpHeaders = std::vector<std::pair<std::string, std::string>>;

struct HttpResponse {
  int status = 200;
  std::string content_type = "application/json";
  std::string body;
  HttpHeaders headers;  // further ones
};

std::string_view ReasonPhrase(int status);
// "Date" in the form of RFC 9110.
std::string HttpDate(int64_t unix_seconds);

}  // namespace deepinfer::server
