// SPDX-License-Identifier: Apache-2.0
//
// General sparse attention: one block a row and head. Threads, and so the order of every sum, follow from the head size.
#include <cooperative_groups.h>

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

// Where the keys of a row are: of the ring, of the step itself, compressed.
struct KeyPlaces {
  const device::AttentionArgs& args;
  const device::KeyCache& compressed;
  const device::SequenceRows& rows;
  int64_t t;
  int first, num_ring, num_window;
  int64_t ring_record, main_record;

  __device__ __forceinline__ const uint8_t* operator()(int i) const {
    if (i < num_ring) return rows.state + args.ring.offset + (first + i) % args.ring.rows * ring_record;
    if (i < num_window)
      return reinterpret_cast<const uint8_t*>(static_cast<const float*>(args.new_keys.data) +
                                              (rows.row_begin + first + i - rows.start) * args.new_keys.stride);
    const int g = args.selected[t * args.selected_stride + i - num_window];
    return compressed.pool + rows.block_table[g / compressed.entries_per_block] * compressed.block_stride + compressed.main_offset +
           g % compressed.entries_per_block * main_record;
  }
};

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
  const KeyPlaces place_of{args, compressed, rows, t, first, num_ring, num_window, RecordBytes(args.ring.format, dim), RecordBytes(compressed.main_format, dim)};
  for (int i = tid; i < n; i += kThreads) {
    places[i] = place_of(i);
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

// ---- heads of 512 channels ----------------------------------------------------------------------------------------------
// Four blocks a row and head, a warp a key, 16 channels a lane. Of the 64 warps of the four blocks warp w takes keys w, w + 64, ...
// in both products; sums over warps and blocks are in ascending order. All keys are brought to shared memory at once.

// The lane's channels of a key in shared memory (float: in global memory).
__device__ __forceinline__ void DecodeKey512(device::KeyFormat format, const uint8_t* key, int lane, float* out) {
  if (format == device::KeyFormat::kFloat) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float4 v = *reinterpret_cast<const float4*>(key + 64 * lane + 16 * i);
      out[4 * i] = v.x, out[4 * i + 1] = v.y, out[4 * i + 2] = v.z, out[4 * i + 3] = v.w;
    }
    return;
  }
  float s;
  if (format == device::KeyFormat::kMxFp8) {
    const uint4 v = *reinterpret_cast<const uint4*>(key + 16 * lane);
    s = ScaleOf(key[512 + lane / 2]);
    DecodeE4M3x4(v.x, out);
    DecodeE4M3x4(v.y, out + 4);
    DecodeE4M3x4(v.z, out + 8);
    DecodeE4M3x4(v.w, out + 12);
  } else {
    const uint2 v = *reinterpret_cast<const uint2*>(key + 8 * lane);
    s = DecodeE4M3(key[256 + lane]);
    DecodeE2M1x8(v.x, out);
    DecodeE2M1x8(v.y, out + 8);
  }
#pragma unroll
  for (int i = 0; i < 16; ++i) out[i] *= s;
}

__device__ __forceinline__ void CopyAsync16(void* shared_to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(static_cast<uint32_t>(__cvta_generic_to_shared(shared_to))), "l"(from) : "memory");
}

__device__ __forceinline__ void CopyAsync8(void* shared_to, const void* from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" ::"r"(static_cast<uint32_t>(__cvta_generic_to_shared(shared_to))), "l"(from) : "memory");
}

constexpr int kSlot = 528;  // bytes of a key in shared memory: the longest record that is not float

constexpr int kParts = 4, kPartThreads = 512, kWarps = kPartThreads / 32;

struct PartShared {
  float values[kWarps][512];
  float sums[512];
  float scratch[33];
  float top, total;
};


