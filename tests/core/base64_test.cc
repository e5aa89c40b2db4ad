// SPDX-License-Identifier: Apache-2.0
#include "core/base64.h"

#include <gtest/gtest.h>

namespace deepinfer {
namespace {

TEST(Base64, RoundTripOfEveryLength) {
  std::string bytes;
  for (int i = 0; i < 300; ++i) {
    const auto decoded = DecodeBase64(EncodeBase64(bytes));
    ASSERT_TRUE(decoded.ok());
    EXPECT_EQ(*decoded, bytes);
    bytes.push_back(static_cast<char>(i * 37));
  }
  EXPECT_EQ(EncodeBase64("foob"), "Zm9vYg==");
  EXPECT_EQ(EncodeBase64("fooba"), "Zm9vYmE=");
}

TEST(Base64, BadTextIsRefused) {
  for (const char* text : {"a", "ab", "abc", "a===", "ab=c", "a b=", "####", "Zm9v\n", "=", "===="}) {
    EXPECT_FALSE(DecodeBase64(text).ok()) << text;
  }
}

}  // namespace
}  // namespace deepinfer
