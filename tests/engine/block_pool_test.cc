// SPDX-License-Identifier: Apache-2.0
#include "engine/block_pool.h"

#include <gtest/gtest.h>

namespace deepinfer::engine {
namespace {

TEST(BlockPool, FitCountsTheNullBlock) {
  BlockPool pool(4);
  EXPECT_EQ(pool.num_usable(), 3);
  EXPECT_EQ(pool.CanAllocate(3), BlockPool::Fit::kNow);
  EXPECT_EQ(pool.CanAllocate(4), BlockPool::Fit::kNever);
  EXPECT_EQ(pool.Allocate(), 1);
  EXPECT_EQ(pool.CanAllocate(3), BlockPool::Fit::kLater);
  EXPECT_EQ(pool.CanAllocate(2), BlockPool::Fit::kNow);
}

TEST(BlockPool, FreeListIsFifoAndTablesAreFreedBackToFront) {
  BlockPool pool(6);
  std::vector<int32_t> table{pool.Allocate(), pool.Allocate(), pool.Allocate()};
  EXPECT_EQ(table, (std::vector<int32_t>{1, 2, 3}));
  pool.ReleaseTable(table);
  EXPECT_TRUE(table.empty());
  std::vector<int32_t> order;
  while (const int32_t id = pool.Allocate()) order.push_back(id);
  EXPECT_EQ(order, (std::vector<int32_t>{4, 5, 3, 2, 1}));
}

TEST(BlockPool, OwnersAreCounted) {
  BlockPool pool(3);
  const int32_t id = pool.Allocate();
  pool.Pin(id);
  EXPECT_EQ(pool.ref_count(id), 2);
  pool.Release(id);
  EXPECT_EQ(pool.num_used(), 1);
  pool.Release(id);
  EXPECT_EQ(pool.num_used(), 0);
  EXPECT_DEATH(pool.Release(id), "without owner");
  EXPECT_DEATH(pool.Pin(id), "without owner");
}

TEST(BlockPool, KeyedBlocksCanBeTakenUntilTheyAreReused) {
  BlockPool pool(4);
  std::vector<int32_t> reused;
  pool.set_on_reuse([&](int32_t id) { reused.push_back(id); });
  const int32_t a = pool.Allocate(), b = pool.Allocate();
  pool.SetKeyed(a, true);
  pool.SetKeyed(b, true);
  pool.Release(a);
  pool.Release(b);
  pool.Take(a);  // out of the middle of the free list
  EXPECT_EQ(pool.ref_count(a), 1);
  EXPECT_EQ(pool.num_free(), 2);
  EXPECT_EQ(pool.Allocate(), 3);
  EXPECT_TRUE(reused.empty());
  EXPECT_EQ(pool.Allocate(), b);
  EXPECT_EQ(reused, std::vector<int32_t>{b});
  EXPECT_FALSE(pool.is_keyed(b));
  EXPECT_EQ(pool.Allocate(), 0);
}

}  // namespace
}  // namespace deepinfer::engine
