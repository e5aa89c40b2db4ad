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
// `cluster`: neighbouring blocks (in x) that run together.
template <typename... Params, typename... Args>
cudaError_t LaunchClusters(void (*kernel)(Params...), dim3 grid, dim3 block, size_t smem, cudaStream_t stream, bool dependent,
                           int cluster, Args&&... args) {
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = smem;
  config.stream = stream;
  cudaLaunchAttribute attributes[2] = {};
  config.attrs = attributes;
  if (dependent) {
    attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[0].val.programmaticStreamSerializationAllowed = 1;
    config.numAttrs = 1;
  }
  if (cluster > 1) {
    cudaLaunchAttribute& attribute = attributes[config.numAttrs++];
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim.x = static_cast<unsigned>(cluster);
    attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
  }
  return cudaLaunchKernelEx(&config, kernel, std::forward<Args>(args)...);
}
template <typename... Params, typename... Args>
cudaError_t LaunchAsIs(void (*kernel)(Params...), dim3 grid, dim3 block, size_t smem, cudaStream_t stream, bool dependent,
                       Args&&... args) {
  return LaunchClusters(kernel, grid, block, smem, stream, dependent, 1, std::forward<Args>(args)...);
}
// More than 48 KiB of shared memory.
template <typename... Params>
cudaError_t AllowSmem(void (*kernel)(Params...), size_t smem) {
  if (smem <= (48u << 10)) return cudaSuccess;
  return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(smem));
}

// The same, with the opt-in.
template <typename... Params, typename... Args>
cudaError_t Launch(void (*kernel)(Params...), dim3 grid, dim3 block, size_t smem, cudaStream_t stream, bool dependent,
                   Args&&... args) {
  const cudaError_t error = AllowSmem(kernel, smem);
  if (error != cudaSuccess) return error;
  return LaunchAsIs(kernel, grid, block, smem, stream, dependent, std::forward<Args>(args)...);
}

}  // namespace deepinfer::cuda
