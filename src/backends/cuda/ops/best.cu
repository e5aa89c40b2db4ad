// SPDX-License-Identifier: Apache-2.0
//
// The best value of a row and the mass around it: the numbers of the host's sampler (sampling/row_ops.h), bit by bit, so that a
// greedy token and its log probability do not depend on where they were found.
#include <cooperative_groups.h>

#include <algorithm>
#include <bit>
#include <utility>

#include "backends/cuda/ops/launch.h"
#include "backends/cuda/ops/numbers.cuh"
#include "backends/cuda/ops/start.cuh"

namespace deepinfer::cuda {
namespace {

constexpr int kBlocks = 8;  // of a row
constexpr int kThreads = 256;
constexpr int kMaxLanes = 8192;

// sampling/elementary-inl.h
__device__ __forceinline__ float SamplerExp(float x) {
  const float clamped = x < -104.0f ? -104.0f : (x > 89.0f ? 89.0f : x);
  const float shifted = fmaf(clamped, 0x1.715476p+0f, 0x1.8p+23f);
  const float n = shifted - 0x1.8p+23f;
  const int32_t k = __float_as_int(shifted) - 0x4b400000;
  float r = fmaf(n, -0x1.62e400p-1f, clamped);
  r = fmaf(n, -0x1.7f7d1cp-20f, r);
  float p = 0x1.6ac74ep-10f;
  p = fmaf(p, r, 0x1.123de0p-7f);
  p = fmaf(p, r, 0x1.555858p-5f);
  p = fmaf(p, r, 0x1.55548cp-3f);
  p = fmaf(p, r, 0x1.fffffcp-2f);
  const float y = fmaf(p * r, r, r) + 1.0f;
  const int32_t half = k >> 1;
  return y * __int_as_float((half + 127) << 23) * __int_as_float((k - half + 127) << 23);
}

struct Best {
  int32_t key;  // float bits as an integer with the order of the values: NaN is above all
  int32_t id;
};
__device__ __forceinline__ int32_t KeyOf(float x) {
  const int32_t bits = __float_as_int(x);
  return bits ^ ((bits >> 31) & 0x7fffffff);
}
// Of equal values the lower index; both zeros are equal.
__device__ __forceinline__ bool IsBetter(const Best& a, const Best& b) {
  const float x = __int_as_float(a.key ^ ((a.key >> 31) & 0x7fffffff)), y = __int_as_float(b.key ^ ((b.key >> 31) & 0x7fffffff));
  return x == y ? a.id < b.id : a.key > b.key;
}

__global__ void __cluster_dims__(kBlocks, 1, 1) __launch_bounds__(kThreads)
    FindBestKernel(const float* x, int64_t width, int64_t stride, float inverse_temperature, const uint32_t* mask, const uint32_t* const* masks,
                   int num_lanes, device::RowBest* out, int32_t* ids, int64_t ids_stride) {
  const auto cluster = cooperative_groups::this_cluster();
  extern __shared__ float lanes[];  // all lanes in the first block, its own in the others
  __shared__ Best warp_best[kThreads / 32], block_best[kBlocks];
  auto begun = cluster.barrier_arrive();  // memory of a block is there when the block has begun
  WaitForEarlier();
  const int64_t t = blockIdx.y;
  const float* row = x + t * stride;
  if (masks != nullptr) mask = masks[t];
  const auto value = [&](int64_t i) { return mask == nullptr || ((mask[i >> 5] >> (i & 31)) & 1u) != 0 ? row[i] : -INFINITY; };

  Best best{KeyOf(-INFINITY), INT32_MAX};
#pragma unroll 4
  for (int64_t i = blockIdx.x * kThreads + threadIdx.x; i < width; i += kBlocks * kThreads) {
    const Best other{KeyOf(value(i)), static_cast<int32_t>(i)};
    if (IsBetter(other, best)) best = other;
  }
#pragma unroll
  for (int d = 16; d > 0; d >>= 1) {
    const Best other{__shfl_xor_sync(~0u, best.key, d), __shfl_xor_sync(~0u, best.id, d)};
    if (IsBetter(other, best)) best = other;
  }
  if ((threadIdx.x & 31) == 0) warp_best[threadIdx.x >> 5] = best;
  __syncthreads();
  cluster.barrier_wait(std::move(begun));
  if (threadIdx.x < kBlocks) {
    Best all = warp_best[0];
    for (int w = 1; w < kThreads / 32; ++w)
      if (IsBetter(warp_best[w], all)) all = warp_best[w];
    cluster.map_shared_rank(block_best, threadIdx.x)[blockIdx.x] = all;
  }
  cluster.sync();
  best = block_best[0];
#pragma unroll
  for (int b = 1; b < kBlocks; ++b)
    if (IsBetter(block_best[b], best)) best = block_best[b];
  if (ids != nullptr) {
    if (blockIdx.x == 0 && threadIdx.x == 0) ids[t * ids_stride] = best.id;
    return;
  }
  // The sum takes the larger zero where a row's best is one: exp does not see the difference.
  const float max = __int_as_float(best.key ^ ((best.key >> 31) & 0x7fffffff));

  const int per_block = (num_lanes + kBlocks - 1) / kBlocks;
  float* const all_lanes = cluster.map_shared_rank(lanes, 0);
  for (int k = static_cast<int>(threadIdx.x); k < per_block; k += kThreads) {
    const int lane = static_cast<int>(blockIdx.x) * per_block + k;
    if (lane >= num_lanes) break;
    float sum = 0;
#pragma unroll 4
    for (int64_t i = lane; i < width; i += num_lanes) sum += SamplerExp((value(i) - max) * inverse_temperature);
    all_lanes[lane] = sum;
  }
  cluster.sync();
  if (blockIdx.x != 0) return;
  for (int half = num_lanes / 2; half >= 1; half /= 2) {
    for (int k = static_cast<int>(threadIdx.x); k < half; k += kThreads) lanes[k] += lanes[k + half];
    __syncthreads();
  }
  if (threadIdx.x == 0) out[t] = {max, best.id, lanes[0], 0};
}

}  // namespace

void LaunchFindBest(cudaStream_t stream, const device::RowBestArgs& args, const uint32_t* mask, const uint32_t* const* masks, device::RowBest* out) {
  // sampling/draw.h NumLanes
  const int num_lanes = args.width >= kMaxLanes ? 2048 : static_cast<int>(std::bit_ceil(static_cast<uint64_t>(std::max<int64_t>(args.width, 1))));
  Start(FindBestKernel, dim3(kBlocks, static_cast<unsigned>(args.rows)), kThreads, static_cast<size_t>(num_lanes) * sizeof(float), stream, args.x,
        args.width, args.stride, args.inverse_temperature, mask, masks, num_lanes, out, static_cast<int32_t*>(nullptr), int64_t{0});
}

void LaunchMaskedArgMax(cudaStream_t stream, const device::RowBestArgs& args, const uint32_t* mask, const uint32_t* const* masks, int32_t* ids,
                        int64_t ids_stride) {
  Start(FindBestKernel, dim3(kBlocks, static_cast<unsigned>(args.rows)), kThreads, 0, stream, args.x, args.width, args.stride, 1.0f, mask, masks, 0,
        static_cast<device::RowBest*>(nullptr), ids, ids_stride);
}

}  // namespace deepinfer::cuda
