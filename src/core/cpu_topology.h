// SPDX-License-Identifier: Apache-2.0
//
// The NUMA nodes of the machine and the processors of each that this process may use (affinity mask respected).
#pragma once

#include <string>
#include <vector>

namespace deepinfer {

struct CpuTopology {
  struct Node {
    int id = 0;             // as the kernel numbers it
    std::vector<int> cpus;  // ascending
  };
  std::vector<Node> nodes;  // never empty, none without processors

  int num_cpus() const;
  // `root`: the folder with nodeN/cpulist. A machine that does not tell its nodes has one.
  static CpuTopology Read(const std::string& root = "/sys/devices/system/node");
  // How many of `num_threads` threads each node gets, in proportion to its processors; all are given out.
  std::vector<int> ShareThreads(int num_threads) const;
};

}  // namespace deepinfer
