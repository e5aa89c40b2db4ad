// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda/ops/launch.h"
#include "backends/cuda/ops/start.cuh"

namespace deepinfer::cuda {
namespace {

__global__ void UploadKernel(const __grid_constant__ UploadList list) {
  WaitForEarlierAlone();
  const UploadPiece& piece = list.pieces[blockIdx.x];
  const int64_t words = piece.bytes / 4;
  auto* to = static_cast<uint32_t*>(piece.to);
  const auto* from = static_cast<const uint32_t*>(piece.host_from);
  for (int64_t i = threadIdx.x; i < words; i += blockDim.x) to[i] = from[i];
  for (int64_t i = words * 4 + threadIdx.x; i < piece.bytes; i += blockDim.x)
    static_cast<uint8_t*>(piece.to)[i] = static_cast<const uint8_t*>(piece.host_from)[i];
}

constexpr int kDownloadThreads = 128;

__global__ void DownloadKernel(uint4* to, const uint4* from, int64_t count) {
  WaitForEarlier();
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kDownloadThreads + threadIdx.x;
  if (i < count) to[i] = from[i];
}

}  // namespace

void LaunchUploads(cudaStream_t stream, const UploadList& list) {
  if (list.count > 0) Start(UploadKernel, list.count, 256, 0, stream, list);
}

void LaunchDownload(cudaStream_t stream, void* to, const void* from, int64_t bytes) {
  const int64_t count = bytes / 16;
  Start(DownloadKernel, static_cast<unsigned>((count + kDownloadThreads - 1) / kDownloadThreads), kDownloadThreads, 0, stream, static_cast<uint4*>(to),
        static_cast<const uint4*>(from), count);
}

bool HasCodeForGpu() {
  cudaFuncAttributes attributes;
  const bool is_there = cudaFuncGetAttributes(&attributes, UploadKernel) == cudaSuccess;
  cudaGetLastError();
  return is_there;
}

}  // namespace deepinfer::cuda
