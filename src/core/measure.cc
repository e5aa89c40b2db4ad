// SPDX-License-Identifier: Apache-2.0
#include "core/measure.h"

#include <algorithm>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <random>
#include <sys/resource.h>
#include <sys/utsname.h>

#include "core/cpu_features.h"
#include "core/memory_info.h"
#include "core/threads.h"

namespace deepinfer {

namespace {

rusage Usage() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return usage;
}

}  // namespace

double LoadAverage() {
  double load = 0;
  return ::getloadavg(&load, 1) == 1 ? load : 0;
}

std::string UtcDate() {
  char date[32];
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  ::gmtime_r(&now, &utc);
  std::strftime(date, sizeof(date), "%Y-%m-%dT%H:%M:%SZ", &utc);
  return date;
}

int64_t InvoluntarySwitches() { return Usage().ru_nivcsw; }
int64_t PageFaults() { return Usage().ru_minflt + Usage().ru_majflt; }
int64_t PeakResidentBytes() { return int64_t{Usage().ru_maxrss} * 1024; }

Json HostRecord() {
  utsname name{};
  ::uname(&name);
  std::string cpu, line;
  std::ifstream info("/proc/cpuinfo");
  while (cpu.empty() && std::getline(info, line)) {
    if (line.starts_with("model name")) cpu = line.substr(line.find(':') + 2);
  }
  std::ifstream pages("/sys/kernel/mm/transparent_hugepage/enabled");
  std::string huge_pages;
  std::getline(pages, huge_pages);
  return Json{{"cpu_model", cpu},
              {"isa", CpuIsaName(ActiveCpuIsa())},
              {"cores", ThreadPool::NumAvailableCores()},
              {"mem_gb", static_cast<double>(ReadMemoryInfo().total_bytes) * 1e-9},
              {"kernel", name.release},
              {"hugepages", huge_pages},
              {"load1", LoadAverage()}};
}

double Quantile(std::vector<double> values, double q) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const double at = q * static_cast<double>(values.size() - 1);
  const size_t low = static_cast<size_t>(at);
  const size_t high = std::min(low + 1, values.size() - 1);
  return values[low] + (values[high] - values[low]) * (at - static_cast<double>(low));
}

PairedRatio::Summary PairedRatio::Summarize() const {
  Summary s;
  if (subjects_.empty()) return s;
  const double best = *std::max_element(references_.begin(), references_.end());
  std::vector<double> ratios;
  for (size_t i = 0; i < subjects_.size(); ++i) {
    if (references_[i] >= 0.7 * best && references_[i] > 0) ratios.push_back(subjects_[i] / references_[i]);
  }
  s.kept = static_cast<int>(ratios.size());
  s.ratio = Median(ratios);
  s.subject = Median(subjects_);
  s.reference = Median(references_);
  if (ratios.empty()) return s;
  std::mt19937 rng(1);
  std::vector<double> medians;
  std::vector<double> sample(ratios.size());
  for (int round = 0; round < 500; ++round) {
    for (double& v : sample) v = ratios[rng() % ratios.size()];
    medians.push_back(Median(sample));
  }
  s.low = Quantile(medians, 0.025);
  s.high = Quantile(medians, 0.975);
  return s;
}

}  // namespace deepinfer
