// SPDX-License-Identifier: Apache-2.0
//
// Starting kernels so that one is set up while the one before it still runs (programmatic dependent launch). Every kernel that is
// started like this begins with WaitForEarlier(), before it reads what kernels write and before it writes. Weights and uploaded
// metadata may be read before.
#pragma once

#include <cuda_runtime.h>

#include <utility>

#include "backends/cuda/kernels/launch.h"

namespace deepinfer::cuda {

__device__ __forceinline__ void WaitForEarlier() {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
  asm volatile("griddepcontrol.wait;" ::: "memory");
}

// The same without letting the next kernel begin: what this one writes may be read by later ones before they wait (uploads).
__device__ __forceinline__ void WaitForEarlierAlone() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

template <typename... Params, typename... Args>
void Start(void (*kernel)(Params...), dim3 grid, dim3 block, size_t shared_bytes, cudaStream_t stream, Args&&... args) {
  LaunchAsIs(kernel, grid, block, shared_bytes, stream, true, std::forward<Args>(args)...);  // errors are read after the launch
}

// The blocks of a grid's row are a cluster.
template <typename... Params, typename... Args>
void StartCluster(void (*kernel)(Params...), dim3 grid, dim3 block, size_t shared_bytes, cudaStream_t stream, Args&&... args) {
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  cudaLaunchAttribute attributes[2] = {};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim.x = grid.x;
  attributes[1].val.clusterDim.y = attributes[1].val.clusterDim.z = 1;
  config.attrs = attributes;
  config.numAttrs = 2;
  cudaLaunchKernelEx(&config, kernel, std::forward<Args>(args)...);  // errors are read after the launch
}

}  // namespace deepinfer::cuda
