// SPDX-License-Identifier: Apache-2.0
//
// Hyper-connections at the released width: rows spread over a cluster of blocks, so that a step of one row is not the work of one
// multiprocessor; and the products of the mixes for many rows, with the sums of MixPartialKernel (streams.cu).
#include <cooperative_groups.h>

#include <algorithm>
#include <utility>

#include "backends/cuda/ops/launch.h"
#include "backends/cuda/ops/numbers.cuh"
#include "backends/cuda/ops/start.cuh"

namespace deepinfer::cuda {
namespace {

constexpr int kStreams = 4;
constexpr int kParts = 8;     // blocks of a row
constexpr int kPerThread = 4;
constexpr int kThreads = kReleasedHidden / kParts / kPerThread;
static_assert(kThreads % 32 == 0);

__device__ __forceinline__ float4 Load4(const float* from) { return *reinterpret_cast<const float4*>(from); }

__device__ __forceinline__ uint2 FourBf16(const float* v) {
  return make_uint2(__float_as_uint(v[0]) >> 16 | (__float_as_uint(v[1]) & 0xffff0000u), __float_as_uint(v[2]) >> 16 | (__float_as_uint(v[3]) & 0xffff0000u));
}

// The sums of a row are those of its threads in ascending order of warps and blocks, whatever the number of rows.
__global__ void __cluster_dims__(kParts, 1, 1) __launch_bounds__(kThreads)
    ReleasedCollapseKernel(bool round, ExpandPart expand, F trunk, const float* pre, const float* norm, float eps, F collapsed, F x, QuantizedOut out) {
  const auto cluster = cooperative_groups::this_cluster();
  __shared__ float warp_sums[kThreads / 32], part_sums[kParts];
  const int64_t t = blockIdx.y;
  const int column = (static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x)) * kPerThread;
  auto begun = cluster.barrier_arrive();  // memory of a block is there when the block has begun
  const float4 weight = Load4(norm + column);
  WaitForEarlier();
  float* row = trunk.data + t * trunk.stride + column;
  float v[kStreams][kPerThread];
#pragma unroll
  for (int j = 0; j < kStreams; ++j) {
    const float4 from = Load4(row + j * kReleasedHidden);
    v[j][0] = from.x, v[j][1] = from.y, v[j][2] = from.z, v[j][3] = from.w;
  }
  const float4 p = Load4(pre + t * kStreams);
  if (expand.post != nullptr) {
    const float4 y = Load4(expand.y.data + t * expand.y.stride + column), post = Load4(expand.post + t * kStreams);
    const float ys[kPerThread] = {y.x, y.y, y.z, y.w}, posts[kStreams] = {post.x, post.y, post.z, post.w};
    float comb[kStreams][kStreams];
#pragma unroll
    for (int j = 0; j < kStreams; ++j) {
      const float4 c = Load4(expand.comb + (t * kStreams + j) * kStreams);
      comb[j][0] = c.x, comb[j][1] = c.y, comb[j][2] = c.z, comb[j][3] = c.w;
    }
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) {
      float old[kStreams];
#pragma unroll
      for (int j = 0; j < kStreams; ++j) old[j] = v[j][i];
#pragma unroll
      for (int k = 0; k < kStreams; ++k) {
        float sum = comb[0][k] * old[0];
#pragma unroll
        for (int j = 1; j < kStreams; ++j) sum += comb[j][k] * old[j];
        v[k][i] = RoundIf(posts[k] * ys[i] + sum, round);
      }
    }
#pragma unroll
    for (int j = 0; j < kStreams; ++j) *reinterpret_cast<float4*>(row + j * kReleasedHidden) = make_float4(v[j][0], v[j][1], v[j][2], v[j][3]);
  }
  const float ps[kStreams] = {p.x, p.y, p.z, p.w};
  float s[kPerThread], square = 0;
#pragma unroll
  for (int i = 0; i < kPerThread; ++i) {
    s[i] = ps[0] * v[0][i];
#pragma unroll
    for (int j = 1; j < kStreams; ++j) s[i] += ps[j] * v[j][i];
    s[i] = RoundIf(s[i], round);
    square = fmaf(s[i], s[i], square);
  }
  if (collapsed.data != nullptr) *reinterpret_cast<float4*>(collapsed.data + t * collapsed.stride + column) = make_float4(s[0], s[1], s[2], s[3]);

  square = WarpSum(square);
  if ((threadIdx.x & 31) == 0) warp_sums[threadIdx.x >> 5] = square;
  __syncthreads();
  cluster.barrier_wait(std::move(begun));
  if (threadIdx.x < kParts) {
    float sum = warp_sums[0];
#pragma unroll
    for (int w = 1; w < kThreads / 32; ++w) sum += warp_sums[w];
    cluster.map_shared_rank(part_sums, threadIdx.x)[blockIdx.x] = sum;
  }
  cluster.sync();
  float sum = part_sums[0];
#pragma unroll
  for (int i = 1; i < kParts; ++i) sum += part_sums[i];
  const float r = 1.0f / sqrtf(sum / static_cast<float>(kReleasedHidden) + eps);
  const float weights[kPerThread] = {weight.x, weight.y, weight.z, weight.w};
  float amax = 0;
#pragma unroll
  for (int i = 0; i < kPerThread; ++i) {
    s[i] = RoundIf(weights[i] * (s[i] * r), round);
    amax = fmaxf(amax, fabsf(s[i]));
  }
  *reinterpret_cast<float4*>(x.data + t * x.stride + column) = make_float4(s[0], s[1], s[2], s[3]);
  if (out.plain != nullptr) *reinterpret_cast<uint2*>(out.plain + t * out.stride + column) = FourBf16(s);
  if (out.bf16 == nullptr) return;
  // Eight lanes hold 32 columns.
  const int e = Fp8Exponent(LaneMax<8>(amax));
#pragma unroll
  for (int i = 0; i < kPerThread; ++i) s[i] = RoundE4M3(s[i] * Pow2(-e)) * Pow2(e);
  *reinterpret_cast<uint2*>(out.bf16 + t * out.stride + column) = FourBf16(s);
}

