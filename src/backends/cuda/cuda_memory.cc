// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda/cuda_memory.h"

#include <fmt/format.h>

namespace deepinfer::cuda {

Status CudaError(cudaError_t error, std::string_view what) {
  const std::string line = fmt::format("{}: {} ({})", what, cudaGetErrorString(error), cudaGetErrorName(error));
  return error == cudaErrorMemoryAllocation ? ResourceExhausted(line) : Internal(line);
}

MemoryPool::~MemoryPool() { Trim(); }

void MemoryPool::Trim() {
  cudaStreamSynchronize(stream_);
  for (auto& [bytes, blocks] : free_)
    for (void* block : blocks) cudaFree(block);
  free_.clear();
}

Result<void*> MemoryPool::Allocate(int64_t bytes) {
  const int64_t rounded = Rounded(bytes);
  void* data = nullptr;
  if (auto it = free_.find(rounded); it != free_.end() && !it->second.empty()) {
    data = it->second.back();
    it->second.pop_back();
  } else {
    cudaError_t error = cudaMalloc(&data, static_cast<size_t>(rounded));
    if (error == cudaErrorMemoryAllocation) {
      cudaGetLastError();
      Trim();
      error = cudaMalloc(&data, static_cast<size_t>(rounded));
    }
    if (error != cudaSuccess) {
      cudaGetLastError();
      return CudaError(error, fmt::format("cannot take {} bytes of GPU memory; lower --max-model-len or --num-kv-blocks, or use a larger GPU", rounded));
    }
  }
  if (const cudaError_t error = cudaMemsetAsync(data, 0, static_cast<size_t>(rounded), stream_); error != cudaSuccess)
    return CudaError(error, "cannot clear GPU memory");
  return data;
}

void MemoryPool::Free(void* data, int64_t bytes) {
  const int64_t rounded = Rounded(bytes);
  if (rounded <= kKeepBytes) {
    free_[rounded].push_back(data);
    return;
  }
  cudaStreamSynchronize(stream_);
  cudaFree(data);
}

PinnedRing::~PinnedRing() {
  if (data_ != nullptr) cudaFreeHost(data_);
}

Status PinnedRing::Create(int64_t bytes) {
  void* data = nullptr;
  if (const cudaError_t error = cudaHostAlloc(&data, static_cast<size_t>(bytes), cudaHostAllocDefault); error != cudaSuccess)
    return CudaError(error, "cannot pin host memory; raise the limit of locked memory (ulimit -l)");
  data_ = static_cast<uint8_t*>(data);
  bytes_ = bytes;
  return Status::Ok();
}

uint8_t* PinnedRing::Take(int64_t bytes) {
  const int64_t rounded = (bytes + 15) / 16 * 16;
  if (used_ + rounded > bytes_) return nullptr;
  uint8_t* at = data_ + used_;
  used_ += rounded;
  return at;
}

}  // namespace deepinfer::cuda
