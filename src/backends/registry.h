// SPDX-License-Identifier: Apache-2.0
//
// Creates a device by name. The only place that names the backends.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/status.h"
#include "core/threads.h"
#include "device/device.h"

namespace deepinfer::backends {

struct DeviceOptions {
  int num_threads = 0;     // 0 = one per available core
  std::string cpu_isa;     // "", "auto", "scalar", "avx2" or "avx512": the CPU kernels to use; empty = the best one
  CpuPinning cpu_pinning = CpuPinning::kAuto;
  std::string cuda_plugin;  // file of the NVIDIA backend; empty = looked for beside the program and its libraries
  // What the ops will be called with: a device may keep weights in a form for the released arithmetic alone.
  bool release_numerics = true;
  bool batch_invariant = true;  // off: a device may sum in an order that depends on the number of rows of a call
};

// name: "cpu", "cuda", "cuda:N", or "auto" (a GPU where the plug-in, the driver and a fitting GPU are there, else the CPU).
Result<std::shared_ptr<device::Device>> CreateDevice(std::string_view name, const DeviceOptions& options = {});

// What this program and machine can run on: "cpu", and "cuda" where its plug-in is found.
std::vector<std::string> AvailableBackends();

// A GPU as the plug-in sees it.
struct GpuInfo {
  std::string name;
  int capability = 0;  // 90 = 9.0
  int64_t memory_bytes = 0;
  int64_t free_bytes = -1;  // -1: not known
  bool is_supported = false;
};
// Errors: no plug-in, another version of it, no driver.
Result<std::vector<GpuInfo>> ListGpus(std::string_view cuda_plugin = {});

}  // namespace deepinfer::backends
