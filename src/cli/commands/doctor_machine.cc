// SPDX-License-Identifier: Apache-2.0
#include "cli/commands/doctor_machine.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <set>
#include <thread>
#include <vector>

#include <sys/resource.h>
#include <unistd.h>

#include <fmt/format.h>

#include "core/arithmetic_peak.h"
#include "core/async_reader.h"
#include "core/clock.h"
#include "core/cpu_features.h"
#include "core/cpu_topology.h"
#include "core/disk_rate.h"
#include "core/escape.h"
#include "core/memory_info.h"
#include "core/read_sweep.h"
#include "core/threads.h"

namespace deepinfer::cli {

namespace {

namespace fs = std::filesystem;

double Rounded(double x) { return std::round(x * 100) / 100; }

std::string AfterColon(const std::string& line) {
  const size_t colon = line.find(':');
  if (colon == std::string::npos) return {};
  const size_t begin = line.find_first_not_of(" \t", colon + 1);
  return begin == std::string::npos ? std::string() : line.substr(begin);
}

// "0-3,8": ranges of consecutive numbers.
std::string RangesText(const std::vector<int>& numbers) {
  std::string out;
  for (size_t i = 0; i < numbers.size();) {
    size_t end = i;
    while (end + 1 < numbers.size() && numbers[end + 1] == numbers[end] + 1) ++end;
    out += fmt::format("{}{}", out.empty() ? "" : ",", numbers[i]);
    if (end > i) out += fmt::format("-{}", numbers[end]);
    i = end + 1;
  }
  return out;
}

int CountSockets(const std::vector<int>& cores) {
  std::set<std::string> packages;
  for (const int core : cores) packages.insert(ReadLineOf(fmt::format("/sys/devices/system/cpu/cpu{}/topology/physical_package_id", core)));
  return std::max<int>(1, static_cast<int>(packages.size()));
}

std::set<std::string> CpuFlags() {
  std::set<std::string> flags;
  std::string text = FieldOf("/proc/cpuinfo", "flags");
  if (text.empty()) text = FieldOf("/proc/cpuinfo", "Features");
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find(' ', at), text.size());
    flags.insert(text.substr(at, end - at));
    at = end + 1;
  }
  return flags;
}

// Kernel paths of this architecture that do not run here, and the features that they lack.
Json PathsNotUsed(const std::set<std::string>& flags) {
  struct Path {
    CpuIsa isa;
    std::vector<const char*> needs;
  };
  const std::vector<Path> paths = {
#if defined(__x86_64__)
      {CpuIsa::kAvx2, {"avx2", "fma"}},
      {CpuIsa::kAvx512, {"avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512_vbmi", "avx512_vnni", "avx512_bf16"}},
      {CpuIsa::kAmx, {"avx512_bf16", "amx_tile", "amx_bf16", "amx_int8"}},
#elif defined(__aarch64__)
      {CpuIsa::kNeonBf16, {"asimddp", "bf16"}},
#endif
  };
  Json list = Json::array();
  for (const Path& path : paths) {
    if (CpuSupports(path.isa)) continue;
    Json lacks = Json::array();
    for (const char* need : path.needs) {
      if (!flags.contains(need)) lacks.push_back(need);
    }
    list.push_back({{"path", std::string(CpuIsaName(path.isa))}, {"lacks", lacks}});
  }
  return list;
}

// The best of four measurements, of fewer where they take long.
template <typename Measure>
double BestOf(const Measure& measure) {
  const double start = Clock::Steady().NowSeconds();
  double best = 0;
  for (int pass = 0; pass < 4 && Clock::Steady().NowSeconds() - start < 0.5; ++pass) best = std::max(best, measure());
  return best;
}

// Best of several passes over a buffer much larger than the caches, in GB/s; 0 if there is no memory for it.
double MeasureReadBandwidth(int num_threads) {
  ThreadPool pool(num_threads);
  ReadSweep sweep(pool);
  return Rounded(BestOf([&] { return sweep.Pass(); }) * 1e-9);
}

double MeasureArithmetic(int num_threads) {
  ThreadPool pool(num_threads);
  return Rounded(BestOf([&] { return ArithmeticPeak(pool); }) * 1e-9);
}

// The largest file below `folder`, among the first few thousand entries.
std::pair<std::string, int64_t> LargestFile(const std::string& folder) {
  std::pair<std::string, int64_t> best{"", 0};
  std::error_code error;
  int seen = 0;
  for (fs::recursive_directory_iterator it(folder, fs::directory_options::skip_permission_denied, error), end;
       !error && it != end && seen < 4000;
       it.increment(error), ++seen) {
    std::error_code ignored;
    if (it->is_symlink(ignored) || !it->is_regular_file(ignored)) continue;
    const auto bytes = static_cast<int64_t>(it->file_size(ignored));
    if (!ignored && bytes > best.second) best = {it->path().string(), bytes};
  }
  return best;
}

}  // namespace

