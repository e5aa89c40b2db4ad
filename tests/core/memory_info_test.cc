// SPDX-License-Identifier: Apache-2.0
#include "core/memory_info.h"

#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

#include <gtest/gtest.h>

namespace deepinfer {
namespace {

constexpr int64_t kGiB = int64_t{1} << 30;

// A made-up /proc and /sys of a machine with 64 GiB, 48 of them available.
class MemoryInfoTest : public ::testing::Test {
 protected:
  void SetUp() override {
    root_ = ::testing::TempDir() + "memory-info-" + ::testing::UnitTest::GetInstance()->current_test_info()->name();
    std::filesystem::remove_all(root_);
    Write("/proc/meminfo", "MemTotal:       67108864 kB\nMemFree: 1 kB\nMemAvailable:   50331648 kB\n");
  }
  void TearDown() override { std::filesystem::remove_all(root_); }

  void Write(const std::string& path, std::string_view text) {
    std::filesystem::create_directories(std::filesystem::path(root_ + path).parent_path());
    std::ofstream(root_ + path) << text;
  }
  void WriteBytes(const std::string& path, int64_t bytes) { Write(path, std::to_string(bytes) + "\n"); }

  std::string root_;
};

TEST_F(MemoryInfoTest, WithoutControlGroupsTheMachineDecides) {
  const MemoryInfo info = ReadMemoryInfo(root_);
  EXPECT_EQ(info.total_bytes, 64 * kGiB);
  EXPECT_EQ(info.limit_bytes, 64 * kGiB);
  EXPECT_EQ(info.available_bytes, 48 * kGiB);
  EXPECT_FALSE(info.is_limited_by_cgroup);
}

TEST_F(MemoryInfoTest, Version2TheSmallestOfAllGroupsAboveCounts) {
  Write("/proc/self/cgroup", "0::/kubepods/pod1/main\n");
  Write("/sys/fs/cgroup/kubepods/pod1/main/memory.max", "max\n");
  WriteBytes("/sys/fs/cgroup/kubepods/pod1/memory.max", 8 * kGiB);
  WriteBytes("/sys/fs/cgroup/kubepods/pod1/memory.current", 5 * kGiB);
  Write("/sys/fs/cgroup/kubepods/pod1/memory.stat", "anon 1\ninactive_file 2147483648\n");
  WriteBytes("/sys/fs/cgroup/kubepods/memory.max", 40 * kGiB);
  WriteBytes("/sys/fs/cgroup/kubepods/memory.current", 5 * kGiB);
  const MemoryInfo info = ReadMemoryInfo(root_);
  EXPECT_EQ(info.limit_bytes, 8 * kGiB);
  EXPECT_EQ(info.available_bytes, 5 * kGiB);  // 8 - (5 - 2 that go on demand)
  EXPECT_TRUE(info.is_limited_by_cgroup);
}

TEST_F(MemoryInfoTest, Version2InsideAContainerTheRootHasTheLimit) {
  Write("/proc/self/cgroup", "0::/\n");
  WriteBytes("/sys/fs/cgroup/memory.max", 4 * kGiB);
  WriteBytes("/sys/fs/cgroup/memory.current", 6 * kGiB);  // more than allowed, for a moment
  const MemoryInfo info = ReadMemoryInfo(root_);
  EXPECT_EQ(info.limit_bytes, 4 * kGiB);
  EXPECT_EQ(info.available_bytes, 0);
}

TEST_F(MemoryInfoTest, Version1) {
  Write("/proc/self/cgroup", "7:cpu,cpuacct:/a\n5:memory:/docker/1234\n0::/\n");
  WriteBytes("/sys/fs/cgroup/memory/docker/1234/memory.limit_in_bytes", 16 * kGiB);
  WriteBytes("/sys/fs/cgroup/memory/docker/1234/memory.usage_in_bytes", 3 * kGiB);
  Write("/sys/fs/cgroup/memory/docker/1234/memory.stat", "cache 9\ntotal_inactive_file 1073741824\n");
  WriteBytes("/sys/fs/cgroup/memory/memory.limit_in_bytes", 9223372036854771712);  // no limit
  const MemoryInfo info = ReadMemoryInfo(root_);
  EXPECT_EQ(info.limit_bytes, 16 * kGiB);
  EXPECT_EQ(info.available_bytes, 14 * kGiB);
  EXPECT_TRUE(info.is_limited_by_cgroup);
}

TEST_F(MemoryInfoTest, GroupsOfOthersAndDamagedFilesCountAsNone) {
  Write("/proc/self/cgroup", "0::/../outside\nnonsense\n5:memory:\n");
  Write("/sys/fs/cgroup/memory.max", "what\n");
  Write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "");
  const MemoryInfo info = ReadMemoryInfo(root_);
  EXPECT_EQ(info.available_bytes, 48 * kGiB);
  EXPECT_FALSE(info.is_limited_by_cgroup);
}

}  // namespace
}  // namespace deepinfer
