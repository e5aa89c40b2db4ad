// SPDX-License-Identifier: Apache-2.0
//
// K2: the table of offsets of kv-store.md 2 of the specification.
#include "kvstore/block_layout.h"

#include <gtest/gtest.h>

namespace deepinfer::kvstore {
namespace {

const std::vector<SourceLayer> kReleased = {{2, 2}, {8, 2}, {14, 2}, {20, 1}};

TEST(BlockLayout, K2OffsetsOfFp4) {
  const BlockLayout layout = MakeBlockLayout(kReleased, kLayoutFp4).value();
  const uint32_t expected[4][4] = {{0, 4352, 4352, 18432}, {22784, 4352, 27136, 18432}, {45568, 4352, 49920, 18432}, {68352, 8704, 77056, 36864}};
  ASSERT_EQ(layout.layers.size(), 4u);
  for (size_t i = 0; i < 4; ++i) {
    const LayerRegion& region = layout.layers[i];
    EXPECT_EQ(region.layer, kReleased[i].layer);
    EXPECT_EQ(region.index_offset, expected[i][0]);
    EXPECT_EQ(region.index_bytes, expected[i][1]);
    EXPECT_EQ(region.main_offset, expected[i][2]);
    EXPECT_EQ(region.main_bytes, expected[i][3]);
  }
  EXPECT_EQ(layout.payload_bytes, 113'920u);
  EXPECT_EQ(layout.payload_bytes, 890u * 128);
  EXPECT_EQ(layout.stride_bytes, 114'048u);
}

TEST(BlockLayout, K2OffsetsOfFp8) {
  const BlockLayout layout = MakeBlockLayout(kReleased, kLayoutFp8).value();
  const uint32_t main_bytes[4] = {33'792, 33'792, 33'792, 67'584};
  uint32_t offset = 0;
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(layout.layers[i].index_offset, offset);
    EXPECT_EQ(layout.layers[i].main_offset, offset + (i == 3 ? 8704u : 4352u));
    EXPECT_EQ(layout.layers[i].main_bytes, main_bytes[i]);
    offset = layout.layers[i].main_offset + main_bytes[i];
  }
  EXPECT_EQ(layout.payload_bytes, 190'720u);
  EXPECT_EQ(layout.stride_bytes, 194'304u);
}

TEST(BlockLayout, RefusesWhatIsNoLayout) {
  EXPECT_FALSE(MakeBlockLayout(kReleased, 3).ok());
  const std::vector<SourceLayer> unordered = {{8, 2}, {2, 2}}, odd = {{2, 3}};
  EXPECT_FALSE(MakeBlockLayout(unordered, kLayoutFp4).ok());
  EXPECT_FALSE(MakeBlockLayout(odd, kLayoutFp4).ok());
}

}  // namespace
}  // namespace deepinfer::kvstore
