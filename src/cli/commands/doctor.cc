// SPDX-License-Identifier: Apache-2.0
//
// doctor: what this machine offers and what is missing, with the command that installs it.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <set>
#include <thread>

#include <dlfcn.h>
#include <sched.h>
#include <sys/statvfs.h>
#include <sys/utsname.h>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>
#include <openssl/crypto.h>
#include <spdlog/version.h>

#include "backends/registry.h"
#include "cli/commands.h"
#include "cli/input.h"
#include "cli/version.h"
#include "core/cpu_features.h"
#include "core/escape.h"
#include "core/json.h"
#include "core/memory_info.h"
#include "core/progress.h"
#include "core/read_sweep.h"
#include "core/threads.h"
#include "hub/model_locator.h"

namespace deepinfer::cli {

namespace {

namespace fs = std::filesystem;

// Small files of /proc and /sys; "" when there is none.
std::string ReadLineOf(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

std::string AfterColon(const std::string& line) {
  const size_t colon = line.find(':');
  if (colon == std::string::npos) return {};
  const size_t begin = line.find_first_not_of(" \t", colon + 1);
  return begin == std::string::npos ? std::string() : line.substr(begin);
}

// Value of the first "key : value" line.
std::string FieldOf(const std::string& path, const std::string& key) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with(key)) return AfterColon(line);
  }
  return {};
}

// Output of a fixed command line, at most 64 KiB; "" when it fails.
std::string OutputOf(const char* command) {
  std::FILE* pipe = ::popen(command, "r");
  if (pipe == nullptr) return {};
  std::string out;
  std::array<char, 4096> buffer{};
  while (out.size() < 65536 && std::fgets(buffer.data(), buffer.size(), pipe) != nullptr) out += buffer.data();
  return ::pclose(pipe) == 0 ? out : std::string();
}

bool CanLoad(const char* library) {
  void* handle = ::dlopen(library, RTLD_LAZY | RTLD_LOCAL);
  if (handle == nullptr) return false;
  ::dlclose(handle);
  return true;
}

// --- CPU ---

std::vector<int> AffinityCores() {
  std::vector<int> cores;
  cpu_set_t set;
  CPU_ZERO(&set);
  if (::sched_getaffinity(0, sizeof(set), &set) != 0) return cores;
  for (int i = 0; i < CPU_SETSIZE; ++i) {
    if (CPU_ISSET(i, &set)) cores.push_back(i);
  }
  return cores;
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

Json CpuReport() {
  std::string model = FieldOf("/proc/cpuinfo", "model name");
  if (model.empty()) model = FieldOf("/proc/cpuinfo", "CPU part");
  std::set<std::string> flags;
  std::string text = FieldOf("/proc/cpuinfo", "flags");
  if (text.empty()) text = FieldOf("/proc/cpuinfo", "Features");
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find(' ', at), text.size());
    flags.insert(text.substr(at, end - at));
    at = end + 1;
  }
  Json features = Json::array();
  for (const char* name : {"avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512_vnni", "avx512_vbmi",
                           "avx512_bf16", "amx_tile", "amx_bf16", "amx_int8", "asimd", "bf16", "i8mm", "sve"}) {
    if (flags.contains(name)) features.push_back(name);
  }
  Json paths = Json::array();
  for (const CpuIsa isa : SupportedCpuIsas()) paths.push_back(std::string(CpuIsaName(isa)));
  const std::vector<int> cores = AffinityCores();
  return Json{{"model", Escape(model)},
              {"cores", std::thread::hardware_concurrency()},
              {"affinity", RangesText(cores)},
              {"available_cores", ThreadPool::NumAvailableCores()},
              {"cgroup_limited", ThreadPool::NumAvailableCores() < static_cast<int>(cores.size())},
              {"features", features},
              {"supported_paths", paths},
              {"path", std::string(CpuIsaName(BestCpuIsa()))}};
}

// --- Memory ---

// Best of several passes over a buffer much larger than the caches, in GB/s; 0 if there is no memory for it.
double MeasureReadBandwidth(int num_threads) {
  ThreadPool pool(num_threads);
  ReadSweep sweep(pool);
  double best = 0;
  for (int pass = 0; pass < 5; ++pass) best = std::max(best, sweep.Pass());
  return best * 1e-9;
}

Json MemoryReport(int num_threads) {
  const MemoryInfo memory = ReadMemoryInfo();
  const double bandwidth = MeasureReadBandwidth(num_threads);
  return Json{{"total_bytes", memory.total_bytes},
              {"available_bytes", memory.available_bytes},
              {"cgroup_limited", memory.is_limited_by_cgroup},
              {"read_gb_per_s", std::round(bandwidth * 100) / 100},
              {"read_threads", num_threads},
              {"huge_pages", ReadLineOf("/sys/kernel/mm/transparent_hugepage/enabled")}};
}

