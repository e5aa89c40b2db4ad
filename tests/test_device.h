// SPDX-License-Identifier: Apache-2.0
//
// The device that model and engine tests run on: the CPU, or what DEEPINFER_TEST_DEVICE names (cuda, cuda:N; the plug-in's file in
// DEEPINFER_TEST_CUDA_PLUGIN). The same tests then run on a GPU: tools/gpu_tests.sh.
#pragma once

#include <cstdlib>
#include <memory>
#include <string>

#include "backends/registry.h"

namespace deepinfer {

inline std::string TestDeviceName() {
  const char* name = std::getenv("DEEPINFER_TEST_DEVICE");
  return name != nullptr ? name : "cpu";
}
inline bool TestsRunOnCpu() { return TestDeviceName() == "cpu"; }

inline Result<std::shared_ptr<device::Device>> TestDevice(int num_threads = 0, const std::string& isa = "") {
  backends::DeviceOptions options;
  options.num_threads = num_threads;
  options.cpu_isa = isa;
  if (const char* plugin = std::getenv("DEEPINFER_TEST_CUDA_PLUGIN"); plugin != nullptr) options.cuda_plugin = plugin;
  return backends::CreateDevice(TestDeviceName(), options);
}

}  // namespace deepinfer