// Of MixPartialKernel: the same products in the same order for several rows; a block keeps its part of `fn`.
constexpr int kMixWarps = kMixThreads / 32, kMixOutputs = kStreams * (kStreams + 2);
constexpr int kMixMost = 4;  // outputs of a warp; the sum of squares is the last output
static_assert(kMixWarps * kMixMost > kMixOutputs && kMixChunk == 8 * 32);

__global__ void __launch_bounds__(kMixThreads) MixRowsKernel(const float* fn, F trunk, int64_t rows, int rows_per_block, int chunks, float* partial) {
  constexpr int64_t kWidth = int64_t{kStreams} * kReleasedHidden;
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
  const int64_t at = blockIdx.x * kMixChunk + 8 * lane;
  float f[kMixMost][8];
#pragma unroll
  for (int i = 0; i < kMixMost; ++i) {
    const int o = warp + i * kMixWarps;
    const float4 low = o < kMixOutputs ? Load4(fn + o * kWidth + at) : float4{}, high = o < kMixOutputs ? Load4(fn + o * kWidth + at + 4) : float4{};
    f[i][0] = low.x, f[i][1] = low.y, f[i][2] = low.z, f[i][3] = low.w, f[i][4] = high.x, f[i][5] = high.y, f[i][6] = high.z, f[i][7] = high.w;
  }
  WaitForEarlier();
  const int64_t first = blockIdx.y * static_cast<int64_t>(rows_per_block), last = min(first + rows_per_block, rows);
#pragma unroll 2
  for (int64_t t = first; t < last; ++t) {
    const float* x = trunk.data + t * trunk.stride + at;
    const float4 low = Load4(x), high = Load4(x + 4);
    const float v[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
    float sums[kMixMost];
#pragma unroll
    for (int i = 0; i < kMixMost; ++i) {
      const bool is_square = warp + i * kMixWarps == kMixOutputs;
      sums[i] = 0;
#pragma unroll
      for (int c = 0; c < 8; ++c) sums[i] = fmaf(v[c], is_square ? v[c] : f[i][c], sums[i]);
    }
    // The butterfly of WarpSum, four sums together: lanes whose bit is set go on with the upper half of them.
    const bool upper = (lane & 16) != 0;
    const float keep0 = upper ? sums[2] : sums[0], keep1 = upper ? sums[3] : sums[1];
    const float give0 = upper ? sums[0] : sums[2], give1 = upper ? sums[1] : sums[3];
    const float a = keep0 + __shfl_xor_sync(~0u, give0, 16), b = keep1 + __shfl_xor_sync(~0u, give1, 16);
    const bool second = (lane & 8) != 0;
    float sum = (second ? b : a) + __shfl_xor_sync(~0u, second ? a : b, 8);
    sum += __shfl_xor_sync(~0u, sum, 4);
    sum += __shfl_xor_sync(~0u, sum, 2);
    sum += __shfl_xor_sync(~0u, sum, 1);
    const int o = warp + (lane >> 3) * kMixWarps;
    if ((lane & 7) == 0 && o <= kMixOutputs) partial[(t * chunks + blockIdx.x) * (kMixOutputs + 1) + o] = sum;
  }
}

}  // namespace

bool IsReleasedMix(const device::HyperConnectionSite& site) { return site.streams == kStreams && site.hidden == kReleasedHidden; }

void LaunchMixRows(cudaStream_t stream, const float* fn, F trunk, int64_t rows, float* partial) {
  constexpr int kChunks = kStreams * kReleasedHidden / kMixChunk;
  // Enough blocks for every multiprocessor, and as many rows a block as that leaves.
  const int64_t per_block = std::clamp<int64_t>(rows * kChunks / (8 * NumMultiprocessors()), 1, 64);
  Start(MixRowsKernel, dim3(kChunks, static_cast<unsigned>((rows + per_block - 1) / per_block)), kMixThreads, 0, stream, fn, trunk, rows,
        static_cast<int>(per_block), kChunks, partial);
}

void LaunchReleasedCollapse(cudaStream_t stream, bool round, const ExpandPart& expand, F trunk, const float* pre, int64_t rows, const float* norm,
                            float eps, F collapsed, F x, const QuantizedOut& out) {
  Start(ReleasedCollapseKernel, dim3(kParts, static_cast<unsigned>(rows)), kThreads, 0, stream, round, expand, trunk, pre, norm, eps, collapsed, x, out);
}

}  // namespace deepinfer::cuda
