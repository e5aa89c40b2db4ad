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
};

// name: "cpu" or "auto" (the best device of this build and machine).
Result<std::shared_ptr<device::Device>> CreateDevice(std::string_view name, const DeviceOptions& options = {});

std::vector<std::string> AvailableBackends();

}  // namespace deepinfer::backends
