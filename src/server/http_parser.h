// SPDX-License-Identifier: Apache-2.0
//
// One HTTP/1.x request from bytes that arrive in any pieces. Boost.Beast's parser stands behind it; a fault becomes the HTTP
// status to answer with.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "server/http_message.h"

namespace deepinfer::server {

struct HttpLimits {
  uint32_t max_header_bytes = 32 << 10;
  uint64_t max_body_bytes = uint64_t{64} << 20;
};

class HttpParser {
 public:
  enum class State { kHead, kBody, kDone, kFailed };

  explicit HttpParser(const HttpLimits& limits);
  ~HttpParser();
  HttpParser(HttpParser&&) noexcept;
  HttpParser& operator=(HttpParser&&) noexcept;

  // Takes bytes from the front of `data`; returns how many. What it leaves must come again, with more behind it. Stops at
  // the end of the request.
  size_t Feed(std::string_view data);
  State state() const;

  // From kBody on.
  const HttpRequest& head() const;
  bool expects_continue() const;
  // kDone: the request, body included. Once.
  HttpRequest Take();

  // kFailed.
  int error_status() const;  // 400, 413, 431
  const std::string& error() const;

 private:
  size_t FeedBytes(std::string_view data);
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace deepinfer::server
