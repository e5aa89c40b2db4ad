// SPDX-License-Identifier: Apache-2.0
//
// The plug-in's one function (plugin_abi.h).
#include <cstdio>
#include <string>

#include <fmt/format.h>

#include "backends/cuda/cuda_device.h"
#include "backends/cuda/ops/launch.h"
#include "backends/cuda/plugin_abi.h"

namespace deepinfer::cuda {
namespace {

constexpr int kLeastCapability = 80;

void Say(std::string_view text, char* error, int32_t error_bytes) {
  if (error_bytes > 0) std::snprintf(error, static_cast<size_t>(error_bytes), "%.*s", static_cast<int>(text.size()), text.data());
}

// Why there is no GPU, as one line.
std::string DriverProblem(cudaError_t status) {
  int driver = 0, runtime = 0;
  cudaDriverGetVersion(&driver);
  cudaRuntimeGetVersion(&runtime);
  if (driver == 0) return "device cuda needs the NVIDIA driver, which is not installed; install it or use --device cpu";
  if (status == cudaErrorInsufficientDriver || driver / 1000 < runtime / 1000)
    return fmt::format("the NVIDIA driver is for CUDA {}.{} but this program needs CUDA {}.{}; update the driver or use --device cpu",
                       driver / 1000, driver % 1000 / 10, runtime / 1000, runtime % 1000 / 10);
  return fmt::format("the NVIDIA driver reports: {}; check nvidia-smi or use --device cpu", cudaGetErrorString(status));
}

// Whether the plug-in holds code for the current GPU.
bool HasCode() { return HasCodeForGpu(); }

int32_t ListGpus(PluginGpu* gpus, int32_t capacity, char* error, int32_t error_bytes) {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status == cudaErrorNoDevice) return 0;
  if (status != cudaSuccess) {
    Say(DriverProblem(status), error, error_bytes);
    return -1;
  }
  for (int i = 0; i < count && i < capacity; ++i) {
    cudaDeviceProp properties;
    if (cudaGetDeviceProperties(&properties, i) != cudaSuccess) continue;
    std::snprintf(gpus[i].name, sizeof(gpus[i].name), "%s", properties.name);
    gpus[i].capability = properties.major * 10 + properties.minor;
    gpus[i].memory_bytes = static_cast<int64_t>(properties.totalGlobalMem);
    gpus[i].is_supported = gpus[i].capability >= kLeastCapability && cudaSetDevice(i) == cudaSuccess && HasCode() ? 1 : 0;
    gpus[i].free_bytes = -1;
    size_t free = 0, total = 0;
    if (gpus[i].is_supported != 0 && cudaMemGetInfo(&free, &total) == cudaSuccess) gpus[i].free_bytes = static_cast<int64_t>(free);
  }
  cudaGetLastError();
  return count;
}

device::Device* Create(const PluginOptions* options, char* error, int32_t error_bytes) {
  int count = 0;
  if (const cudaError_t status = cudaGetDeviceCount(&count); status != cudaSuccess && status != cudaErrorNoDevice) {
    Say(DriverProblem(status), error, error_bytes);
    return nullptr;
  }
  if (options->gpu >= count) {
    Say(count == 0 ? std::string("this machine has no NVIDIA GPU that the driver shows; use --device cpu")
                   : fmt::format("there is no GPU {}; the driver shows 0 to {}", options->gpu, count - 1), error, error_bytes);
    return nullptr;
  }
  cudaDeviceProp properties;
  if (const cudaError_t status = cudaGetDeviceProperties(&properties, options->gpu); status != cudaSuccess || cudaSetDevice(options->gpu) != cudaSuccess) {
    Say(DriverProblem(status), error, error_bytes);
    return nullptr;
  }
  if (!HasCode()) {
    cudaGetLastError();
    Say(fmt::format("GPU {} ({}) has compute capability {}.{}, for which this build has no code; build with ./build.sh --all-archs or use --device cpu",
                    options->gpu, properties.name, properties.major, properties.minor), error, error_bytes);
    return nullptr;
  }
  auto made = CudaDevice::Create({.gpu = options->gpu,
                                  .num_threads = options->num_threads,
                                  .pinning = static_cast<CpuPinning>(options->cpu_pinning),
                                  .release_numerics = (options->flags & kReleaseNumerics) != 0,
                                  .batch_invariant = (options->flags & kBatchInvariant) != 0});
  if (!made.ok()) {
    Say(made.status().message(), error, error_bytes);
    return nullptr;
  }
  return std::move(made).value().release();
}

}  // namespace
}  // namespace deepinfer::cuda

extern "C" __attribute__((visibility("default"))) const deepinfer::cuda::PluginTable* deepinfer_cuda_plugin() {
  using namespace deepinfer::cuda;
  static const PluginTable table = {kPluginAbiVersion, sizeof(PluginTable), kPluginBuildId, ListGpus, Create};
  return &table;
}
