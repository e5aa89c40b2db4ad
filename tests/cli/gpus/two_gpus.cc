// SPDX-License-Identifier: Apache-2.0
//
// A backend library that lists two GPUs and makes no device: what `doctor` says about them is tested without a driver.
#include <cstdio>

#include "backends/cuda/plugin_abi.h"

namespace {

using deepinfer::cuda::PluginGpu;

int32_t List(PluginGpu* gpus, int32_t capacity, char*, int32_t) {
  const PluginGpu two[] = {{"Test GPU", 90, 1, int64_t{80} << 30, int64_t{79} << 30}, {"Other GPU", 103, 0, int64_t{288} << 30, -1}};
  for (int i = 0; i < 2 && i < capacity; ++i) gpus[i] = two[i];
  return 2;
}

deepinfer::device::Device* Create(const deepinfer::cuda::PluginOptions*, char* error, int32_t error_bytes) {
  std::snprintf(error, static_cast<size_t>(error_bytes), "this backend makes no device");
  return nullptr;
}

}  // namespace

extern "C" __attribute__((visibility("default"))) const deepinfer::cuda::PluginTable* deepinfer_cuda_plugin() {
  using namespace deepinfer::cuda;
  static const PluginTable table = {kPluginAbiVersion, sizeof(PluginTable), kPluginBuildId, List, Create};
  return &table;
}
