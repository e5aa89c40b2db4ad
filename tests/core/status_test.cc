// SPDX-License-Identifier: Apache-2.0
#include "core/status.h"

#include <gtest/gtest.h>

namespace deepinfer {
namespace {

Result<int> Half(int x) {
  if (x % 2 != 0) return InvalidArgument("x is odd", "x");
  return x / 2;
}

Result<int> Quarter(int x) {
  DI_ASSIGN_OR_RETURN(const int half, Half(x));
  return Half(half);
}

TEST(Status, PropagatesThroughTheMacros) {
  EXPECT_EQ(*Quarter(8), 2);
  EXPECT_EQ(Quarter(6).status().message(), "x is odd");
  EXPECT_EQ(Quarter(6).status().field(), "x");
}

TEST(Status, ContextIsAddedOncePerLayerAndKeepsCodeAndField) {
  const Status s = InvalidArgument("bad", "f").WithContext("loading shard 7");
  EXPECT_EQ(s.message(), "loading shard 7: bad");
  EXPECT_EQ(s.field(), "f");
  EXPECT_EQ(s.code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace deepinfer
