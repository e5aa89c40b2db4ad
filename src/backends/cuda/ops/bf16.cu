// SPDX-License-Identifier: Apache-2.0
//
// bf16 copies of activations that kernels/ reads.
#include <algorithm>

#include "backends/cuda/ops/launch.h"
#include "backends/cuda/ops/numbers.cuh"
#include "backends/cuda/ops/start.cuh"

namespace deepinfer::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kPerThread = 8;

__device__ __forceinline__ uint32_t PairBf16(float a, float b) {
  return __float_as_uint(RoundBf16(a)) >> 16 | (__float_as_uint(RoundBf16(b)) & 0xffff0000u);
}

__device__ __forceinline__ void Load8(const float* from, float* v) {
  const float4 low = *reinterpret_cast<const float4*>(from), high = *reinterpret_cast<const float4*>(from + 4);
  v[0] = low.x, v[1] = low.y, v[2] = low.z, v[3] = low.w, v[4] = high.x, v[5] = high.y, v[6] = high.z, v[7] = high.w;
}

__device__ __forceinline__ void Store8(const float* v, uint16_t* to) {
  *reinterpret_cast<uint4*>(to) = make_uint4(PairBf16(v[0], v[1]), PairBf16(v[2], v[3]), PairBf16(v[4], v[5]), PairBf16(v[6], v[7]));
}

__global__ void __launch_bounds__(kThreads) ToBf16Kernel(F x, int64_t rows, int64_t cols, uint16_t* out) {
  WaitForEarlier();
  const int64_t i = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * kPerThread;
  if (i >= rows * cols) return;
  float v[kPerThread];
  Load8(x.data + i / cols * x.stride + i % cols, v);
  Store8(v, out + i);
}

__global__ void __launch_bounds__(kThreads) FromBf16Kernel(const uint16_t* x, int64_t rows, int64_t cols, F out) {
  WaitForEarlier();
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < rows * cols) out.data[i / cols * out.stride + i % cols] = __uint_as_float(static_cast<uint32_t>(x[i]) << 16);
}

// Thread i: eight channels of the queries, then of the keys.
__global__ void __launch_bounds__(kThreads) AttentionInputsKernel(F query, int64_t rows, int heads, int head_dim, int rope_dim,
                                                                  const float* table, uint16_t* query_out, F keys, uint16_t* keys_out) {
  WaitForEarlier();
  const int64_t width = static_cast<int64_t>(heads) * head_dim;
  int64_t i = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * kPerThread;
  float v[kPerThread];
  if (i < rows * width) {
    const int64_t t = i / width, c = i % width;
    Load8(query.data + t * query.stride + c, v);
    const int in_head = static_cast<int>(c % head_dim) - (head_dim - rope_dim);
    if (table != nullptr && in_head >= 0) {
#pragma unroll
      for (int p = 0; p < kPerThread / 2; ++p) {
        const float cosine = table[t * rope_dim + in_head / 2 + p], sine = table[t * rope_dim + rope_dim / 2 + in_head / 2 + p];
        const float a = v[2 * p], b = v[2 * p + 1];
        v[2 * p] = a * cosine - b * sine;
        v[2 * p + 1] = a * sine + b * cosine;
      }
    }
    Store8(v, query_out + i);
    return;
  }
  i -= rows * width;
  if (i >= rows * head_dim) return;
  Load8(keys.data + i / head_dim * keys.stride + i % head_dim, v);
  Store8(v, keys_out + i);
}

unsigned BlocksOf(int64_t values) { return static_cast<unsigned>((values / kPerThread + kThreads - 1) / kThreads); }

}  // namespace

void LaunchToBf16(cudaStream_t stream, F x, int64_t rows, int64_t cols, uint16_t* out) {
  Start(ToBf16Kernel, BlocksOf(rows * cols), kThreads, 0, stream, x, rows, cols, out);
}

void LaunchFromBf16(cudaStream_t stream, const uint16_t* x, int64_t rows, int64_t cols, F out) {
  Start(FromBf16Kernel, static_cast<unsigned>((rows * cols + kThreads - 1) / kThreads), kThreads, 0, stream, x, rows, cols, out);
}

void LaunchAttentionInputs(cudaStream_t stream, F query, int64_t rows, int heads, int head_dim, int rope_dim, const float* table,
                           uint16_t* query_out, F keys, uint16_t* keys_out) {
  Start(AttentionInputsKernel, BlocksOf(rows * (static_cast<int64_t>(heads) + 1) * head_dim), kThreads, 0, stream, query, rows, heads, head_dim,
        rope_dim, table, query_out, keys, keys_out);
}

}  // namespace deepinfer::cuda
