// SPDX-License-Identifier: Apache-2.0
//
// Rotation, and the keys that go into the caches. A block is a vector: thread c holds channel c.
#include <algorithm>

#include "backends/cuda/ops/dot.cuh"
#include "backends/cuda/ops/keys.cuh"
#include "backends/cuda/ops/start.cuh"

namespace deepinfer::cuda {
namespace {

__global__ void RopeTableKernel(const __grid_constant__ RopeTableList list) {
  WaitForEarlier();
  RopeTableAngle(list, static_cast<int>(blockIdx.y), static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x);
}

// Pair i of head h of row t.
__device__ __forceinline__ void RotatePair(F x, int64_t t, int h, int head_dim, int rope_dim, const float* table, int i, bool round) {
  float* pair = x.data + t * x.stride + (h + 1) * static_cast<int64_t>(head_dim) - rope_dim + 2 * i;
  const float c = table[t * rope_dim + i], s = table[t * rope_dim + rope_dim / 2 + i];
  const float a = pair[0], b = pair[1];
  pair[0] = RoundIf(a * c - b * s, round);
  pair[1] = RoundIf(a * s + b * c, round);
}

__global__ void RopeKernel(bool round, F x, int64_t rows, int heads, int head_dim, int rope_dim, const float* table) {
  WaitForEarlier();
  const int half = rope_dim / 2;
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= rows * heads * half) return;
  RotatePair(x, i / (heads * half), static_cast<int>(i / half % heads), head_dim, rope_dim, table, static_cast<int>(i % half), round);
}

__global__ void IndexQueryKernel(device::Arithmetic a, F x, int dim, int rope_dim, const float* table) {
  WaitForEarlier();
  const int64_t t = blockIdx.y;
  IndexQueryChannel(a, x.data + t * x.stride + static_cast<int64_t>(blockIdx.x) * dim + threadIdx.x, static_cast<int>(threadIdx.x), dim, rope_dim, table + t * rope_dim);
}

// Block 0 of a row: its key; block 1: the other norm.
__global__ void WindowKeysKernel(device::Arithmetic a, F raw, const float* norm, float eps, int head_dim, int rope_dim,
                                 const float* table, F keys, NormPart other) {
  WaitForEarlier();
  __shared__ float shared[33];
  const int64_t t = blockIdx.y;
  if (blockIdx.x > 0) {
    NormRow(other.in.data + t * other.in.stride, other.norm, other.width, other.eps, a.round_bf16, other.out.data + t * other.out.stride,
            other.quantized.bf16 != nullptr ? other.quantized.bf16 + t * other.quantized.stride : nullptr, shared, blockDim.x);
    return;
  }
  WindowKeyRow(a, raw, norm, eps, head_dim, rope_dim, table, keys, t, shared, blockDim.x);
}

constexpr int kJoinThreads = 512, kMaxJoinWidth = 1024;

// Sixteen outputs a block, a warp each; every block makes the norm of its row, block 0 for memory too. The last block of a row has
// the window keys.
__global__ void __launch_bounds__(kJoinThreads) NormMatMulKernel(device::Arithmetic a, WeightView w, NormPart norm, WindowKeysPart k, F y) {
  __shared__ float shared[33];
  __shared__ __align__(16) float row[kMaxJoinWidth];
  __shared__ __align__(16) uint16_t quantized[kMaxJoinWidth];
  constexpr auto kFormat = device::WeightFormat::kFp8Block32;
  const int64_t t = blockIdx.y, n = static_cast<int64_t>(blockIdx.x) * (kJoinThreads / 32) + (threadIdx.x >> 5);
  if (n < w.rows) PrefetchWeights<kFormat>(w.data + n * w.padded_cols, w.padded_cols);
  WaitForEarlier();
  if (blockIdx.x == gridDim.x - 1) {
    WindowKeyRow(a, k.raw, k.norm, k.eps, k.head_dim, k.rope_dim, k.table, k.keys, t, shared, kJoinThreads);
    return;
  }
  const bool has_quantized = norm.quantized.bf16 != nullptr;
  NormRow(norm.in.data + t * norm.in.stride, norm.norm, norm.width, norm.eps, a.round_bf16, row, has_quantized ? quantized : nullptr, shared,
          kJoinThreads);
  __syncthreads();
  if (blockIdx.x == 0) {
#pragma unroll 1
    for (int64_t c = threadIdx.x; c < norm.width; c += kJoinThreads) {
      norm.out.data[t * norm.out.stride + c] = row[c];
      if (has_quantized) norm.quantized.bf16[t * norm.quantized.stride + c] = quantized[c];
    }
  }
  if (n >= w.rows) return;
  const int64_t rows[1] = {n};
  float sum;
  if (has_quantized) {
    WarpRowDots<kFormat, uint16_t, 1>(w, rows, quantized, &sum);
  } else {
    WarpRowDots<kFormat, float, 1>(w, rows, row, &sum);
  }
  if ((threadIdx.x & 31) == 0) y.data[t * y.stride + n] = RoundIf(sum, a.round_bf16);
}

__global__ void StoreWindowKernel(device::Step step, device::WindowRing ring, int64_t record, int64_t data_bytes, int head_dim, F keys) {
  WaitForEarlier();
  StoreWindowRow(step, ring, record, data_bytes, head_dim, keys, blockIdx.x);
}

__global__ void PoolPairsKernel(bool round, device::Step step, const float* products, int head_dim, int64_t ring_offset,
                                int ring_rows, const device::NewGroup* groups, F latent) {
  WaitForEarlier();
  const device::NewGroup group = groups[blockIdx.x];
  const device::SequenceRows& rows = step.sequences[group.sequence];
  const int64_t width = 2 * static_cast<int64_t>(head_dim);
  const float* second = products + group.last_row * width;
  const float* first = group.last_row > rows.row_begin
                           ? second - width
                           : reinterpret_cast<const float*>(rows.state + ring_offset) + group.position % ring_rows * width;
#pragma unroll 1
  for (int d = threadIdx.x; d < head_dim; d += blockDim.x) {
    const float top = fmaxf(first[d], second[d]);
    const float w0 = expf(first[d] - top), w1 = expf(second[d] - top);
    const float sum = w0 + w1;
    latent.data[blockIdx.x * latent.stride + d] =
        RoundIf(first[head_dim + d] * (w0 / sum) + second[head_dim + d] * (w1 / sum), round);
  }
}

// Behind PoolPairsKernel, which reads the ring.
__global__ void StorePairsKernel(device::Step step, const float* products, int head_dim, int64_t ring_offset, int ring_rows) {
  WaitForEarlier();
  const int64_t t = blockIdx.x, width = 2 * static_cast<int64_t>(head_dim);
  const device::SequenceRows& rows = step.sequences[step.row_sequence[t]];
  const int r = static_cast<int>(t) - rows.row_begin;
  if (r < rows.num_rows - ring_rows) return;
  float* to = reinterpret_cast<float*>(rows.state + ring_offset) + (rows.start + r) % ring_rows * width;
#pragma unroll 1
  for (int64_t d = threadIdx.x; d < width; d += blockDim.x) to[d] = products[t * width + d];
}

// Grid: groups, then the kinds of keys that there are (latent.data or raw.data null: not these).
__global__ void StoreKeysKernel(device::Arithmetic a, device::KeyCache cache, CompressedKeysPart main, IndexKeysPart index, int64_t record,
                                int64_t main_bytes, int64_t index_bytes, int64_t index_scale_bytes, const device::NewGroup* groups, int rope_dim,
                                const float* table) {
  WaitForEarlier();
  const int64_t g = blockIdx.x;
  const int c = threadIdx.x;
  if (main.latent.data != nullptr && blockIdx.y == 0) {
    if (c >= cache.head_dim) return;
    float v = RotateLane(main.latent.data[g * main.latent.stride + c], c, cache.head_dim - rope_dim, table + g * rope_dim, rope_dim / 2, 1.0f, a.round_bf16);
    if (a.quantize && cache.main_format == device::KeyFormat::kMxFp8) v = FakeFp8Lane(v);
    uint8_t* to = cache.pool + groups[g].block * cache.block_stride + cache.main_offset + groups[g].entry * record;
    v = EncodeKeyChannel(cache.main_format, v, c, to, to + main_bytes);
    main.latent.data[g * main.latent.stride + c] = v;
    if (main.trace_key.data != nullptr) main.trace_key.data[g * main.trace_key.stride + c] = v;
    return;
  }
  __shared__ float shared[33];
  const int n = cache.index_dim;
  if (c >= n) return;
  const float x = index.raw.data[g * index.raw.stride + c], factor = index.norm[c];
  const float r = 1.0f / sqrtf(BlockSum(x * x, shared, static_cast<unsigned>(n)) / static_cast<float>(n) + index.eps);
  float v = RoundIf(factor * (x * r), a.round_bf16);
  v = RotateLane(v, c, n - rope_dim, table + g * rope_dim, rope_dim / 2, 1.0f, a.round_bf16);
  if (a.quantize) v = FakeFp4Pow2Lane(v);
  uint8_t* region = cache.pool + groups[g].block * cache.block_stride + cache.index_offset;
  EncodeKeyChannel(cache.index_format, v, c, region + groups[g].entry * index_bytes,
                   region + cache.entries_per_block * index_bytes + groups[g].entry * index_scale_bytes);
  index.raw.data[g * index.raw.stride + c] = v;
  if (index.trace_key.data != nullptr) index.trace_key.data[g * index.trace_key.stride + c] = v;
}

unsigned Count(int64_t n) { return static_cast<unsigned>(n); }

}  // namespace

