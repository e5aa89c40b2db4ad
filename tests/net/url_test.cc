// SPDX-License-Identifier: Apache-2.0
#include "net/url.h"

#include <gtest/gtest.h>

namespace deepinfer::net {
namespace {

std::string Parsed(std::string_view text) {
  const Result<Url> url = ParseUrl(text);
  return url.ok() ? url->Text() : "error";
}

TEST(Url, Parts) {
  const Url url = *ParseUrl("HTTPS://User:p%40ss@Hub.Example:8443/a/b?c=d#e");
  EXPECT_TRUE(url.is_https);
  EXPECT_EQ(url.host, "hub.example");
  EXPECT_EQ(url.port, 8443);
  EXPECT_EQ(url.target, "/a/b?c=d");
  EXPECT_EQ(url.user_info, "User:p@ss");
  EXPECT_EQ(url.Text(), "https://hub.example:8443/a/b?c=d");
  EXPECT_EQ(ParseUrl("http://[::1]:80/x")->HostHeader(), "[::1]");
  EXPECT_EQ(ParseUrl("http://[::1]:80/x")->host, "::1");
}

TEST(Url, Forms) {
  EXPECT_EQ(Parsed("http://a"), "http://a/");
  EXPECT_EQ(Parsed("http://a?x"), "http://a/?x");
  EXPECT_EQ(Parsed("http://a:80/"), "http://a/");
  EXPECT_EQ(Parsed("https://a:80/"), "https://a:80/");
  for (const char* bad : {"", "a", "/a", "ftp://a", "http://", "http:///a", "http://a:0", "http://a:65536", "http://a:x", "http://a b", "http://a\n/", "http://[::1",
                          "http://[::1]x", "http://[gg::]/", "http://a\"b/", "http://a/\x7f", "http://a/\xc3\xa4"}) {
    EXPECT_EQ(Parsed(bad), "error") << bad;
  }
}

TEST(Url, ErrorsHideCredentials) {
  const std::string message = ParseUrl("ftp://me:secret@host/x").status().message();
  EXPECT_EQ(message.find("secret"), std::string::npos) << message;
  EXPECT_NE(message.find("host/x"), std::string::npos) << message;
}

TEST(Url, Locations) {
  const Url base = *ParseUrl("https://hub:444/a/b?c");
  const auto at = [&base](std::string_view location) {
    const Result<Url> url = ResolveLocation(base, location);
    return url.ok() ? url->Text() : "error";
  };
  EXPECT_EQ(at("http://other/x"), "http://other/x");
  EXPECT_EQ(at("//other/x"), "https://other/x");
  EXPECT_EQ(at("/x?y=http://z"), "https://hub:444/x?y=http://z");
  EXPECT_EQ(at("x"), "https://hub:444/a/x");
  EXPECT_EQ(at("?x"), "https://hub:444/a/b?x");
  EXPECT_EQ(at("file:///etc/passwd"), "error");
}

TEST(Url, PercentEncoding) {
  EXPECT_EQ(PercentEncode("a/b c%\xc3\xa4", true), "a/b%20c%25%C3%A4");
  EXPECT_EQ(PercentEncode("a/b", false), "a%2Fb");
}

}  // namespace
}  // namespace deepinfer::net
