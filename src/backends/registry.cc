// SPDX-License-Identifier: Apache-2.0
#include "backends/registry.h"

#include <dlfcn.h>

#include <charconv>
#include <filesystem>

#include <fmt/format.h>

#include "backends/cpu/cpu_device.h"
#include "backends/cuda/plugin_abi.h"
#include "core/escape.h"

namespace deepinfer::backends {
namespace {

namespace fs = std::filesystem;

// Folder of the program or library that holds this code.
fs::path OwnFolder() {
  Dl_info info;
  if (dladdr(reinterpret_cast<const void*>(&OwnFolder), &info) == 0 || info.dli_fname == nullptr) return {};
  std::error_code error;
  // The name of a program is what it was called by.
  fs::path path = fs::read_symlink("/proc/self/exe", error);
  if (const fs::path own = fs::canonical(info.dli_fname, error); !error && own.filename().string().find(".so") != std::string::npos) path = own;
  return path.parent_path();
}

std::string FindPlugin(std::string_view given) {
  if (!given.empty()) return std::string(given);
  const fs::path folder = OwnFolder();
  std::error_code error;
  for (const fs::path& place : {folder, folder / "lib", folder / ".." / "lib" / "deepinfer", folder / ".." / "lib"}) {
    if (const fs::path file = place / cuda::kPluginFile; fs::exists(file, error)) return file.string();
  }
  return {};
}

// The plug-in stays loaded: the driver does not like to be taken out of a process.
Result<const cuda::PluginTable*> LoadPlugin(std::string_view given) {
  const std::string file = FindPlugin(given);
  if (file.empty())
    return Unavailable(fmt::format("device cuda needs {}, which is not beside the program; build it with DEEPINFER_ACCELERATOR=nvidia "
                                   "./build.sh, or name it with --cuda-plugin", cuda::kPluginFile));
  void* library = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return Unavailable(fmt::format("the NVIDIA backend cannot be loaded: {}", Escape(dlerror(), 300)));
  using TableFn = const cuda::PluginTable* (*)();
  const auto table_of = reinterpret_cast<TableFn>(dlsym(library, cuda::kPluginSymbol));
  if (table_of == nullptr) return Unavailable(fmt::format("{} is no DeepInfer backend: it has no {}", Escape(file), cuda::kPluginSymbol));
  const cuda::PluginTable* table = table_of();
  if (table->abi_version != cuda::kPluginAbiVersion || table->table_bytes != sizeof(cuda::PluginTable) ||
      std::string_view(table->build_id) != cuda::kPluginBuildId)
    return Unavailable(fmt::format("{} belongs to another version of DeepInfer; build or install both together", Escape(file)));
  return table;
}

// N of "cuda:N".
Result<int> GpuIndex(std::string_view name) {
  if (name == "cuda") return 0;
  const std::string_view digits = name.substr(5);
  int index = -1;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), index);
  if (error != std::errc() || end != digits.data() + digits.size() || index < 0)
    return InvalidArgument(fmt::format("device \"{}\" must be cuda or cuda:N", Escape(name, 64)), "device");
  return index;
}

Result<std::shared_ptr<device::Device>> CreateCuda(int gpu, const DeviceOptions& options) {
  DI_ASSIGN_OR_RETURN(const cuda::PluginTable* table, LoadPlugin(options.cuda_plugin));
  cuda::PluginOptions plugin{};
  plugin.gpu = gpu;
  plugin.num_threads = options.num_threads;
  plugin.cpu_pinning = static_cast<int32_t>(options.cpu_pinning);
  if (options.release_numerics) plugin.flags |= cuda::kReleaseNumerics;
  if (options.batch_invariant) plugin.flags |= cuda::kBatchInvariant;
  char error[512] = {};
  device::Device* made = table->create(&plugin, error, sizeof(error));
  if (made == nullptr) return Unavailable(error);
  return std::shared_ptr<device::Device>(made);
}

}  // namespace

Result<std::vector<GpuInfo>> ListGpus(std::string_view cuda_plugin) {
  DI_ASSIGN_OR_RETURN(const cuda::PluginTable* table, LoadPlugin(cuda_plugin));
  cuda::PluginGpu found[64];
  char error[512] = {};
  const int32_t count = table->list_gpus(found, 64, error, sizeof(error));
  if (count < 0) return Unavailable(error);
  std::vector<GpuInfo> gpus;
  for (int32_t i = 0; i < std::min(count, 64); ++i) gpus.push_back({found[i].name, found[i].capability, found[i].memory_bytes, found[i].free_bytes, found[i].is_supported != 0});
  return gpus;
}

std::vector<std::string> AvailableBackends() {
  std::vector<std::string> backends = {"cpu"};
  if (!FindPlugin({}).empty()) backends.push_back("cuda");
  return backends;
}

Result<std::shared_ptr<device::Device>> CreateDevice(std::string_view name, const DeviceOptions& options) {
  if (name == "cuda" || name.starts_with("cuda:")) {
    DI_ASSIGN_OR_RETURN(const int gpu, GpuIndex(name));
    return CreateCuda(gpu, options);
  }
  if (name == "auto" && (!options.cuda_plugin.empty() || !FindPlugin({}).empty())) {
    if (auto gpus = ListGpus(options.cuda_plugin); gpus.ok()) {
      for (size_t i = 0; i < gpus->size(); ++i) {
        if (!(*gpus)[i].is_supported) continue;
        return CreateCuda(static_cast<int>(i), options);
      }
    }
  }
  if (name == "cpu" || name == "auto" || name.empty()) {
    DI_ASSIGN_OR_RETURN(auto cpu, cpu::CpuDevice::Create(options.num_threads, options.cpu_isa, options.cpu_pinning));
    return std::shared_ptr<device::Device>(std::move(cpu));
  }
  return InvalidArgument(fmt::format("device \"{}\" is not built in; available: {}", Escape(name, 64), fmt::join(AvailableBackends(), ", ")));
}

}  // namespace deepinfer::backends
