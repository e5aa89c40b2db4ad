// SPDX-License-Identifier: Apache-2.0
#include "core/byte_size.h"

#include <gtest/gtest.h>

namespace deepinfer {
namespace {

TEST(ByteSize, Parses) {
  EXPECT_EQ(ParseByteSize("24GiB", "x").value(), int64_t{24} << 30);
  EXPECT_EQ(ParseByteSize("24G", "x").value(), int64_t{24} << 30);
  EXPECT_EQ(ParseByteSize("1.5 TiB", "x").value(), int64_t{3} << 39);
  EXPECT_EQ(ParseByteSize("500MB", "x").value(), 500'000'000);
  EXPECT_EQ(ParseByteSize("64kib", "x").value(), 65536);
  EXPECT_EQ(ParseByteSize("1073741824", "x").value(), 1073741824);
  EXPECT_EQ(ParseByteSize("7b", "x").value(), 7);
}

TEST(ByteSize, RefusesWhatIsNoSize) {
  for (const char* text : {"", "GiB", "-1", "1e", "24XB", "24GiBx", "24 G B", "0x10", "nan", "inf", "99999999TiB", "5.5", "2e9", "1,5GiB"}) {
    const auto size = ParseByteSize(text, "memory_budget");
    EXPECT_FALSE(size.ok()) << text;
    EXPECT_EQ(size.status().code(), StatusCode::kInvalidArgument) << text;
  }
  EXPECT_EQ(ParseByteSize("lots", "memory_budget").status().message(),
            "memory_budget is \"lots\" but must be a size such as 24GiB, 500MB or a number of bytes");
}

}  // namespace
}  // namespace deepinfer
