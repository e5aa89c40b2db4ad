// SPDX-License-Identifier: Apache-2.0
#include "core/cpu_topology.h"

#include <sched.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>

namespace deepinfer {
namespace {

std::vector<int> UsableCpus() {
  std::vector<int> cpus;
#if defined(__linux__)
  cpu_set_t set;
  CPU_ZERO(&set);
  if (::sched_getaffinity(0, sizeof(set), &set) == 0) {
    for (int i = 0; i < CPU_SETSIZE; ++i)
      if (CPU_ISSET(i, &set)) cpus.push_back(i);
  }
#endif
  if (cpus.empty())
    for (int i = 0; i < std::max(1, static_cast<int>(std::thread::hardware_concurrency())); ++i) cpus.push_back(i);
  return cpus;
}

// The processors of "0-3,8,10-11"; empty for anything else.
std::vector<int> ParseCpuList(std::string_view text) {
  std::vector<int> cpus;
  const char* p = text.data();
  const char* const end = p + text.size();
  while (p != end) {
    int first = 0;
    auto [stop, error] = std::from_chars(p, end, first);
    if (error != std::errc() || first < 0 || first > 65535) return {};
    int last = first;
    if (stop != end && *stop == '-') {
      const auto range = std::from_chars(stop + 1, end, last);
      if (range.ec != std::errc() || last < first || last > 65535) return {};
      stop = range.ptr;
    }
    for (int cpu = first; cpu <= last; ++cpu) cpus.push_back(cpu);
    if (stop != end && *stop != ',') return {};
    p = stop == end ? end : stop + 1;
  }
  return cpus;
}

// The number of "node12", or none.
std::optional<int> NodeId(const std::string& name) {
  if (!name.starts_with("node") || name.size() == 4 || name.size() > 8) return std::nullopt;
  int id = 0;
  for (const char c : name.substr(4)) {
    if (c < '0' || c > '9') return std::nullopt;
    id = id * 10 + (c - '0');
  }
  return id;
}

}  // namespace

int CpuTopology::num_cpus() const {
  int count = 0;
  for (const Node& node : nodes) count += static_cast<int>(node.cpus.size());
  return count;
}

CpuTopology CpuTopology::Read(const std::string& root) {
  const std::vector<int> usable = UsableCpus();
  CpuTopology topology;
  std::error_code error;
  for (std::filesystem::directory_iterator entry(root, error), end; !error && entry != end; entry.increment(error)) {
    const std::optional<int> id = NodeId(entry->path().filename().string());
    if (!id) continue;
    std::ifstream file(entry->path() / "cpulist");
    std::string text;
    if (!(file >> text)) continue;  // a node with memory only
    Node node{*id, {}};
    for (const int cpu : ParseCpuList(text))
      if (std::binary_search(usable.begin(), usable.end(), cpu)) node.cpus.push_back(cpu);
    if (!node.cpus.empty()) topology.nodes.push_back(std::move(node));
  }
  std::sort(topology.nodes.begin(), topology.nodes.end(), [](const Node& a, const Node& b) { return a.id < b.id; });
  if (topology.num_cpus() != static_cast<int>(usable.size())) topology.nodes = {{0, usable}};
  return topology;
}

std::vector<int> CpuTopology::ShareThreads(int num_threads) const {
  std::vector<int> shares;
  const int total = num_cpus();
  int given = 0, cpus_so_far = 0;
  for (const Node& node : nodes) {
    cpus_so_far += static_cast<int>(node.cpus.size());
    const int until = static_cast<int>(int64_t{num_threads} * cpus_so_far / total);
    shares.push_back(until - given);
    given = until;
  }
  return shares;
}

}  // namespace deepinfer
