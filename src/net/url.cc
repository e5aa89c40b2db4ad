// SPDX-License-Identifier: Apache-2.0
#include "net/url.h"

#include <algorithm>
#include <charconv>

#include <fmt/format.h>

#include "core/ascii.h"
#include "core/escape.h"

namespace deepinfer::net {

namespace {

constexpr size_t kMaxUrlBytes = 16 << 10;

bool IsUnreserved(char c) {
  return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-' || c == '.' || c == '_' || c == '~';
}

bool IsVisible(char c) { return c > ' ' && c < 0x7f; }

// Without what stands in front of "@".
std::string Shown(std::string_view text) {
  const size_t scheme = text.find("://");
  const size_t begin = scheme == std::string_view::npos ? 0 : scheme + 3;
  const size_t end = std::min(text.find_first_of("/?#", begin), text.size());
  const size_t at = text.substr(0, end).rfind('@');
  std::string out(text);
  if (at != std::string_view::npos && at >= begin) out.replace(begin, at - begin, "...");
  return Escape(out, 200);
}

Status BadUrl(std::string_view text, std::string_view why) {
  return InvalidArgument(fmt::format("\"{}\" is no address of the form http://HOST[:PORT]/PATH or https://...: {}", Shown(text), why));
}

}  // namespace

std::string Url::HostHeader() const {
  const std::string name = host.find(':') == std::string::npos ? host : "[" + host + "]";
  return port == (is_https ? 443 : 80) ? name : fmt::format("{}:{}", name, port);
}

std::string Url::Text() const { return fmt::format("{}://{}{}", is_https ? "https" : "http", HostHeader(), target); }

Result<Url> ParseUrl(std::string_view text) {
  if (text.size() > kMaxUrlBytes) return BadUrl(text, "it is too long");
  if (!std::all_of(text.begin(), text.end(), IsVisible)) return BadUrl(text, "it holds a blank or a character that must be percent-encoded");
  Url url;
  const size_t scheme_end = text.find("://");
  const std::string scheme = AsciiLower(text.substr(0, scheme_end == std::string_view::npos ? 0 : scheme_end));
  if (scheme != "http" && scheme != "https") return BadUrl(text, "the scheme must be http or https");
  url.is_https = scheme == "https";
  std::string_view rest = text.substr(scheme_end + 3);
  const size_t authority_end = std::min(rest.find_first_of("/?#"), rest.size());
  std::string_view authority = rest.substr(0, authority_end);
  rest.remove_prefix(authority_end);
  rest = rest.substr(0, rest.find('#'));
  if (const size_t at = authority.rfind('@'); at != std::string_view::npos) {
    url.user_info = PercentDecode(authority.substr(0, at));
    authority.remove_prefix(at + 1);
  }
  std::string_view port;
  if (authority.starts_with('[')) {
    const size_t close = authority.find(']');
    if (close == std::string_view::npos) return BadUrl(text, "a bracket is missing");
    url.host = AsciiLower(authority.substr(1, close - 1));
    authority.remove_prefix(close + 1);
    if (!authority.empty() && !authority.starts_with(':')) return BadUrl(text, "the port is not a number");
    if (!authority.empty()) port = authority.substr(1);
    if (!std::all_of(url.host.begin(), url.host.end(), [](char c) { return HexDigit(c) >= 0 || c == ':' || c == '.'; })) {
      return BadUrl(text, "the IPv6 address is not one");
    }
  } else {
    const size_t colon = authority.find(':');
    url.host = AsciiLower(authority.substr(0, colon));
    if (colon != std::string_view::npos) port = authority.substr(colon + 1);
    if (!std::all_of(url.host.begin(), url.host.end(), IsUnreserved)) return BadUrl(text, "the host name holds an unexpected character");
  }
  if (url.host.empty()) return BadUrl(text, "the host is missing");
  url.port = url.is_https ? 443 : 80;
  if (!port.empty()) {
    const auto [end, error] = std::from_chars(port.data(), port.data() + port.size(), url.port);
    if (error != std::errc() || end != port.data() + port.size() || url.port < 1 || url.port > 65535) {
      return BadUrl(text, "the port must be 1 to 65535");
    }
  }
  url.target = std::string(rest);
  if (!url.target.starts_with('/')) url.target.insert(0, 1, '/');
  return url;
}

Result<Url> ResolveLocation(const Url& base, std::string_view location) {
  if (location.find("://") < location.find_first_of("/?#")) return ParseUrl(location);
  const std::string_view scheme = base.is_https ? "https:" : "http:";
  if (location.starts_with("//")) return ParseUrl(fmt::format("{}{}", scheme, location));
  const std::string origin = fmt::format("{}//{}", scheme, base.HostHeader());
  if (location.starts_with('/')) return ParseUrl(origin + std::string(location));
  const std::string path = base.target.substr(0, base.target.find('?'));
  if (location.starts_with('?')) return ParseUrl(origin + path + std::string(location));
  return ParseUrl(origin + path.substr(0, path.rfind('/') + 1) + std::string(location));
}

std::string PercentEncode(std::string_view text, bool keep_slash) {
  std::string out;
  for (const char c : text) {
    if (IsUnreserved(c) || (keep_slash && c == '/')) out += c;
    else out += fmt::format("%{:02X}", static_cast<unsigned char>(c));
  }
  return out;
}

}  // namespace deepinfer::net