// Dynamic shared memory: a block's keys, their places, their scores. `rotates`: the query is not rotated yet.
__global__ void __cluster_dims__(kParts, 1, 1) __launch_bounds__(kPartThreads) Attention512Kernel(device::Arithmetic a, device::Step step, device::AttentionArgs args,
                                                              device::KeyCache compressed, int max_keys, bool rotates) {
  namespace cg = cooperative_groups;
  extern __shared__ __align__(16) uint8_t memory[];
  __shared__ PartShared shared;
  auto* places = reinterpret_cast<const uint8_t**>(memory + max_keys * kSlot);
  float* z = reinterpret_cast<float*>(places + max_keys);
  const cg::cluster_group cluster = cg::this_cluster();
  const int part = static_cast<int>(cluster.block_rank());

  const int64_t t = blockIdx.z;
  const int h = blockIdx.y, tid = threadIdx.x, warp = tid >> 5, lane = tid & 31;
  const device::SequenceRows rows = step.sequences[step.row_sequence[t]];
  const int p = step.positions[t];
  const int first = max(max(0, rows.window_floor), args.is_draft_block ? rows.start - args.ring.window : p - args.ring.window + 1);
  const int last = args.is_draft_block ? rows.start + rows.num_rows - 1 : p;
  const int num_window = max(0, last - first + 1);
  const int num_ring = min(num_window, max(0, rows.start - first));
  const float sink = args.sink[h];
  WaitForEarlier();
  const int n = num_window + (compressed.pool != nullptr ? args.num_selected[t] : 0);
  const KeyPlaces place_of{args, compressed, rows, t, first, num_ring, num_window, RecordBytes(args.ring.format, 512), RecordBytes(compressed.main_format, 512)};
  // Key `at` of the block is key KeyOf(at) of the row.
  const auto key_of = [&](int at) { return (at / kWarps) * (kParts * kWarps) + part * kWarps + at % kWarps; };
  const int rest = n % (kParts * kWarps) - part * kWarps;
  const int count = n / (kParts * kWarps) * kWarps + min(max(rest, 0), kWarps);
  const auto format_of = [&](int i) {
    return i < num_ring ? args.ring.format : i < num_window ? device::KeyFormat::kFloat : compressed.main_format;
  };
  // Lane l finds the place of the warp's l-th key, l + 32nd, ...
#pragma unroll 1
  for (int at = warp + lane * kWarps; at < count; at += 32 * kWarps) places[at] = place_of(key_of(at));
  __syncwarp();
#pragma unroll 2
  for (int at = warp; at < count; at += kWarps) {
    const device::KeyFormat format = format_of(key_of(at));
    if (format == device::KeyFormat::kFloat) continue;
    const uint8_t* from = places[at];
    uint8_t* to = memory + at * kSlot;
    if (format == device::KeyFormat::kMxFp8) {
      CopyAsync16(to + 16 * lane, from + 16 * lane);
      if (lane == 0) CopyAsync16(to + 512, from + 512);
    } else {
      CopyAsync8(to + 8 * lane, from + 8 * lane);
      if (lane < 4) CopyAsync8(to + 256 + 8 * lane, from + 256 + 8 * lane);
    }
  }
  // The lane's channels of the query.
  float query[16];
  const int rope_begin = 512 - args.rope_dim, half = args.rope_dim / 2;
  const float* cos = args.rope + t * args.rope_dim;
  {
    const float* q = static_cast<const float*>(args.query.data) + t * args.query.stride + static_cast<int64_t>(h) * 512 + 16 * lane;
#pragma unroll
    for (int i = 0; i < 16; i += 4) {
      const float4 v = *reinterpret_cast<const float4*>(q + i);
      query[i] = v.x, query[i + 1] = v.y, query[i + 2] = v.z, query[i + 3] = v.w;
    }
    if (rotates) {
#pragma unroll
      for (int i = 0; i < 16; i += 2) {
        const int pair = (16 * lane + i - rope_begin) / 2;
        if (16 * lane + i < rope_begin) continue;
        const float x = query[i], y = query[i + 1], cs = cos[pair], sn = cos[half + pair];
        query[i] = RoundIf(x * cs - y * sn, a.round_bf16);
        query[i + 1] = RoundIf(x * sn + y * cs, a.round_bf16);
      }
    }
  }
  asm volatile("cp.async.wait_all;" ::: "memory");
  __syncwarp();
  const auto key_at = [&](int at, float* key) {
    const device::KeyFormat format = format_of(key_of(at));
    DecodeKey512(format, format == device::KeyFormat::kFloat ? places[at] : memory + at * kSlot, lane, key);
  };
  const float scale = 1.0f / sqrtf(512.0f);
#pragma unroll 1
  for (int at = warp; at < count; at += kWarps) {
    float key[16];
    key_at(at, key);
    float sum = 0;
#pragma unroll
    for (int c = 0; c < 16; ++c) sum = fmaf(query[c], key[c], sum);
    sum = WarpSum(sum);
    if (lane == 0) z[at] = sum * scale;
  }
  __syncthreads();

  float top = -1e30f;
#pragma unroll 1
  for (int i = tid; i < count; i += kPartThreads) top = fmaxf(top, z[i]);
  top = LaneMax<32>(top);
  if (lane == 0) shared.scratch[warp] = top;
  __syncthreads();
  top = shared.scratch[0];
#pragma unroll
  for (int w = 1; w < kWarps; ++w) top = fmaxf(top, shared.scratch[w]);
  if (tid == 0) shared.top = top;
  cluster.sync();
#pragma unroll
  for (int b = 0; b < kParts; ++b) top = fmaxf(top, cluster.map_shared_rank(&shared, b)->top);
  float sum = 0;
#pragma unroll 1
  for (int i = tid; i < count; i += kPartThreads) {
    const float e = expf(z[i] - top);
    sum += e;
    z[i] = RoundIf(e, a.round_bf16);
  }
  sum = BlockSum(sum, shared.scratch);
  if (tid == 0) shared.total = sum;
  __syncthreads();

  float acc[16] = {};
#pragma unroll 1
  for (int at = warp; at < count; at += kWarps) {
    float key[16];
    key_at(at, key);
    const float w = z[at];
#pragma unroll
    for (int c = 0; c < 16; ++c) acc[c] = fmaf(w, key[c], acc[c]);
  }
#pragma unroll
  for (int c = 0; c < 16; c += 4) *reinterpret_cast<float4*>(&shared.values[warp][16 * lane + c]) = {acc[c], acc[c + 1], acc[c + 2], acc[c + 3]};
  __syncthreads();
#pragma unroll 1
  for (int c = tid; c < 512; c += kPartThreads) {
    float v = shared.values[0][c];
#pragma unroll
    for (int w = 1; w < kWarps; ++w) v += shared.values[w][c];
    shared.sums[c] = v;
  }
  cluster.sync();
  // Every block ends a quarter of the channels.
  const int c = part * (512 / kParts) + tid;
  float v = 0, den = 0;
  if (tid < 512 / kParts) {
#pragma unroll
    for (int b = 0; b < kParts; ++b) {
      const PartShared* other = cluster.map_shared_rank(&shared, b);
      v += other->sums[c];
      den += other->total;
    }
  }
  auto arrived = cluster.barrier_arrive();  // nobody leaves while others read
  if (tid < 512 / kParts) {
    den += expf(sink - top);
    v = RoundIf(n > 0 ? v / den : 0.0f, a.round_bf16);
    const int64_t at = static_cast<int64_t>(h) * 512 + c;
    if (args.trace_unrotated.data != nullptr) static_cast<float*>(args.trace_unrotated.data)[t * args.trace_unrotated.stride + at] = v;
    static_cast<float*>(args.out.data)[t * args.out.stride + at] = RotateLane(v, c, rope_begin, cos, half, -1.0f, a.round_bf16);
  }
  cluster.barrier_wait(std::move(arrived));
}

}  // namespace

