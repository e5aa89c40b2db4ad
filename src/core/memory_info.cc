// SPDX-License-Identifier: Apache-2.0
#include "core/memory_info.h"

#include <algorithm>
#include <fstream>
#include <optional>
#include <sstream>
#include <string>

namespace deepinfer {

namespace {

std::optional<int64_t> ReadNumber(const std::string& path) {
  std::ifstream file(path);
  int64_t value = 0;
  if (file >> value) return value;
  return std::nullopt;  // no such file, or "max"
}

// Value of "key <value>" or "key: <value> kB" lines.
std::optional<int64_t> ReadKey(const std::string& path, const std::string& key) {
  std::ifstream file(path);
  std::string line;
  while (std::getline(file, line)) {
    std::istringstream words(line);
    std::string name;
    int64_t value = 0;
    if (words >> name >> value && name == key) return value;
  }
  return std::nullopt;
}

// What the control group at `dir` and those above it still allow.
void Limit(const std::string& root,
           std::string path,
           const char* limit_name,
           const char* usage_name,
           const char* cache_key,
           MemoryInfo* info) {
  while (true) {
    const std::string dir = root + path;
    if (const auto limit = ReadNumber(dir + "/" + limit_name);
        limit && *limit < info->total_bytes) {
      const int64_t usage = ReadNumber(dir + "/" + usage_name).value_or(0);
      // File pages count as used but are given up on demand.
      const int64_t cache = ReadKey(dir + "/memory.stat", cache_key).value_or(0);
      const int64_t left = std::max<int64_t>(0, *limit - std::max<int64_t>(0, usage - cache));
      info->limit_bytes = std::min(info->limit_bytes, *limit);
      if (left < info->available_bytes) {
        info->available_bytes = left;
        info->is_limited_by_cgroup = true;
      }
    }
    if (path.empty()) return;
    path.resize(path.rfind('/'));
  }
}

}  // namespace

MemoryInfo ReadMemoryInfo(const std::string& root) {
  MemoryInfo info;
  info.total_bytes = ReadKey(root + "/proc/meminfo", "MemTotal:").value_or(0) * 1024;
  info.limit_bytes = info.total_bytes;
  info.available_bytes = ReadKey(root + "/proc/meminfo", "MemAvailable:").value_or(0) * 1024;
  std::ifstream cgroups(root + "/proc/self/cgroup");
  std::string line;
  while (std::getline(cgroups, line)) {  // "0::/user.slice" (v2) or "5:memory:/docker/1234" (v1)
    const size_t first = line.find(':');
    const size_t second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    std::string path = line.substr(second + 1);
    if (path.empty() || path[0] != '/' || path.find("..") != std::string::npos) path.clear();
    if (path == "/") path.clear();
    if (controllers.empty()) {
      Limit(root + "/sys/fs/cgroup", path, "memory.max", "memory.current", "inactive_file", &info);
    } else if (controllers.find("memory") != std::string::npos) {
      Limit(root + "/sys/fs/cgroup/memory",
            path,
            "memory.limit_in_bytes",
            "memory.usage_in_bytes",
            "total_inactive_file",
            &info);
    }
  }
  return info;
}

}  // namespace deepinfer
