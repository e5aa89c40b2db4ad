// SPDX-License-Identifier: Apache-2.0
//
// How much memory this process may still use: the machine's free and reclaimable memory, and the
// limits of the control groups (containers) it runs in.
#pragma once

#include <cstdint>
#include <string>

namespace deepinfer {

struct MemoryInfo {
  int64_t total_bytes = 0;  // of the machine
  int64_t limit_bytes = 0;  // the smaller of that and the limit of the control group
  int64_t available_bytes =
      0;  // the smaller of what the machine has and what the control group still allows
  bool is_limited_by_cgroup = false;
};

// root: before /proc and /sys, for tests.
MemoryInfo ReadMemoryInfo(const std::string& root = {});

}  // namespace deepinfer