bool AttentionRotates(const device::AttentionArgs& args) { return args.head_dim == 512 && args.query.stride % 4 == 0; }

void LaunchAttention(cudaStream_t stream, const device::Arithmetic& a, const device::Step& step, const device::AttentionArgs& args, bool rotates) {
  device::KeyCache compressed;
  if (args.compressed != nullptr) compressed = *args.compressed;
  constexpr int kMaxBlock = 32;  // rows of a draft block
  constexpr int kMostShared = 160 << 10;
  const int max_keys = args.ring.window + (args.is_draft_block ? kMaxBlock : 0) + (args.compressed != nullptr ? args.selected_stride : 0);
  const dim3 grid(static_cast<unsigned>(args.heads), static_cast<unsigned>(step.num_rows));
  static const bool allowed = [] {
    for (const void* kernel : {reinterpret_cast<const void*>(AttentionKernel), reinterpret_cast<const void*>(Attention512Kernel)})
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kMostShared);
    return true;
  }();
  static_cast<void>(allowed);
  if (AttentionRotates(args)) {
    Start(Attention512Kernel, dim3(kParts, static_cast<unsigned>(args.heads), static_cast<unsigned>(step.num_rows)), kPartThreads,
          static_cast<size_t>(max_keys / kParts + kWarps) * (kSlot + 12), stream, a, step, args, compressed, max_keys / kParts + kWarps, rotates);
    return;
  }
  const int parts = kThreads / (args.head_dim / 4);
  const size_t bytes = static_cast<size_t>(max_keys) * 12 + static_cast<size_t>(args.head_dim) * 4 * static_cast<size_t>(1 + parts);
  Start(AttentionKernel, grid, kThreads, bytes, stream, a, step, args, compressed, max_keys);
}

}  // namespace deepinfer::cuda
