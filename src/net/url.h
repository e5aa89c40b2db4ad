// SPDX-License-Identifier: Apache-2.0
//
// Absolute http and https addresses (RFC 3986, the part that servers use). User names and passwords in an address are
// accepted for proxies only, and are never part of Text().
#pragma once

#include <string>
#include <string_view>

#include "core/status.h"

namespace deepinfer::net {

struct Url {
  bool is_https = false;
  std::string host;         // lower case; an IPv6 address without its brackets
  int port = 0;             // always set
  std::string target = "/";  // path and query, begins with "/"
  std::string user_info;     // "user:password", decoded; empty = none

  // "host:port", without the port where it is the scheme's.
  std::string HostHeader() const;
  std::string Text() const;
  bool SameOrigin(const Url& other) const { return is_https == other.is_https && host == other.host && port == other.port; }
};

// Errors: kInvalidArgument, naming the address without its credentials.
Result<Url> ParseUrl(std::string_view text);
// What `location` means in an answer from `base`.
Result<Url> ResolveLocation(const Url& base, std::string_view location);

// Percent-encodes all but unreserved characters; "/" stays when `keep_slash`.
std::string PercentEncode(std::string_view text, bool keep_slash);

}  // namespace deepinfer::net
