// SPDX-License-Identifier: Apache-2.0
//
// Embedding, Engram injection and the residual streams: one block a row.
#include <cooperative_groups.h>

#include <algorithm>

#include "backends/cuda/ops/keys.cuh"
#include "backends/cuda/ops/start.cuh"
#include "backends/cuda/ops/streams.cuh"

namespace deepinfer::cuda {
namespace {

// Whole warps for `n` values, at most 1024 threads.
int ThreadsFor(int64_t n) { return static_cast<int>(std::clamp<int64_t>((n + 31) / 32 * 32, 32, 1024)); }

// Blocks behind those of the rows have the rotation tables, `table_blocks` each.
__global__ void EmbedKernel(bool round, TableView table, const int32_t* ids, const int32_t* image_row, const float* image_embeds,
                            int64_t rows, int streams, int64_t hidden, F trunk, const __grid_constant__ RopeTableList rope, int table_blocks) {
  WaitForEarlier();
  const int64_t t = blockIdx.x;
  if (t >= rows) {
    const int64_t b = t - rows;
    RopeTableAngle(rope, static_cast<int>(b / table_blocks), b % table_blocks * blockDim.x + threadIdx.x);
    return;
  }
  const int32_t image = image_row != nullptr ? image_row[t] : -1;
  const int64_t id = ids[t];
#pragma unroll 1
  for (int64_t c = threadIdx.x; c < hidden; c += blockDim.x) {
    const float v = image >= 0 ? RoundIf(image_embeds[image * hidden + c], round) : TableValue(table, id, c);
    for (int j = 0; j < streams; ++j) trunk.data[t * trunk.stride + j * hidden + c] = v;
  }
}

__global__ void GatherKernel(bool round, TableView table, const int32_t* ids, int columns, int64_t width, F out) {
  WaitForEarlier();
  const int64_t t = blockIdx.y;
  const int column = blockIdx.x;
  const int64_t id = ids[t * columns + column];
#pragma unroll 1
  for (int64_t c = threadIdx.x; c < width; c += blockDim.x)
    out.data[t * out.stride + column * width + c] = RoundIf(TableValue(table, id, c), round);
}

__global__ void CopyRowsKernel(F in, const int32_t* rows, int64_t width, F out) {
  WaitForEarlier();
  const int64_t i = blockIdx.x, from = rows != nullptr ? rows[i] : i;
#pragma unroll 1
  for (int64_t c = threadIdx.x; c < width; c += blockDim.x) out.data[i * out.stride + c] = in.data[from * in.stride + c];
}

__global__ void EngramKernel(bool round, F kv, const float* qk, const uint8_t* is_dead, int streams, int64_t hidden, float eps,
                             F trunk, float* gate_out) {
  WaitForEarlier();
  __shared__ float shared[33];
  EngramStream(round, kv, qk, is_dead, streams, hidden, eps, trunk, gate_out, blockIdx.y, static_cast<int>(blockIdx.x), shared, blockDim.x);
}

constexpr int kMixWarps = kMixThreads / 32, kMixDots = (kMaxMixOutputs + kMixWarps) / kMixWarps;
constexpr int kMaxMixCluster = 8;  // chunks of a row that one cluster multiplies

struct MixArgs {
  int64_t n = 0;
  int streams = 0, chunks = 0, iters = 0;
  const float* fn = nullptr;
  const float* base = nullptr;
  const float* scale = nullptr;
  float norm_eps = 0, eps = 0;
  float *pre = nullptr, *post = nullptr, *comb = nullptr;
};

// A block a chunk; a warp has its outputs for itself: no sums across warps.
__global__ void MixPartialKernel(MixArgs m, F trunk, float* partial) {
  const int outputs = m.streams * (m.streams + 2);
  MixPartialDots<kMixDots>(m.fn, trunk, m.n, outputs, partial + (static_cast<int64_t>(blockIdx.y) * m.chunks + blockIdx.x) * (outputs + 1), blockIdx.y,
                           static_cast<int>(blockIdx.x), static_cast<int>(threadIdx.x >> 5), kMixWarps, [] { WaitForEarlier(); });
}

__global__ void MixFinishKernel(MixArgs m, const float* partial) {
  __shared__ float g[kMaxMixOutputs + 1];
  const int outputs = m.streams * (m.streams + 2);
  MixFinishRow(partial + static_cast<int64_t>(blockIdx.x) * m.chunks * (outputs + 1), m.chunks, m.n, m.streams, m.base, m.scale, m.norm_eps, m.eps, m.iters,
               m.pre, m.post, m.comb, blockIdx.x, g, [] { WaitForEarlier(); });
}

// Both of a row of few chunks: a cluster of a block a chunk; the first one ends the mix.
__global__ void __launch_bounds__(kMixThreads) MixKernel(MixArgs m, F trunk) {
  namespace cg = cooperative_groups;
  __shared__ float partial[kMaxMixCluster * (kMaxMixOutputs + 1)], g[kMaxMixOutputs + 1];
  const cg::cluster_group cluster = cg::this_cluster();
  auto begun = cluster.barrier_arrive();  // memory of a block is there when the block has begun
  const int outputs = m.streams * (m.streams + 2);
  MixPartialDots<kMixDots>(m.fn, trunk, m.n, outputs, cluster.map_shared_rank(partial, 0) + blockIdx.x * (outputs + 1), blockIdx.y,
                           static_cast<int>(blockIdx.x), static_cast<int>(threadIdx.x >> 5), kMixWarps, [&] {
                             WaitForEarlier();
                             cluster.barrier_wait(std::move(begun));
                           });
  cluster.sync();
  if (blockIdx.x == 0 && threadIdx.x < 32)
    MixFinishRow(partial, m.chunks, m.n, m.streams, m.base, m.scale, m.norm_eps, m.eps, m.iters, m.pre, m.post, m.comb, blockIdx.y, g, [] {});
}

// One block a row. Dynamic shared memory: hidden floats.
template <int kM>
__global__ void CollapseNormKernel(bool round, ExpandPart expand, F trunk, const float* pre, int64_t hidden, const float* norm,
                                   float eps, F collapsed, F x, QuantizedOut quantized) {
  WaitForEarlier();
  extern __shared__ float values[];
  __shared__ float shared[33];
  CollapseRow<kM>(round, expand, trunk, pre, hidden, norm, eps, collapsed, x, quantized, blockIdx.x, values, shared, blockDim.x);
}

template <int kM>
__global__ void ExpandKernel(bool round, ExpandPart expand, int64_t hidden, F trunk) {
  WaitForEarlier();
  ExpandRow<kM>(round, expand, hidden, trunk, blockIdx.x, blockDim.x);
}

__global__ void StreamMeanKernel(bool round, F trunk, int streams, int64_t hidden, F out) {
  WaitForEarlier();
  const int64_t t = blockIdx.x;
#pragma unroll 1
  for (int64_t c = threadIdx.x; c < hidden; c += blockDim.x) out.data[t * out.stride + c] = MeanOfStreams(trunk, t, streams, hidden, c, round);
}

}  // namespace

void LaunchEmbed(cudaStream_t stream, bool round, const TableView& table, const int32_t* ids, const int32_t* image_row,
                 const float* image_embeds, int64_t rows, int streams, int64_t hidden, F trunk, const RopeTableList& rope) {
  const int threads = ThreadsFor(hidden);
  int64_t most = 0;
  for (int i = 0; i < rope.count; ++i) most = std::max(most, rope.tables[i].count * (rope.rope_dim / 2));
  const int64_t table_blocks = (most + threads - 1) / threads;
  Start(EmbedKernel, static_cast<unsigned>(rows + rope.count * table_blocks), threads, 0, stream, round, table, ids, image_row, image_embeds, rows, streams,
        hidden, trunk, rope, static_cast<int>(table_blocks));
}

void LaunchGatherRows(cudaStream_t stream, bool round, const TableView& table, const int32_t* ids, int64_t rows, int columns,
                      int64_t width, F out) {
  Start(GatherKernel, dim3(columns, static_cast<unsigned>(rows)), ThreadsFor(width), 0, stream, round, table, ids, columns, width, out);
}

void LaunchCopyRows(cudaStream_t stream, F in, const int32_t* rows, int64_t num_rows, int64_t width, F out) {
  Start(CopyRowsKernel, static_cast<unsigned>(num_rows), ThreadsFor(width), 0, stream, in, rows, width, out);
}

void LaunchEngramInject(cudaStream_t stream, bool round, F kv, const float* qk, const uint8_t* is_dead, int64_t rows, int streams,
                        int64_t hidden, float eps, F trunk, float* gate_out) {
  Start(EngramKernel, dim3(streams, static_cast<unsigned>(rows)), ThreadsFor(hidden), 0, stream, round, kv, qk, is_dead, streams, hidden, eps, trunk, gate_out);
}

int64_t MixPartialFloats(int64_t rows, const device::HyperConnectionSite& site) {
  const int64_t n = int64_t{site.streams} * site.hidden;
  return rows * ((n + kMixChunk - 1) / kMixChunk) * (site.streams * (site.streams + 2) + 1);
}

void LaunchMix(cudaStream_t stream, const device::HyperConnectionSite& site, const float* fn, F trunk, int64_t rows, float* partial,
               float* pre, float* post, float* comb) {
  MixArgs m;
  m.n = int64_t{site.streams} * site.hidden;
  m.streams = site.streams;
  m.chunks = static_cast<int>((m.n + kMixChunk - 1) / kMixChunk);
  m.iters = site.sinkhorn_iters;
  m.fn = fn;
  m.base = site.base;
  m.scale = site.scale;
  m.norm_eps = site.norm_eps;
  m.eps = site.eps;
  m.pre = pre;
  m.post = post;
  m.comb = comb;
  const dim3 grid(static_cast<unsigned>(m.chunks), static_cast<unsigned>(rows));
  if (m.chunks <= kMaxMixCluster) {
    StartCluster(MixKernel, grid, kMixThreads, 0, stream, m, trunk);
    return;
  }
  if (rows >= kMixRows && IsReleasedMix(site)) {
    LaunchMixRows(stream, fn, trunk, rows, partial);
  } else {
    Start(MixPartialKernel, grid, kMixThreads, 0, stream, m, trunk, partial);
  }
  Start(MixFinishKernel, static_cast<unsigned>(rows), 32, 0, stream, m, partial);
}

void LaunchCollapseNorm(cudaStream_t stream, bool round, const ExpandPart& expand, F trunk, const float* pre, int64_t rows,
                        int streams, int64_t hidden, const float* norm, float eps, F collapsed, F x, const QuantizedOut& quantized) {
  ForStreams(streams, [&](auto m) {
    Start(CollapseNormKernel<m.value>, static_cast<unsigned>(rows), ThreadsFor(hidden), static_cast<size_t>(hidden) * sizeof(float), stream, round, expand, trunk, pre, hidden, norm, eps, collapsed, x, quantized);
  });
}

void LaunchExpand(cudaStream_t stream, bool round, const ExpandPart& expand, int64_t rows, int streams, int64_t hidden, F trunk) {
  ForStreams(streams, [&](auto m) {
    Start(ExpandKernel<m.value>, static_cast<unsigned>(rows), ThreadsFor(hidden), 0, stream, round, expand, hidden, trunk);
  });
}

void LaunchStreamMean(cudaStream_t stream, bool round, F trunk, int64_t rows, int streams, int64_t hidden, F out) {
  Start(StreamMeanKernel, static_cast<unsigned>(rows), ThreadsFor(hidden), 0, stream, round, trunk, streams, hidden, out);
}

}  // namespace deepinfer::cuda
