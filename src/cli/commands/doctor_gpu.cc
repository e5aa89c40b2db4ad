// SPDX-License-Identifier: Apache-2.0
#include "cli/commands/doctor_gpu.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <filesystem>

#include <fmt/format.h>

#include "backends/registry.h"
#include "cli/commands/doctor_machine.h"
#include "core/escape.h"
#include "core/progress.h"

namespace deepinfer::cli {

namespace {

namespace fs = std::filesystem;

// Output of a fixed command line, at most 64 KiB; "" when it fails.
std::string OutputOf(const char* command) {
  std::FILE* pipe = ::popen(command, "r");
  if (pipe == nullptr) return {};
  std::string out;
  std::array<char, 4096> buffer{};
  while (out.size() < 65536 && std::fgets(buffer.data(), buffer.size(), pipe) != nullptr) out += buffer.data();
  return ::pclose(pipe) == 0 ? out : std::string();
}

// GPUs without the backend: as the driver's tools and files name them.
Json SeenByDriver() {
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

}  // namespace

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

Json GpuReport(std::string_view cuda_plugin) {
  Json seen = SeenByDriver();
  const auto listed = backends::ListGpus(cuda_plugin);
  if (!listed.ok()) return {{"gpus", std::move(seen)}, {"nvidia_problem", listed.status().message()}};
  Json gpus = Json::array();
  // The driver's tools number the GPUs in another order perhaps, but there is one driver.
  std::string driver;
  for (const Json& gpu : seen) {
    if (gpu["vendor"] != "nvidia") gpus.push_back(gpu);
    if (gpu.contains("driver")) driver = gpu["driver"].get<std::string>();
  }
  for (size_t i = 0; i < listed->size(); ++i) {
    const backends::GpuInfo& gpu = (*listed)[i];
    gpus.push_back({{"vendor", "nvidia"},
                    {"index", i},
                    {"name", Escape(gpu.name)},
                    {"capability", fmt::format("{}.{}", gpu.capability / 10, gpu.capability % 10)},
                    {"memory_bytes", gpu.memory_bytes},
                    {"free_bytes", gpu.free_bytes >= 0 ? Json(gpu.free_bytes) : Json(nullptr)},
                    {"has_code", gpu.is_supported}});
    if (!driver.empty()) gpus.back()["driver"] = driver;
  }
  return {{"gpus", std::move(gpus)}, {"nvidia_problem", nullptr}};
}

void AddGpuFit(Json& gpus, int64_t needed_bytes) {
  for (Json& gpu : gpus) {
    if (!gpu.contains("free_bytes") || gpu["free_bytes"].is_null()) continue;
    gpu["needed_bytes"] = needed_bytes;
    gpu["fits"] = needed_bytes <= gpu["free_bytes"].get<int64_t>();
  }
}

std::vector<std::string> GpuLines(const Json& gpus, const Json& nvidia_problem, const std::string& model) {
  const auto str = [](const Json& value) { return value.get<std::string>(); };
  std::vector<std::string> lines;
  for (const Json& gpu : gpus) {
    const std::string driver = gpu.contains("driver") ? ", driver " + str(gpu["driver"]) : "";
    if (!gpu.contains("capability")) {
      lines.push_back(fmt::format("{} {}{}{}", str(gpu["vendor"]), str(gpu["name"]), gpu.contains("memory") ? ", " + str(gpu["memory"]) : "", driver));
      continue;
    }
    lines.push_back(fmt::format("cuda:{} {}, {}, compute capability {}{}: {}", gpu["index"].get<int>(), str(gpu["name"]),
                                FormatBytes(gpu["memory_bytes"].get<int64_t>()), str(gpu["capability"]), driver,
                                gpu["has_code"].get<bool>() ? "this build has code for it" : "this build has no code for it"));
    if (gpu.contains("fits")) {
      lines.push_back(fmt::format("{}: needs {} there, {} free: {}", model, FormatBytes(gpu["needed_bytes"].get<int64_t>()),
                                  FormatBytes(gpu["free_bytes"].get<int64_t>()), gpu["fits"].get<bool>() ? "fits" : "does not fit"));
    }
  }
  if (!nvidia_problem.is_null()) {
    lines.push_back((gpus.empty() ? "none usable: " : "NVIDIA: ") + str(nvidia_problem));
  } else if (gpus.empty()) {
    lines.push_back("none: the NVIDIA backend is here, but the driver shows no GPU");
  }
  return lines;
}

}  // namespace deepinfer::cli