void LaunchRopeTables(cudaStream_t stream, const RopeTableList& list) {
  int64_t most = 0;
  for (int i = 0; i < list.count; ++i) most = std::max(most, list.tables[i].count * (list.rope_dim / 2));
  Start(RopeTableKernel, dim3(Count((most + 63) / 64), Count(list.count)), 64, 0, stream, list);
}

void LaunchRope(cudaStream_t stream, bool round, F x, int64_t rows, int heads, int head_dim, int rope_dim, const float* table) {
  const int64_t n = rows * heads * (rope_dim / 2);
  Start(RopeKernel, Count((n + 127) / 128), 128, 0, stream, round, x, rows, heads, head_dim, rope_dim, table);
}

void LaunchIndexQuery(cudaStream_t stream, const device::Arithmetic& a, F x, int64_t rows, int heads, int dim, int rope_dim,
                      const float* table) {
  Start(IndexQueryKernel, dim3(heads, Count(rows)), dim, 0, stream, a, x, dim, rope_dim, table);
}

void LaunchWindowKeys(cudaStream_t stream, const device::Arithmetic& a, F raw, const float* norm, float eps, int64_t rows,
                      int head_dim, int rope_dim, const float* table, F keys, const NormPart& other) {
  Start(WindowKeysKernel, dim3(other.in.data != nullptr ? 2 : 1, Count(rows)), head_dim, 0, stream, a, raw, norm, eps, head_dim, rope_dim, table, keys,
        other);
}