std::string ReadLineOf(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

std::string FieldOf(const std::string& path, const std::string& key) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with(key)) return AfterColon(line);
  }
  return {};
}

Json CpuReport(int num_threads) {
  std::string model = FieldOf("/proc/cpuinfo", "model name");
  if (model.empty()) model = FieldOf("/proc/cpuinfo", "CPU part");
  const std::set<std::string> flags = CpuFlags();
  Json features = Json::array();
  for (const char* name : {"avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512_vnni", "avx512_vbmi",
                           "avx512_bf16", "amx_tile", "amx_bf16", "amx_int8", "asimd", "asimddp", "bf16", "i8mm", "sve"}) {
    if (flags.contains(name)) features.push_back(name);
  }
  Json paths = Json::array();
  for (const CpuIsa isa : SupportedCpuIsas()) paths.push_back(std::string(CpuIsaName(isa)));
  Json nodes = Json::array();
  std::vector<int> cores;  // that the affinity mask allows
  for (const CpuTopology::Node& node : CpuTopology::Read().nodes) {
    nodes.push_back({{"id", node.id}, {"cpus", RangesText(node.cpus)}});
    cores.insert(cores.end(), node.cpus.begin(), node.cpus.end());
  }
  std::sort(cores.begin(), cores.end());
  return Json{{"model", Escape(model)},
              {"cores", std::thread::hardware_concurrency()},
              {"sockets", CountSockets(cores)},
              {"numa_nodes", nodes},
              {"affinity", RangesText(cores)},
              {"available_cores", ThreadPool::NumAvailableCores()},
              {"cgroup_limited", ThreadPool::NumAvailableCores() < static_cast<int>(cores.size())},
              {"features", features},
              {"supported_paths", paths},
              {"paths_not_used", PathsNotUsed(flags)},
              {"path", std::string(CpuIsaName(BestCpuIsa()))},
              {"arithmetic_gflop_per_s", MeasureArithmetic(num_threads)},
              {"threads", num_threads}};
}

Json MemoryReport(int num_threads) {
  const MemoryInfo memory = ReadMemoryInfo();
  const double one = MeasureReadBandwidth(1);
  const double all = num_threads > 1 ? MeasureReadBandwidth(num_threads) : one;
  return Json{{"total_bytes", memory.total_bytes},
              {"limit_bytes", memory.limit_bytes},
              {"available_bytes", memory.available_bytes},
              {"cgroup_limited", memory.is_limited_by_cgroup},
              {"read_gb_per_s", all},
              {"read_threads", num_threads},
              {"read_gb_per_s_1_thread", one},
              {"huge_pages", ReadLineOf("/sys/kernel/mm/transparent_hugepage/enabled")}};
}

Json LimitsReport() {
  rlimit limit{};
  Json memlock = nullptr;  // unlimited, as for root
  if (::geteuid() != 0 && ::getrlimit(RLIMIT_MEMLOCK, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY) memlock = static_cast<int64_t>(limit.rlim_cur);
  std::string why_not;
  const bool has_uring = IsUringAvailable(&why_not);
  return Json{{"memlock_bytes", memlock}, {"io_uring", has_uring}, {"io_uring_why_not", Escape(why_not)}};
}

Json DiskRateReport(const std::string& purpose, const std::string& folder) {
  constexpr int64_t kLargeEnough = int64_t{64} << 20;
  constexpr double kSeconds = 1.6;
  const auto [file, bytes] = LargestFile(folder);
  const bool has_file = bytes >= kLargeEnough;
  const Result<DiskRate> rate = has_file ? MeasureDiskRate(file, kSeconds / 2) : MeasureDiskRateOfFolder(folder, kSeconds);
  Json report = {{"purpose", purpose}, {"path", Escape(has_file ? file : folder)}};
  if (!rate.ok()) {
    report["error"] = Escape(rate.status().message());
    return report;
  }
  report["sequential_gb_per_s"] = Rounded(rate->sequential_bytes_per_s * 1e-9);
  report["random_gb_per_s"] = Rounded(rate->random_bytes_per_s * 1e-9);
  report["direct"] = rate->is_direct;
  report["temporary_file"] = rate->is_temporary;
  report["file_bytes"] = rate->file_bytes;
  report["reader"] = rate->reader;
  return report;
}

}  // namespace deepinfer::cli
