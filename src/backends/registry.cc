// SPDX-License-Identifier: Apache-2.0
#include "backends/registry.h"

#include <fmt/format.h>

#include "backends/cpu/cpu_device.h"

namespace deepinfer::backends {

std::vector<std::string> AvailableBackends() { return {"cpu"}; }

Result<std::shared_ptr<device::Device>> CreateDevice(std::string_view name, const DeviceOptions& options) {
  if (name == "cpu" || name == "auto" || name.empty()) {
    DI_ASSIGN_OR_RETURN(auto cpu, cpu::CpuDevice::Create(options.num_threads, options.cpu_isa, options.cpu_pinning));
    return std::shared_ptr<device::Device>(std::move(cpu));
  }
  return InvalidArgument(fmt::format("device \"{}\" is not built in; available: cpu", name));
}

}  // namespace deepinfer::backends