bool CanJoinNorm(const WeightView& w, const NormPart& norm, const WindowKeysPart& keys) {
  return w.format == device::WeightFormat::kFp8Block32 && norm.width == w.padded_cols && norm.width <= kMaxJoinWidth &&
         keys.head_dim <= kJoinThreads && keys.head_dim % 32 == 0;
}

void LaunchNormMatMul(cudaStream_t stream, const device::Arithmetic& a, const WeightView& w, const NormPart& norm, const WindowKeysPart& keys,
                      int64_t rows, F y) {
  constexpr int kOutputs = kJoinThreads / 32;
  Start(NormMatMulKernel, dim3(Count((w.rows + kOutputs - 1) / kOutputs + 1), Count(rows)), kJoinThreads, 0, stream, a, w, norm, keys, y);
}

void LaunchStoreWindow(cudaStream_t stream, const device::Step& step, const device::WindowRing& ring, int head_dim, F keys) {
  Start(StoreWindowKernel, Count(step.num_rows), head_dim, 0, stream, step, ring, device::KeyRecordBytes(ring.format, head_dim),
                                                                   device::KeyDataBytes(ring.format, head_dim), head_dim, keys);
}

void LaunchPoolPairs(cudaStream_t stream, bool round, const device::Step& step, const float* products, int head_dim,
                     int64_t ring_offset, int ring_rows, const device::NewGroup* groups, int64_t num_groups, F latent) {
  if (num_groups > 0)
    Start(PoolPairsKernel, Count(num_groups), std::min(head_dim, 512), 0, stream, round, step, products, head_dim, ring_offset, ring_rows, groups, latent);
}

void LaunchStorePairs(cudaStream_t stream, const device::Step& step, const float* products, int head_dim, int64_t ring_offset, int ring_rows) {
  Start(StorePairsKernel, Count(step.num_rows), std::min(head_dim, 512), 0, stream, step, products, head_dim, ring_offset, ring_rows);
}

void LaunchStoreKeys(cudaStream_t stream, const device::Arithmetic& a, const device::KeyCache& cache, const CompressedKeysPart& main,
                     const IndexKeysPart& index, const device::NewGroup* groups, int64_t num_groups, int rope_dim, const float* table) {
  const bool has_main = main.latent.data != nullptr, has_index = index.raw.data != nullptr;
  const int threads = std::max(has_main ? cache.head_dim : 0, has_index ? cache.index_dim : 0);
  Start(StoreKeysKernel, dim3(Count(num_groups), has_main && has_index ? 2 : 1), threads, 0, stream, a, cache, main, index,
        device::KeyRecordBytes(cache.main_format, cache.head_dim), device::KeyDataBytes(cache.main_format, cache.head_dim),
        device::KeyDataBytes(cache.index_format, cache.index_dim), device::KeyScaleBytes(cache.index_format, cache.index_dim), groups, rope_dim, table);
}

}  // namespace deepinfer::cuda
