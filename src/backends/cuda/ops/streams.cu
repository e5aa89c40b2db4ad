// SPDX-License-Identifier: Apache-2.0
//
// Embedding, Engram injection and the residual streams. One block a row; a row's sums depend on its width only.
#include <algorithm>

#include "backends/cuda/ops/launch.h"
#include "backends/cuda/ops/numbers.cuh"
#include "backends/cuda/ops/start.cuh"

namespace deepinfer::cuda {
namespace {

// Whole warps for `n` values, at most 1024 threads.
int ThreadsFor(int64_t n) { return static_cast<int>(std::clamp<int64_t>((n + 31) / 32 * 32, 32, 1024)); }

__device__ __forceinline__ float TableValue(const TableView& table, int64_t row, int64_t c) {
  if (table.format == device::WeightFormat::kBf16)
    return BitsToFloat(static_cast<uint32_t>(reinterpret_cast<const uint16_t*>(table.data)[row * table.cols + c]) << 16);
  return DecodeE4M3(table.data[row * table.cols + c]) * ScaleOf(table.scale[row * (table.cols / 32) + c / 32]);
}

__global__ void EmbedKernel(bool round, TableView table, const int32_t* ids, const int32_t* image_row, const float* image_embeds,
                            int streams, int64_t hidden, F trunk) {
  WaitForEarlier();
  const int64_t t = blockIdx.x;
  const int32_t image = image_row != nullptr ? image_row[t] : -1;
  const int64_t id = ids[t];
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
  for (int64_t c = threadIdx.x; c < width; c += blockDim.x)
    out.data[t * out.stride + column * width + c] = RoundIf(TableValue(table, id, c), round);
}

__global__ void CopyRowsKernel(F in, const int32_t* rows, int64_t width, F out) {
  WaitForEarlier();
  const int64_t i = blockIdx.x, from = rows != nullptr ? rows[i] : i;
  for (int64_t c = threadIdx.x; c < width; c += blockDim.x) out.data[i * out.stride + c] = in.data[from * in.stride + c];
}

__device__ __forceinline__ float Sigmoid(float v) { return 1.0f / (1.0f + expf(-v)); }

__global__ void EngramKernel(bool round, F kv, const float* qk, const uint8_t* is_dead, int streams, int64_t hidden, float eps,
                             F trunk, float* gate_out) {
  WaitForEarlier();
  __shared__ float shared[33];
  const int64_t t = blockIdx.y;
  const int j = blockIdx.x;
  const float* key = kv.data + t * kv.stride + j * hidden;
  const float* value = kv.data + t * kv.stride + streams * hidden;
  float* x = trunk.data + t * trunk.stride + j * hidden;
  float sx = 0, sk = 0, dot = 0;
  for (int64_t c = threadIdx.x; c < hidden; c += blockDim.x) {
    sx = fmaf(x[c], x[c], sx);
    sk = fmaf(key[c], key[c], sk);
    dot = fmaf(x[c] * qk[j * hidden + c], key[c], dot);
  }
  sx = BlockSum(sx, shared);
  sk = BlockSum(sk, shared);
  dot = BlockSum(dot, shared);
  const float n = static_cast<float>(hidden);
  float gate = 0;
  if (is_dead == nullptr || is_dead[t] == 0) {
    const float rx = 1.0f / sqrtf(sx / n + eps), rk = 1.0f / sqrtf(sk / n + eps);
    const float d = dot * (rx * rk) * (1.0f / sqrtf(n));
    gate = Sigmoid(copysignf(sqrtf(fmaxf(fabsf(d), 1e-6f)), d));
  }
  if (gate_out != nullptr && threadIdx.x == 0) gate_out[t * streams + j] = gate;
  for (int64_t c = threadIdx.x; c < hidden; c += blockDim.x) x[c] = RoundIf(x[c] + gate * value[c], round);
}

// ---- hyper-connections --------------------------------------------------------------------------------------------------

constexpr int64_t kMixChunk = 256;  // values of a row that one block multiplies
constexpr int kMixThreads = 256;
constexpr int kMaxMixOutputs = 4 * (4 + 2);  // of at most four streams

// partial[t][chunk][0..outputs) = products of the chunk, [outputs] = its sum of squares.
__global__ void MixPartialKernel(const float* fn, F trunk, int64_t n, int outputs, int chunks, float* partial) {
  const int64_t t = blockIdx.y, begin = blockIdx.x * kMixChunk, end = min(begin + kMixChunk, n);
  const float* x = trunk.data + t * trunk.stride;
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
  // A warp has its outputs for itself: no sums across warps. A lane has 8 neighbouring values; weights come before the wait.
  constexpr int kWarps = kMixThreads / 32, kMost = (kMaxMixOutputs + kWarps) / kWarps;
  const int64_t at = begin + 8 * lane;
  float f[kMost][8];
#pragma unroll
  for (int i = 0; i < kMost; ++i) {
    const int o = warp + i * kWarps;
#pragma unroll
    for (int c = 0; c < 8; ++c) f[i][c] = o < outputs && at + c < end ? fn[o * n + at + c] : 0.0f;
  }
  WaitForEarlier();
  float v[8];
#pragma unroll
  for (int c = 0; c < 8; ++c) v[c] = at + c < end ? x[at + c] : 0.0f;
  float* out = partial + (t * chunks + blockIdx.x) * (outputs + 1);
#pragma unroll
  for (int i = 0; i < kMost; ++i) {
    const int o = warp + i * kWarps;
    if (o > outputs) break;
    float sum = 0;
#pragma unroll
    for (int c = 0; c < 8; ++c) sum = fmaf(v[c], o < outputs ? f[i][c] : v[c], sum);
    sum = WarpSum(sum);
    if (lane == 0) out[o] = sum;
  }
}

// One warp a row.
__global__ void MixFinishKernel(const float* partial, int chunks, int64_t n, int m, const float* base, const float* scale,
                                float norm_eps, float eps, int iters, float* pre, float* post, float* comb) {
  __shared__ float g[kMaxMixOutputs + 1];
  const int64_t t = blockIdx.x;
  const int outputs = m * (m + 2), o = threadIdx.x;
  const float offset = o < outputs ? base[o] : 0.0f, factor = scale[o < m ? 0 : o < 2 * m ? 1 : 2];
  WaitForEarlier();
  if (o <= outputs) {
    float sum = 0;
#pragma unroll 8
    for (int c = 0; c < chunks; ++c) sum += partial[(t * chunks + c) * (outputs + 1) + o];
    g[o] = sum;
  }
  __syncwarp();
  const float rstd = 1.0f / sqrtf(g[outputs] * (1.0f / static_cast<float>(n)) + norm_eps);
  if (o < outputs) {
    const float v = g[o] * rstd;
    if (o < m) {
      pre[t * m + o] = Sigmoid(v * factor + offset) + eps;
    } else if (o < 2 * m) {
      post[t * m + o - m] = 2.0f * Sigmoid(v * factor + offset);
    } else {
      g[o] = v * factor + offset;
    }
  }
  __syncwarp();
  float* c = g + 2 * m;
  if (m == 4) {
    // Lane 4j + k holds C[j][k]; upper lanes repeat.
    const int at = threadIdx.x & 15;
    float v = c[at];
    const auto row_sum = [](float x) {
      const int first = threadIdx.x & ~3;
      const float a = __shfl_sync(~0u, x, first), b = __shfl_sync(~0u, x, first + 1), d = __shfl_sync(~0u, x, first + 2), e = __shfl_sync(~0u, x, first + 3);
      return ((a + b) + d) + e;
    };
    const auto column_sum = [](float x) {
      const int k = (threadIdx.x & 3) | (threadIdx.x & 16);
      const float a = __shfl_sync(~0u, x, k), b = __shfl_sync(~0u, x, k + 4), d = __shfl_sync(~0u, x, k + 8), e = __shfl_sync(~0u, x, k + 12);
      return ((a + b) + d) + e;
    };
    float top = fmaxf(v, __shfl_xor_sync(~0u, v, 1));
    top = fmaxf(top, __shfl_xor_sync(~0u, top, 2));
    v = expf(v - top);
    v = v / row_sum(v) + eps;
    v /= column_sum(v) + eps;
    for (int i = 1; i < iters; ++i) {
      v /= row_sum(v) + eps;
      v /= column_sum(v) + eps;
    }
    if (threadIdx.x < 16) comb[t * 16 + at] = v;
    return;
  }
  if (threadIdx.x != 0) return;
  for (int j = 0; j < m; ++j) {
    float top = c[j * m], sum = 0;
    for (int k = 1; k < m; ++k) top = fmaxf(top, c[j * m + k]);
    for (int k = 0; k < m; ++k) sum += c[j * m + k] = expf(c[j * m + k] - top);
    for (int k = 0; k < m; ++k) c[j * m + k] = c[j * m + k] / sum + eps;
  }
  const auto columns = [&] {
    for (int k = 0; k < m; ++k) {
      float sum = c[k];
      for (int j = 1; j < m; ++j) sum += c[j * m + k];
      for (int j = 0; j < m; ++j) c[j * m + k] /= sum + eps;
    }
  };
  columns();
  for (int i = 1; i < iters; ++i) {
    for (int j = 0; j < m; ++j) {
      float sum = c[j * m];
      for (int k = 1; k < m; ++k) sum += c[j * m + k];
      for (int k = 0; k < m; ++k) c[j * m + k] /= sum + eps;
    }
    columns();
  }
  for (int i = 0; i < m * m; ++i) comb[t * m * m + i] = c[i];
}

// Streams of one channel after the expansion, in `v`.
template <int kM>
__device__ __forceinline__ void ExpandChannel(float y, const float* post, const float* comb, bool round, float* v) {
  float old[kM];
#pragma unroll
  for (int j = 0; j < kM; ++j) old[j] = v[j];
#pragma unroll
  for (int k = 0; k < kM; ++k) {
    float sum = comb[k] * old[0];
#pragma unroll
    for (int j = 1; j < kM; ++j) sum += comb[j * kM + k] * old[j];
    v[k] = RoundIf(post[k] * y + sum, round);
  }
}

// The streams are expanded (optional), collapsed and normalised; one block a row. Dynamic shared memory: hidden floats.
template <int kM>
__global__ void CollapseNormKernel(bool round, ExpandPart expand, F trunk, const float* pre, int64_t hidden, const float* norm,
                                   float eps, F collapsed, F x, QuantizedOut quantized) {
  WaitForEarlier();
  extern __shared__ float values[];
  __shared__ float shared[33];
  const int64_t t = blockIdx.x;
  float* row = trunk.data + t * trunk.stride;
  float p[kM], post[kM], comb[kM * kM];
#pragma unroll
  for (int j = 0; j < kM; ++j) p[j] = pre[t * kM + j];
  if (expand.post != nullptr) {
#pragma unroll
    for (int j = 0; j < kM; ++j) post[j] = expand.post[t * kM + j];
#pragma unroll
    for (int j = 0; j < kM * kM; ++j) comb[j] = expand.comb[t * kM * kM + j];
  }
  float sum = 0;
  for (int64_t c = threadIdx.x; c < hidden; c += blockDim.x) {
    float v[kM];
#pragma unroll
    for (int j = 0; j < kM; ++j) v[j] = row[j * hidden + c];
    if (expand.post != nullptr) {
      ExpandChannel<kM>(expand.y.data[t * expand.y.stride + c], post, comb, round, v);
#pragma unroll
      for (int j = 0; j < kM; ++j) row[j * hidden + c] = v[j];
    }
    float s = p[0] * v[0];
#pragma unroll
    for (int j = 1; j < kM; ++j) s += p[j] * v[j];
    s = RoundIf(s, round);
    values[c] = s;
    if (collapsed.data != nullptr) collapsed.data[t * collapsed.stride + c] = s;
    sum = fmaf(s, s, sum);
  }
  const float r = 1.0f / sqrtf(BlockSum(sum, shared) / static_cast<float>(hidden) + eps);
  for (int64_t c = threadIdx.x; c < hidden; c += blockDim.x) {
    const float v = RoundIf(norm[c] * (values[c] * r), round);
    x.data[t * x.stride + c] = v;
    if (quantized.bf16 != nullptr)  // hidden is a multiple of 32: whole warps get here
      quantized.bf16[t * quantized.stride + c] = static_cast<uint16_t>(__float_as_uint(FakeFp8Lane(v)) >> 16);
  }
}

template <int kM>
__global__ void ExpandKernel(bool round, ExpandPart expand, int64_t hidden, F trunk) {
  WaitForEarlier();
  const int64_t t = blockIdx.x;
  float* row = trunk.data + t * trunk.stride;
  for (int64_t c = threadIdx.x; c < hidden; c += blockDim.x) {
    float v[kM];
#pragma unroll
    for (int j = 0; j < kM; ++j) v[j] = row[j * hidden + c];
    ExpandChannel<kM>(expand.y.data[t * expand.y.stride + c], expand.post + t * kM, expand.comb + t * kM * kM, round, v);
#pragma unroll
    for (int j = 0; j < kM; ++j) row[j * hidden + c] = v[j];
  }
}

__global__ void StreamMeanKernel(bool round, F trunk, int streams, int64_t hidden, F out) {
  WaitForEarlier();
  const int64_t t = blockIdx.x;
  const float* row = trunk.data + t * trunk.stride;
  for (int64_t c = threadIdx.x; c < hidden; c += blockDim.x) {
    float sum = row[c];
    for (int j = 1; j < streams; ++j) sum += row[j * hidden + c];
    out.data[t * out.stride + c] = RoundIf(sum / static_cast<float>(streams), round);
  }
}

// Calls fn with the number of streams as a constant.
template <typename Fn>
void ForStreams(int streams, Fn&& fn) {
  switch (streams) {
    case 1: fn(std::integral_constant<int, 1>()); break;
    case 2: fn(std::integral_constant<int, 2>()); break;
    case 3: fn(std::integral_constant<int, 3>()); break;
    case 4: fn(std::integral_constant<int, 4>()); break;
    default: break;  // refused at load
  }
}

}  // namespace

void LaunchEmbed(cudaStream_t stream, bool round, const TableView& table, const int32_t* ids, const int32_t* image_row,
                 const float* image_embeds, int64_t rows, int streams, int64_t hidden, F trunk) {
  Start(EmbedKernel, static_cast<unsigned>(rows), ThreadsFor(hidden), 0, stream, round, table, ids, image_row, image_embeds, streams, hidden, trunk);
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
  const int64_t n = int64_t{site.streams} * site.hidden;
  const int outputs = site.streams * (site.streams + 2), chunks = static_cast<int>((n + kMixChunk - 1) / kMixChunk);
  Start(MixPartialKernel, dim3(chunks, static_cast<unsigned>(rows)), kMixThreads, 0, stream, fn, trunk, n, outputs, chunks, partial);
  Start(MixFinishKernel, static_cast<unsigned>(rows), 32, 0, stream, partial, chunks, n, site.streams, site.base, site.scale, site.norm_eps,
                                                                   site.eps, site.sinkhorn_iters, pre, post, comb);
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
