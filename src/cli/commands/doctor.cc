// SPDX-License-Identifier: Apache-2.0
//
// doctor: what this machine offers, how fast a model would run on it and what is missing, with the command that installs it.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>

#include <dlfcn.h>
#include <sys/statvfs.h>
#include <sys/utsname.h>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>
#include <openssl/crypto.h>
#include <spdlog/version.h>

#include "backends/registry.h"
#include "cli/commands.h"
#include "cli/commands/doctor_gpu.h"
#include "cli/commands/doctor_machine.h"
#include "cli/commands/doctor_model.h"
#include "cli/input.h"
#include "cli/version.h"
#include "core/escape.h"
#include "core/json.h"
#include "core/progress.h"
#include "core/threads.h"
#include "hub/model_locator.h"
#include "model/released_config.h"

namespace deepinfer::cli {

namespace {

namespace fs = std::filesystem;

bool CanLoad(const char* library) {
  void* handle = ::dlopen(library, RTLD_LAZY | RTLD_LOCAL);
  if (handle == nullptr) return false;
  ::dlclose(handle);
  return true;
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

constexpr int64_t kMemlockWanted = int64_t{1} << 30;

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
  for (const Json& gpu : report["gpus"]) {
    has_gpu = has_gpu || gpu["vendor"] == "nvidia";
    if (gpu.contains("has_code") && !gpu["has_code"].get<bool>()) {
      const std::string capability = gpu["capability"].get<std::string>();
      const bool is_possible = capability == "9.0" || capability == "10.0" || capability == "12.0";
      AddMissing(missing, "GPU code",
                 fmt::format("the NVIDIA backend holds no code for {} (compute capability {})", gpu["name"].get<std::string>(), capability),
                 is_possible ? "DEEPINFER_ACCELERATOR=nvidia ./build.sh --all-archs"
                             : "use --device cpu; there is code for 9.0, 10.0 and 12.0");
    }
  }
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
  if (report["cpu"]["cgroup_limited"].get<bool>()) {
    AddMissing(missing, "cores", "the control group allows fewer cores than the machine has", "start the container with a larger --cpus");
  }
  if (report["memory"]["huge_pages"].get<std::string>().find("[never]") != std::string::npos) {
    AddMissing(missing, "huge pages", "transparent huge pages are off, so weights take more page table walks",
               "echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled");
  }
  const Json& limits = report["limits"];
  if (!limits["io_uring"].get<bool>()) {
    AddMissing(missing, "io_uring", limits["io_uring_why_not"].get<std::string>() + "; threads read files instead",
               "sudo sysctl kernel.io_uring_disabled=0, or in a container a seccomp profile that allows io_uring");
  } else if (!limits["memlock_bytes"].is_null() && limits["memlock_bytes"].get<int64_t>() < kMemlockWanted) {
    AddMissing(missing, "locked memory", fmt::format("RLIMIT_MEMLOCK is {}, so disk reads cannot use registered buffers",
                                                     FormatBytes(limits["memlock_bytes"].get<int64_t>())),
               "ulimit -l unlimited (or LimitMEMLOCK=infinity in the service file)");
  }
  const Json& disk = report["disk_rate"];
  if (disk.contains("error")) {
    AddMissing(missing, "disk rate", disk["error"].get<std::string>(), "name a folder on the disk that shall hold the model: HF_HOME=DIR");
  } else if (!disk["direct"].get<bool>()) {
    AddMissing(missing, "direct reads", "the file system of " + disk["path"].get<std::string>() + " refuses O_DIRECT, so the page cache is read",
               "keep the model on a local disk with ext4 or XFS");
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
  text.More(fmt::format("{} cores, {} socket(s), {} usable here (affinity {}{})", cpu["cores"].get<int>(), cpu["sockets"].get<int>(),
                        cpu["available_cores"].get<int>(), str(cpu["affinity"]),
                        cpu["cgroup_limited"].get<bool>() ? ", limited by the control group" : ""));
  if (cpu["numa_nodes"].size() > 1) {
    for (const Json& node : cpu["numa_nodes"]) text.More(fmt::format("NUMA node {}: processors {}", node["id"].get<int>(), str(node["cpus"])));
  }
  text.More(fmt::format("features: {}", Joined(cpu["features"])));
  text.More(fmt::format("kernels: {} (possible: {})", str(cpu["path"]), Joined(cpu["supported_paths"])));
  for (const Json& path : cpu["paths_not_used"]) text.More(fmt::format("not {}: the processor lacks {}", str(path["path"]), Joined(path["lacks"])));
  text.More(fmt::format("multiplies and adds at {:.0f} GFLOP/s with {} threads", cpu["arithmetic_gflop_per_s"].get<double>(), cpu["threads"].get<int>()));
  const Json& memory = report["memory"];
  text.Row("memory", fmt::format("{} in all, {} available{}", FormatBytes(memory["total_bytes"].get<int64_t>()),
                                 FormatBytes(memory["available_bytes"].get<int64_t>()),
                                 memory["cgroup_limited"].get<bool>()
                                     ? fmt::format(" (the control group allows {})", FormatBytes(memory["limit_bytes"].get<int64_t>()))
                                     : ""));
  text.More(fmt::format("reads {:.1f} GB/s with 1 thread, {:.1f} with {}", memory["read_gb_per_s_1_thread"].get<double>(),
                        memory["read_gb_per_s"].get<double>(), memory["read_threads"].get<int>()));
  const Json& limits = report["limits"];
  text.More(fmt::format("huge pages: {}; lockable: {}", memory["huge_pages"].get<std::string>().empty() ? "unknown" : str(memory["huge_pages"]),
                        limits["memlock_bytes"].is_null() ? "unlimited" : FormatBytes(limits["memlock_bytes"].get<int64_t>())));
  bool first = true;
  for (const Json& disk : report["disks"]) {
    text.Row(first ? "disks" : "", fmt::format("{}: {} ({} on {}), {} free of {}", str(disk["purpose"]), str(disk["path"]),
                                               str(disk["filesystem"]), str(disk["mount"]), FormatBytes(disk["free_bytes"].get<int64_t>()),
                                               FormatBytes(disk["total_bytes"].get<int64_t>())));
    first = false;
  }
  const Json& rate = report["disk_rate"];
  if (!rate.contains("error")) {
    text.More(fmt::format("{} reads {:.2f} GB/s in order, {:.2f} GB/s at random (1 MiB pieces, {}, {}{})", str(rate["purpose"]),
                          rate["sequential_gb_per_s"].get<double>(), rate["random_gb_per_s"].get<double>(), str(rate["reader"]),
                          rate["direct"].get<bool>() ? "past the page cache" : "through the page cache",
                          rate["temporary_file"].get<bool>() ? ", a temporary file" : ""));
  }
  text.More(fmt::format("io_uring: {}", limits["io_uring"].get<bool>() ? "yes" : "no, " + str(limits["io_uring_why_not"])));
  first = true;
  for (const std::string& line : GpuLines(report["gpus"], report["nvidia_problem"], str(report["prediction"]["model"]))) {
    text.Row(first ? "gpus" : "", line);
    first = false;
  }
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
  for (const std::string& line : PredictionLines(report["prediction"])) {
    text.Row(first ? "prediction" : "", line);
    first = false;
  }
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

// The model that --model names, or the released one.
Result<Json> Prediction(const Invocation& invocation, const Json& report) {
  const auto rate = [](const Json& value) { return value.is_number() ? value.get<double>() * 1e9 : 0.0; };
  const model::MachineRates rates{.memory_bytes_per_s = rate(report["memory"]["read_gb_per_s"]),
                                  .flop_per_s = rate(report["cpu"]["arithmetic_gflop_per_s"]),
                                  .disk_bytes_per_s = rate(report["disk_rate"].value("random_gb_per_s", Json(0)))};
  const auto available = report["memory"]["available_bytes"].get<int64_t>();
  if (!invocation.sources.IsSet("model")) {
    DI_ASSIGN_OR_RETURN(const model::ModelConfig config, model::ModelConfig::FromJson(model::ReleasedConfigJson(), "the released model"));
    return PredictionReport(config, "the released model", rates, available);
  }
  DI_ASSIGN_OR_RETURN(const std::string dir, ModelDir(invocation));
  DI_ASSIGN_OR_RETURN(const model::ModelConfig config, model::ModelConfig::Load(dir));
  return PredictionReport(config, Escape(invocation.config.model.model), rates, available);
}

Status RunDoctor(Invocation& invocation) {
  utsname system{};
  ::uname(&system);
  const int num_threads =
      invocation.config.model.threads > 0 ? static_cast<int>(invocation.config.model.threads) : ThreadPool::NumAvailableCores();
  const Result<std::string> demo = hub::ResolveModelDir("demo", {.environment = invocation.environment, .binary_dir = {}});
  const bool has_model = invocation.sources.IsSet("model");
  std::string folder = hub::HubCacheDir(invocation.environment);
  if (has_model) {
    DI_ASSIGN_OR_RETURN(folder, ModelDir(invocation));
  }
  Json accelerators = GpuReport(invocation.config.model.cuda_plugin);
  Json report = {{"version", Version()},
                 {"commit", Commit()},
                 {"backends", backends::AvailableBackends()},
                 {"system", fmt::format("{} {} {}", system.sysname, system.release, system.machine)},
                 {"cpu", CpuReport(num_threads)},
                 {"memory", MemoryReport(num_threads)},
                 {"limits", LimitsReport()},
                 {"disks", DiskReport(invocation.environment)},
                 {"disk_rate", DiskRateReport(has_model ? "model" : "hub cache", ExistingParent(folder).string())},
                 {"gpus", std::move(accelerators["gpus"])},
                 {"nvidia_problem", std::move(accelerators["nvidia_problem"])},
                 {"libraries", LibraryReport()},
                 {"demo_model", {{"path", demo.ok() ? Json(*demo) : Json(nullptr)}}},
                 {"hub_models", HubModels(invocation.environment)}};
  DI_ASSIGN_OR_RETURN(report["prediction"], Prediction(invocation, report));
  AddGpuFit(report["gpus"], report["prediction"]["needed_bytes_gpu"].get<int64_t>());
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
          .summary = "what this machine offers, how fast it is, and what is missing with the command that installs it",
          .usage = "",
          .run = RunDoctor,
          .arg_choices = {},
          .details = ""};
}

}  // namespace deepinfer::cli
