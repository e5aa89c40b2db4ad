// SPDX-License-Identifier: Apache-2.0
//
// Memory of one GPU: blocks that are kept for reuse by size, and pinned host memory through which small uploads and all
// downloads go. One thread.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <map>
#include <vector>

#include "core/status.h"

namespace deepinfer::cuda {

// "cannot do WHAT: the driver's words".
Status CudaError(cudaError_t error, std::string_view what);

// Blocks are rounded up to 512 bytes; freed ones of at most kKeepBytes wait for the next allocation of their size. The order of
// the stream makes reuse safe.
class MemoryPool {
 public:
  explicit MemoryPool(cudaStream_t stream) : stream_(stream) {}
  ~MemoryPool();
  // Zeroed in stream order.
  Result<void*> Allocate(int64_t bytes);
  void Free(void* data, int64_t bytes);
  static int64_t Rounded(int64_t bytes) { return (bytes > 0 ? bytes + 511 : 512) / 512 * 512; }

 private:
  static constexpr int64_t kKeepBytes = int64_t{256} << 20;
  void Trim();

  cudaStream_t stream_;
  std::map<int64_t, std::vector<void*>> free_;
};

// A ring of pinned memory that the GPU can read. Space is free again after Reset(), which the owner calls when the stream is idle.
class PinnedRing {
 public:
  ~PinnedRing();
  Status Create(int64_t bytes);
  int64_t bytes() const { return bytes_; }
  // Null when what is left is too small.
  uint8_t* Take(int64_t bytes);
  void Reset() { used_ = 0; }

 private:
  uint8_t* data_ = nullptr;
  int64_t bytes_ = 0;
  int64_t used_ = 0;
};

}  // namespace deepinfer::cuda
