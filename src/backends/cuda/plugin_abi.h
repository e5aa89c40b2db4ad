// SPDX-License-Identifier: Apache-2.0
//
// The seam between the program and the plug-in library of the NVIDIA backend: one C function that returns this table. The
// program checks abi_version before it reads anything else. The device object itself is C++, so program and plug-in must come
// from one build: build_id names the interface both were compiled against.
#pragma once

#include <cstdint>

namespace deepinfer::device {
class Device;
}

namespace deepinfer::cuda {

inline constexpr uint32_t kPluginAbiVersion = 2;
inline constexpr char kPluginFile[] = "libdeepinfer_cuda.so";
inline constexpr char kPluginSymbol[] = "deepinfer_cuda_plugin";
// Changes with every change of device/device.h or device/types.h that moves a virtual function or a field.
inline constexpr char kPluginBuildId[] = "deepinfer-device-3";

struct PluginGpu {
  char name[256];
  int32_t capability;  // 90 = 9.0
  int32_t is_supported;
  int64_t memory_bytes;
  int64_t free_bytes;  // -1: not known, as of a GPU that is not supported
};

// Of PluginOptions::flags: backends::DeviceOptions.
inline constexpr int32_t kReleaseNumerics = 1;
inline constexpr int32_t kBatchInvariant = 2;

struct PluginOptions {
  int32_t gpu;          // index
  int32_t num_threads;  // of the host pool; 0 = one per core
  int32_t cpu_pinning;  // CpuPinning
  int32_t flags;
};

struct PluginTable {
  uint32_t abi_version;
  uint32_t table_bytes;
  const char* build_id;
  // At most `capacity` GPUs; the number of GPUs, or -1 with a line in `error`.
  int32_t (*list_gpus)(PluginGpu* gpus, int32_t capacity, char* error, int32_t error_bytes);
  // Null with a line in `error` when it cannot be made. The caller deletes the device through its base class.
  device::Device* (*create)(const PluginOptions* options, char* error, int32_t error_bytes);
};

}  // namespace deepinfer::cuda