// --- Disks ---

fs::path ExistingParent(fs::path path) {
  std::error_code error;
  while (!path.empty() && !fs::exists(path, error)) {
    if (path == path.parent_path()) break;
    path = path.parent_path();
  }
  return path.empty() ? fs::path(".") : path;
}

// Mount point and file system type of the longest mount that holds `path`.
std::pair<std::string, std::string> MountOf(const fs::path& path) {
  std::ifstream file("/proc/self/mounts");
  std::error_code error;
  const std::string real = fs::canonical(path, error).string();
  std::pair<std::string, std::string> best;
  for (std::string line; std::getline(file, line);) {
    const size_t first = line.find(' ');
    const size_t second = line.find(' ', first + 1);
    const size_t third = line.find(' ', second + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string mount = line.substr(first + 1, second - first - 1);
    const bool holds = mount == "/" || real == mount || real.starts_with(mount + "/");
    if (holds && mount.size() >= best.first.size()) best = {mount, line.substr(second + 1, third - second - 1)};
  }
  return best;
}

Json DiskReport(const Environment& environment) {
  Json disks = Json::array();
  const std::map<std::string, std::string> places = {
      {"hub cache", hub::HubCacheDir(environment)},
      {"temporary files", environment.GetNonEmpty("TMPDIR").value_or("/tmp")},
      {"working directory", "."},
  };
  for (const auto& [purpose, path] : places) {
    struct statvfs st {};
    const fs::path existing = ExistingParent(path);
    if (::statvfs(existing.c_str(), &st) != 0) continue;
    const auto [mount, type] = MountOf(existing);
    disks.push_back({{"purpose", purpose},
                     {"path", Escape(path)},
                     {"mount", Escape(mount)},
                     {"filesystem", Escape(type)},
                     {"total_bytes", static_cast<int64_t>(st.f_blocks) * static_cast<int64_t>(st.f_frsize)},
                     {"free_bytes", static_cast<int64_t>(st.f_bavail) * static_cast<int64_t>(st.f_frsize)},
                     {"exists", existing == fs::path(path)}});
  }
  return disks;
}

// --- Accelerators ---

// Graphics and accelerator functions on the PCI bus of one vendor.
int CountPciDevices(const std::string& vendor, std::initializer_list<std::string_view> class_prefixes) {
  int count = 0;
  std::error_code error;
  for (fs::directory_iterator it("/sys/bus/pci/devices", error), end; !error && it != end; it.increment(error)) {
    const std::string device_class = ReadLineOf((it->path() / "class").string());
    const bool matches = std::any_of(class_prefixes.begin(), class_prefixes.end(),
                                     [&](std::string_view prefix) { return device_class.starts_with(prefix); });
    if (matches && ReadLineOf((it->path() / "vendor").string()) == vendor) ++count;
  }
  return count;
}

Json GpuReport() {
  Json gpus = Json::array();
  const std::string text =
      OutputOf("command -v nvidia-smi >/dev/null 2>&1 && timeout 10 nvidia-smi --query-gpu=name,memory.total,driver_version "
               "--format=csv,noheader 2>/dev/null");
  size_t at = 0;
  while (at < text.size()) {
    const size_t end = std::min(text.find('\n', at), text.size());
    const std::string line = text.substr(at, end - at);
    at = end + 1;
    const size_t first = line.find(", ");
    const size_t second = line.find(", ", first + 2);
    if (first == std::string::npos || second == std::string::npos) continue;
    gpus.push_back({{"vendor", "nvidia"},
                    {"name", Escape(line.substr(0, first))},
                    {"memory", Escape(line.substr(first + 2, second - first - 2))},
                    {"driver", Escape(line.substr(second + 2))}});
  }
  if (gpus.empty()) {
    std::error_code error;
    for (fs::directory_iterator it("/proc/driver/nvidia/gpus", error), end; !error && it != end; it.increment(error)) {
      gpus.push_back({{"vendor", "nvidia"}, {"name", Escape(FieldOf((it->path() / "information").string(), "Model"))}});
    }
  }
  for (int i = 0; i < 64 && fs::exists(fmt::format("/dev/davinci{}", i)); ++i) {
    gpus.push_back({{"vendor", "ascend"}, {"name", fmt::format("davinci{}", i)}});
  }
  return gpus;
}

// --- Libraries ---

Json LibraryReport() {
  Json libraries = Json::array();
  const auto add = [&](const char* name, const std::string& version, const char* used_for) {
    libraries.push_back({{"name", name}, {"version", version}, {"used_for", used_for}, {"found", true}});
  };
  add("fmt", fmt::format("{}.{}.{}", FMT_VERSION / 10000, FMT_VERSION / 100 % 100, FMT_VERSION % 100), "formatting");
  add("spdlog", fmt::format("{}.{}.{}", SPDLOG_VER_MAJOR, SPDLOG_VER_MINOR, SPDLOG_VER_PATCH), "logging");
  add("nlohmann-json",
      fmt::format("{}.{}.{}", NLOHMANN_JSON_VERSION_MAJOR, NLOHMANN_JSON_VERSION_MINOR, NLOHMANN_JSON_VERSION_PATCH), "JSON");
  add("OpenSSL", OpenSSL_version(OPENSSL_VERSION_STRING), "hashes");
  struct Optional {
    const char* name;
    const char* file;
    const char* used_for;
  };
  for (const Optional& one : {Optional{"CUDA driver", "libcuda.so.1", "NVIDIA devices"},
                              Optional{"Ascend runtime", "libascendcl.so", "Ascend devices"}}) {
    libraries.push_back({{"name", one.name}, {"version", ""}, {"used_for", one.used_for}, {"found", CanLoad(one.file)}});
  }
  return libraries;
}

// --- What is missing ---

void AddMissing(Json& missing, std::string what, std::string why, std::string fix) {
  missing.push_back({{"what", std::move(what)}, {"why", std::move(why)}, {"fix", std::move(fix)}});
}

Json MissingReport(const Json& report) {
  Json missing = Json::array();
  const std::vector<std::string> built = backends::AvailableBackends();
  const auto has_backend = [&](const char* name) { return std::find(built.begin(), built.end(), name) != built.end(); };
  const int num_nvidia = CountPciDevices("0x10de", {"0x0300", "0x0302"});
  const bool driver_runs = fs::exists("/proc/driver/nvidia/version");
  bool has_gpu = false;
  for (const Json& gpu : report["gpus"]) has_gpu = has_gpu || gpu["vendor"] == "nvidia";
  if (num_nvidia > 0 && !driver_runs && !has_gpu) {
    AddMissing(missing, "NVIDIA driver", fmt::format("{} NVIDIA device(s) on the bus, but no driver is loaded", num_nvidia),
               "sudo apt-get install nvidia-driver");
  }
  if (has_gpu && !has_backend("cuda")) {
    AddMissing(missing, "CUDA backend", "an NVIDIA device is present, but this program was built for the CPU",
               "DEEPINFER_ACCELERATOR=nvidia ./build.sh");
  }
  if (CountPciDevices("0x19e5", {"0x1200"}) > 0 && !has_backend("ascend")) {
    AddMissing(missing, "Ascend backend", "an Ascend device is present, but this program was built for the CPU",
               "DEEPINFER_ACCELERATOR=ascend ./build.sh");
  }
  if (report["demo_model"]["path"].is_null()) {
    AddMissing(missing, "demo model", "the embedded model is not beside the program", "reinstall deepinfer, or use --model DIR");
  }
  if (report["cpu"]["path"] == "scalar") {
    AddMissing(missing, "vector instructions", "this processor has no AVX2 with FMA, so the slow scalar path runs",
               "use a machine with AVX2 or AVX-512");
  }
  return missing;
}

// --- Text ---

class TextReport {
 public:
  explicit TextReport(Output& out) : out_(out) {}
  void Row(std::string_view name, const std::string& value) { out_.Line(fmt::format("{:<12} {}", name, value)); }
  void More(const std::string& value) { out_.Line(fmt::format("{:<12} {}", "", value)); }

 private:
  Output& out_;
};

std::string Joined(const Json& list) {
  std::vector<std::string> words;
  for (const Json& one : list) words.push_back(one.get<std::string>());
  return words.empty() ? "none" : fmt::format("{}", fmt::join(words, " "));
}

void PrintText(const Json& report, Output& out) {
  TextReport text(out);
  const auto str = [](const Json& value) { return value.get<std::string>(); };
  text.Row("deepinfer", fmt::format("{} (commit {}), backends: {}", str(report["version"]), str(report["commit"]), Joined(report["backends"])));
  text.Row("system", str(report["system"]));
  const Json& cpu = report["cpu"];
  text.Row("cpu", str(cpu["model"]));
  text.More(fmt::format("{} cores, {} usable here (affinity {}{})", cpu["cores"].get<int>(), cpu["available_cores"].get<int>(),
                        str(cpu["affinity"]), cpu["cgroup_limited"].get<bool>() ? ", limited by the control group" : ""));
  text.More(fmt::format("features: {}", Joined(cpu["features"])));
  text.More(fmt::format("kernels: {} (possible: {})", str(cpu["path"]), Joined(cpu["supported_paths"])));
  const Json& memory = report["memory"];
  text.Row("memory", fmt::format("{} in all, {} available{}", FormatBytes(memory["total_bytes"].get<int64_t>()),
                                 FormatBytes(memory["available_bytes"].get<int64_t>()),
                                 memory["cgroup_limited"].get<bool>() ? " (limited by the control group)" : ""));
  text.More(fmt::format("reads {:.1f} GB/s with {} threads", memory["read_gb_per_s"].get<double>(), memory["read_threads"].get<int>()));
  bool first = true;
  for (const Json& disk : report["disks"]) {
    text.Row(first ? "disks" : "", fmt::format("{}: {} ({} on {}), {} free of {}", str(disk["purpose"]), str(disk["path"]),
                                               str(disk["filesystem"]), str(disk["mount"]), FormatBytes(disk["free_bytes"].get<int64_t>()),
                                               FormatBytes(disk["total_bytes"].get<int64_t>())));
    first = false;
  }
  first = true;
  for (const Json& gpu : report["gpus"]) {
    text.Row(first ? "gpus" : "", fmt::format("{} {}{}{}", str(gpu["vendor"]), str(gpu["name"]),
                                              gpu.contains("memory") ? ", " + str(gpu["memory"]) : "",
                                              gpu.contains("driver") ? ", driver " + str(gpu["driver"]) : ""));
    first = false;
  }
  if (first) text.Row("gpus", "none");
  first = true;
  for (const Json& library : report["libraries"]) {
    text.Row(first ? "libraries" : "", fmt::format("{} {} ({})", str(library["name"]),
                                                   library["found"].get<bool>() ? str(library["version"]) : "not found",
                                                   str(library["used_for"])));
    first = false;
  }
  const Json& demo = report["demo_model"]["path"];
  text.Row("models", fmt::format("demo: {}", demo.is_null() ? "not found" : str(demo)));
  for (const Json& model : report["hub_models"]) text.More("hub cache: " + str(model));
  first = true;
  for (const Json& one : report["missing"]) {
    text.Row(first ? "missing" : "", fmt::format("{}: {}; {}", str(one["what"]), str(one["why"]), str(one["fix"])));
    first = false;
  }
  if (first) text.Row("missing", "nothing");
}

Json HubModels(const Environment& environment) {
  Json models = Json::array();
  std::error_code error;
  for (fs::directory_iterator it(hub::HubCacheDir(environment), error), end; !error && it != end; it.increment(error)) {
    std::string name = it->path().filename().string();
    if (!name.starts_with("models--") || !fs::exists(it->path() / "snapshots")) continue;
    name = name.substr(8);
    const size_t dashes = name.find("--");
    if (dashes == std::string::npos) continue;
    models.push_back(Escape(fmt::format("{}/{}", name.substr(0, dashes), name.substr(dashes + 2))));
  }
  return models;
}

Status RunDoctor(Invocation& invocation) {
  utsname system{};
  ::uname(&system);
  const int num_threads =
      invocation.config.model.threads > 0 ? static_cast<int>(invocation.config.model.threads) : ThreadPool::NumAvailableCores();
  const Result<std::string> demo = hub::ResolveModelDir("demo", {.environment = invocation.environment, .binary_dir = {}});
  Json report = {{"version", Version()},
                 {"commit", Commit()},
                 {"backends", backends::AvailableBackends()},
                 {"system", fmt::format("{} {} {}", system.sysname, system.release, system.machine)},
                 {"cpu", CpuReport()},
                 {"memory", MemoryReport(num_threads)},
                 {"disks", DiskReport(invocation.environment)},
                 {"gpus", GpuReport()},
                 {"libraries", LibraryReport()},
                 {"demo_model", {{"path", demo.ok() ? Json(*demo) : Json(nullptr)}}},
                 {"hub_models", HubModels(invocation.environment)}};
  report["missing"] = MissingReport(report);
  if (invocation.config.output.json) {
    invocation.out.Line(DumpJson(report));
  } else {
    PrintText(report, invocation.out);
  }
  return Status::Ok();
}

}  // namespace

Command DoctorCommand() {
  return {.name = "doctor",
          .summary = "what this machine offers, what is missing and the command that installs it",
          .usage = "",
          .run = RunDoctor,
          .arg_choices = {},
          .details = ""};
}

}  // namespace deepinfer::cli
