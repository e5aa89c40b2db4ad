// SPDX-License-Identifier: Apache-2.0
//
// General sparse attention: one block a row and head. Threads, and so the order of every sum, follow from the head size.
#include <algorithm>

#include "backends/cuda/ops/launch.h"
#include "backends/cuda/ops/numbers.cuh"
#include "backends/cuda/ops/start.cuh"

namespace deepinfer::cuda {
namespace {

constexpr int kThreads = 512;

// Channels c..c+3 of a record, c a multiple of 4.
__device__ __forceinline__ float4 DecodeKey4(device::KeyFormat format, const uint8_t* data, const uint8_t* scale, int c, bool is_aligned) {
  switch (format) {
    case device::KeyFormat::kFloat: return *reinterpret_cast<const float4*>(data + 4 * c);
    case device::KeyFormat::kMxFp8: {
      // Records of small heads begin at even places only.
      const auto* words = reinterpret_cast<const uint16_t*>(data + c);
      const uint32_t v = is_aligned ? *reinterpret_cast<const uint32_t*>(data + c) : words[0] | (static_cast<uint32_t>(words[1]) << 16);
      const float s = ScaleOf(scale[c >> 5]);
      return {DecodeE4M3(v & 255u) * s, DecodeE4M3((v >> 8) & 255u) * s, DecodeE4M3((v >> 16) & 255u) * s, DecodeE4M3(v >> 24) * s};
    }
    default: {
      const uint32_t v = *reinterpret_cast<const uint16_t*>(data + c / 2);
      const float s = format == device::KeyFormat::kFp4E4m3 ? DecodeE4M3(scale[c >> 4]) : ScaleOf(scale[c >> 5]);
      return {DecodeE2M1(v & 15u) * s, DecodeE2M1((v >> 4) & 15u) * s, DecodeE2M1((v >> 8) & 15u) * s, DecodeE2M1(v >> 12) * s};
    }
  }
}

// Shared memory: query [D], partial values [parts][D], scores [max_keys], key places [max_keys].
__global__ void __launch_bounds__(kThreads) AttentionKernel(device::Arithmetic a, device::Step step, device::AttentionArgs args,
                                                           device::KeyCache compressed, int max_keys) {
  WaitForEarlier();
  extern __shared__ __align__(16) uint8_t memory[];
  __shared__ float shared[33];
  const int dim = args.head_dim, quads = dim / 4, parts = kThreads / quads;
  auto* places = reinterpret_cast<const uint8_t**>(memory);
  float* query = reinterpret_cast<float*>(places + max_keys);
  float* values = query + dim;
  float* z = values + parts * dim;

  const int64_t t = blockIdx.y;
  const int h = blockIdx.x, tid = threadIdx.x, warp = tid >> 5, lane = tid & 31;
  const device::SequenceRows rows = step.sequences[step.row_sequence[t]];
  const int p = step.positions[t];
  const int first = max(max(0, rows.window_floor), args.is_draft_block ? rows.start - args.ring.window : p - args.ring.window + 1);
  const int last = args.is_draft_block ? rows.start + rows.num_rows - 1 : p;
  const int num_window = max(0, last - first + 1);
  const int num_ring = min(num_window, max(0, rows.start - first));
  const bool has_compressed = compressed.pool != nullptr;
  const int n = num_window + (has_compressed ? args.num_selected[t] : 0);

  // Where the keys are.
  const int64_t ring_record = RecordBytes(args.ring.format, dim), main_record = RecordBytes(compressed.main_format, dim);
  for (int i = tid; i < n; i += kThreads) {
    const uint8_t* place;
    if (i < num_ring) {
      place = rows.state + args.ring.offset + (first + i) % args.ring.rows * ring_record;
    } else if (i < num_window) {
      place = reinterpret_cast<const uint8_t*>(static_cast<const float*>(args.new_keys.data) +
                                               (rows.row_begin + first + i - rows.start) * args.new_keys.stride);
    } else {
      const int g = args.selected[t * args.selected_stride + i - num_window];
      place = compressed.pool + rows.block_table[g / compressed.entries_per_block] * compressed.block_stride + compressed.main_offset +
              g % compressed.entries_per_block * main_record;
    }
    places[i] = place;
  }
  const float* q = static_cast<const float*>(args.query.data) + t * args.query.stride + static_cast<int64_t>(h) * dim;
  for (int c = tid; c < dim; c += kThreads) query[c] = q[c];
  __syncthreads();

  const auto key4 = [&](int i, int c) {
    const uint8_t* place = places[i];
    const device::KeyFormat format = i < num_ring ? args.ring.format : i < num_window ? device::KeyFormat::kFloat : compressed.main_format;
    return DecodeKey4(format, place, place + KeyBytes(format, dim), c, dim % 128 == 0);
  };
  const float scale = 1.0f / sqrtf(static_cast<float>(dim));
#pragma unroll 2
  for (int i = warp; i < n; i += kThreads / 32) {
    float sum = 0;
    for (int c = 4 * lane; c < dim; c += 128) {
      const float4 k = key4(i, c);
      const float4 v = *reinterpret_cast<const float4*>(query + c);
      sum = fmaf(v.x, k.x, sum);
      sum = fmaf(v.y, k.y, sum);
      sum = fmaf(v.z, k.z, sum);
      sum = fmaf(v.w, k.w, sum);
    }
    sum = WarpSum(sum);
    if (lane == 0) z[i] = sum * scale;
  }
  __syncthreads();

  float top = -1e30f;
  for (int i = tid; i < n; i += kThreads) top = fmaxf(top, z[i]);
  top = LaneMax<32>(top);
  if (lane == 0) shared[warp] = top;
  __syncthreads();
  top = shared[0];
  for (int w = 1; w < kThreads / 32; ++w) top = fmaxf(top, shared[w]);
  float sum = 0;
  for (int i = tid; i < n; i += kThreads) {
    const float e = expf(z[i] - top);
    sum += e;
    z[i] = RoundIf(e, a.round_bf16);
  }
  const float den = BlockSum(sum, shared) + expf(args.sink[h] - top);
  __syncthreads();

  const int part = tid / quads, c = tid % quads * 4;
  if (part < parts) {
    float4 acc = {0, 0, 0, 0};
#pragma unroll 4
    for (int i = part; i < n; i += parts) {
      const float w = z[i];
      const float4 k = key4(i, c);
      acc.x = fmaf(w, k.x, acc.x);
      acc.y = fmaf(w, k.y, acc.y);
      acc.z = fmaf(w, k.z, acc.z);
      acc.w = fmaf(w, k.w, acc.w);
    }
    *reinterpret_cast<float4*>(values + part * dim + c) = acc;
  }
  __syncthreads();
  if (part != 0) return;
  float out[4];
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    float v = values[c + j];
    for (int i = 1; i < parts; ++i) v += values[i * dim + c + j];
    out[j] = RoundIf(n > 0 ? v / den : 0.0f, a.round_bf16);
  }
  const int64_t at = static_cast<int64_t>(h) * dim + c;
  if (args.trace_unrotated.data != nullptr)
    for (int j = 0; j < 4; ++j) static_cast<float*>(args.trace_unrotated.data)[t * args.trace_unrotated.stride + at + j] = out[j];
  if (c >= dim - args.rope_dim) {
    const float* cos = args.rope + t * args.rope_dim;
    const float* sin = cos + args.rope_dim / 2;
#pragma unroll
    for (int j = 0; j < 4; j += 2) {
      const int pair = (c + j - (dim - args.rope_dim)) / 2;
      const float x = out[j], y = out[j + 1], cs = cos[pair], sn = -sin[pair];
      out[j] = RoundIf(x * cs - y * sn, a.round_bf16);
      out[j + 1] = RoundIf(x * sn + y * cs, a.round_bf16);
    }
  }
  *reinterpret_cast<float4*>(static_cast<float*>(args.out.data) + t * args.out.stride + at) = {out[0], out[1], out[2], out[3]};
}

}  // namespace

void LaunchAttention(cudaStream_t stream, const device::Arithmetic& a, const device::Step& step, const device::AttentionArgs& args) {
  device::KeyCache compressed;
  if (args.compressed != nullptr) compressed = *args.compressed;
  constexpr int kMaxBlock = 32;  // rows of a draft block; checked when the model is read
  const int max_keys = args.ring.window + (args.is_draft_block ? kMaxBlock : 0) + (args.compressed != nullptr ? args.selected_stride : 0);
  const int parts = kThreads / (args.head_dim / 4);
  const size_t bytes = static_cast<size_t>(max_keys) * 12 + static_cast<size_t>(args.head_dim) * 4 * static_cast<size_t>(1 + parts);
  static const bool allowed = [] {
    cudaFuncSetAttribute(AttentionKernel, cudaFuncAttributeMaxDynamicSharedMemorySize, 96 << 10);
    return true;
  }();
  static_cast<void>(allowed);
  Start(AttentionKernel, dim3(args.heads, static_cast<unsigned>(step.num_rows)), kThreads, bytes, stream, a, step, args, compressed, max_keys);
}

}  // namespace deepinfer::cuda
