// SPDX-License-Identifier: Apache-2.0
#include "core/process_metrics.h"

#include <dirent.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

namespace deepinfer {

namespace {

int64_t NumOpenFiles() {
  DIR* const dir = ::opendir("/proc/self/fd");
  if (dir == nullptr) return 0;
  int64_t count = -3;  // ".", ".." and this one
  while (::readdir(dir) != nullptr) ++count;
  ::closedir(dir);
  return std::max<int64_t>(count, 0);
}

int64_t ResidentBytes() {
  std::FILE* const file = std::fopen("/proc/self/statm", "re");
  if (file == nullptr) return 0;
  long size = 0, resident = 0;
  if (std::fscanf(file, "%ld %ld", &size, &resident) != 2) resident = 0;
  std::fclose(file);
  return int64_t{resident} * ::sysconf(_SC_PAGESIZE);
}

double CpuSeconds() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) { return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec); };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

}  // namespace

void UpdateProcessMetrics(MetricsRegistry& registry) {
  registry.GetGauge("process_resident_memory_bytes", "Resident memory of the process.").Set(static_cast<double>(ResidentBytes()));
  registry.GetGauge("process_open_fds", "Open files of the process, sockets included.").Set(static_cast<double>(NumOpenFiles()));
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  registry.GetGauge("process_max_fds", "Most open files that the process may have.").Set(static_cast<double>(limit.rlim_cur));
  Counter& cpu = registry.GetCounter("process_cpu_seconds_total", "Processor time of the process, user and system.");
  cpu.Add(std::max(0.0, CpuSeconds() - cpu.value()));
}

}  // namespace deepinfer
