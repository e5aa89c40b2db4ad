// SPDX-License-Identifier: Apache-2.0
//
// Host side of launches: properties of the current device, shared-memory opt-in, programmatic dependent launch.
#pragma once

#include <cuda_runtime.h>

#include <utility>

namespace deepinfer::cuda {

inline int NumMultiprocessors() {
  static const int count = [] {
    int device = 0, n = 0;
    if (cudaGetDevice(&device) != cudaSuccess) return 1;
    if (cudaDeviceGetAttribute(&n, cudaDevAttrMultiProcessorCount, device) != cudaSuccess) return 1;
    return n;
  }();
  return count;
}

// `dependent`: the kernel may start while the one before it on the stream still runs; it waits itself (griddepcontrol).
template <typename... Params, typename... Args>
cudaError_t LaunchAsIs(void (*kernel)(Params...), dim3 grid, dim3 block, size_t smem, cudaStream_t stream, bool dependent,
                       Args&&... args) {
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = smem;
  config.stream = stream;
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  config.attrs = &attribute;
  config.numAttrs = dependent ? 1 : 0;
  return cudaLaunchKernelEx(&config, kernel, std::forward<Args>(args)...);
}

// The same, with the opt-in that more than 48 KiB of shared memory need.
template <typename... Params, typename... Args>
cudaError_t Launch(void (*kernel)(Params...), dim3 grid, dim3 block, size_t smem, cudaStream_t stream, bool dependent,
                   Args&&... args) {
  if (smem > (48u << 10)) {
    const cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(smem));
    if (error != cudaSuccess) return error;
  }
  return LaunchAsIs(kernel, grid, block, smem, stream, dependent, std::forward<Args>(args)...);
}

}  // namespace deepinfer::cuda
