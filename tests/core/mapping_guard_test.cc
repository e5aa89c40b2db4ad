// SPDX-License-Identifier: Apache-2.0
#include "core/mapping_guard.h"

#include <unistd.h>

#include <string>

#include <gtest/gtest.h>

#include "core/file.h"
#include "temporary_dir.h"

namespace deepinfer {
namespace {

TEST(MappingGuard, TruncatedFileReadsAsZerosAndIsMarked) {
  const testing::TemporaryDir dir;
  const std::string path = dir.path() + "/mapped", other_path = dir.path() + "/other";
  const int64_t page = ::sysconf(_SC_PAGESIZE);
  ASSERT_TRUE(WriteFileAtomically(path, std::string(static_cast<size_t>(3 * page), 'x')).ok());
  ASSERT_TRUE(WriteFileAtomically(other_path, "y").ok());
  const auto other = MappedFile::Open(other_path);
  ASSERT_TRUE(other.ok());
  {
    const auto file = MappedFile::Open(path);
    ASSERT_TRUE(file.ok());
    EXPECT_FALSE(file->is_damaged());
    ASSERT_EQ(::truncate(path.c_str(), page), 0);
    const volatile uint8_t* const data = file->data();
    EXPECT_EQ(data[0], 'x');
    EXPECT_FALSE(file->is_damaged());
    EXPECT_EQ(data[2 * page + 5], 0);
    EXPECT_TRUE(file->is_damaged());
    EXPECT_TRUE(IsAnyMappingDamaged());
    EXPECT_FALSE(other->is_damaged());
  }
  EXPECT_FALSE(IsAnyMappingDamaged());
}

}  // namespace
}  // namespace deepinfer
