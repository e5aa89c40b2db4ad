// SPDX-License-Identifier: Apache-2.0
//
// Index scores of all visible groups, then an exact choice of the best ones by radix: the bits of the CPU backend.

#include "backends/cuda/ops/launch.h"
#include "backends/cuda/ops/numbers.cuh"
#include "backends/cuda/ops/start.cuh"

namespace deepinfer::cuda {
namespace {

constexpr int kScoreThreads = 128;
constexpr int kSelectThreads = 512;
using Candidates = device::SelectArgs::Candidates;

__device__ __forceinline__ int VisibleGroups(const device::Step& step, int64_t t, int ratio) { return (step.positions[t] + 1) / ratio; }

// Whether group g lies in a candidate block of the row: a binary search in the ascending list.
__device__ __forceinline__ bool IsCandidate(const device::SelectArgs& args, int64_t t, int g) {
  const int32_t* blocks = args.candidates + t * args.keep_blocks;
  const int wanted = g / args.block_size, count = args.num_candidates[t];
  int low = 0, high = count;
  while (low < high) {
    const int middle = (low + high) / 2;
    if (blocks[middle] < wanted) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low < count && blocks[low] == wanted;
}

__device__ __forceinline__ float Scaled(float w, const WeightScale& scale) {
  return scale.factor == 1.0f ? w : RoundIf(w * scale.factor, scale.round);
}

// One thread a group, all heads. Shared memory: the row's query, [dim][kHeads] so that heads lie side by side, and weights.
template <int kHeads>
__global__ void __launch_bounds__(kScoreThreads) ScoreKernel(device::Step step, device::SelectArgs args, int64_t first_row, int64_t stride,
                                                            float* scores, WeightScale scale) {
  WaitForEarlier();
  extern __shared__ float query[];
  const int64_t t = first_row + blockIdx.y;
  const device::KeyCache& cache = args.cache;
  const int dim = cache.index_dim, visible = VisibleGroups(step, t, cache.ratio);
  const int begin = blockIdx.x * kScoreThreads;
  if (begin >= visible || (visible <= args.topk && args.trace_scores == nullptr)) return;
  float* weights = query + dim * kHeads;
  const float* q = static_cast<const float*>(args.query.data) + t * args.query.stride;
  const float* w = static_cast<const float*>(args.weight.data) + t * args.weight.stride;
  for (int i = threadIdx.x; i < dim * kHeads; i += kScoreThreads) {
    const int h = i % kHeads, d = i / kHeads;
    query[i] = h < args.heads ? q[h * dim + d] : 0.0f;
  }
  for (int h = threadIdx.x; h < kHeads; h += kScoreThreads) weights[h] = h < args.heads ? Scaled(w[h], scale) : 0.0f;
  __syncthreads();
  const int g = begin + threadIdx.x;
  if (g >= visible) return;
  if (args.role == Candidates::kConsume && args.trace_scores == nullptr && args.num_candidates[t] >= 0 && !IsCandidate(args, t, g)) {
    scores[blockIdx.y * stride + g] = -INFINITY;
    return;
  }
  const device::SequenceRows& rows = step.sequences[step.row_sequence[t]];
  const uint8_t* region = cache.pool + rows.block_table[g / cache.entries_per_block] * cache.block_stride + cache.index_offset;
  const int entry = g % cache.entries_per_block;
  float dots[kHeads];
#pragma unroll
  for (int h = 0; h < kHeads; ++h) dots[h] = 0;
  if (cache.index_format == device::KeyFormat::kFp4Pow2) {
    const uint8_t* data = region + entry * (dim / 2);
    const uint8_t* scale = region + cache.entries_per_block * (dim / 2) + entry * (dim / 32);
    for (int b = 0; b < dim / 32; ++b) {
      float part[kHeads];
#pragma unroll
      for (int h = 0; h < kHeads; ++h) part[h] = 0;
      const uint4 codes = *reinterpret_cast<const uint4*>(data + b * 16);
      const uint32_t words[4] = {codes.x, codes.y, codes.z, codes.w};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
#pragma unroll
        for (int j = 0; j < 8; ++j) {
          const float k = DecodeE2M1((words[i] >> (4 * j)) & 15u);
          const float* at = query + (b * 32 + i * 8 + j) * kHeads;
#pragma unroll
          for (int h = 0; h < kHeads; h += 4) {
            const float4 v = *reinterpret_cast<const float4*>(at + h);
            part[h] = fmaf(k, v.x, part[h]);
            part[h + 1] = fmaf(k, v.y, part[h + 1]);
            part[h + 2] = fmaf(k, v.z, part[h + 2]);
            part[h + 3] = fmaf(k, v.w, part[h + 3]);
          }
        }
      }
      // A block's sum is exact; so is its scale.
      const float s = ScaleOf(scale[b]);
#pragma unroll
      for (int h = 0; h < kHeads; ++h) dots[h] += part[h] * s;
    }
  } else {
    const float* key = reinterpret_cast<const float*>(region) + static_cast<int64_t>(entry) * dim;
    for (int d = 0; d < dim; ++d) {
      const float k = key[d];
#pragma unroll
      for (int h = 0; h < kHeads; ++h) dots[h] += query[d * kHeads + h] * k;
    }
  }
  float lanes[8] = {};
#pragma unroll
  for (int h = 0; h < kHeads; h += 8) {
#pragma unroll
    for (int i = 0; i < 8; ++i) lanes[i] += weights[h + i] * (dots[h + i] > 0.0f ? dots[h + i] : 0.0f);
  }
  scores[blockIdx.y * stride + g] = ((lanes[0] + lanes[4]) + (lanes[2] + lanes[6])) + ((lanes[1] + lanes[5]) + (lanes[3] + lanes[7]));
}

// The same sums for FP4 keys of 128 channels: four lanes a key, a block of 32 channels each, added in the order of the blocks.
template <int kHeads>
__global__ void __launch_bounds__(kScoreThreads) Score128Kernel(device::Step step, device::SelectArgs args, int64_t first_row, int64_t stride,
                                                               float* scores, WeightScale scale) {
  WaitForEarlier();
  extern __shared__ float query[];  // [4][32][kHeads], blocks padded against bank conflicts
  constexpr int kBlock = 32 * kHeads + 4;
  const int64_t t = first_row + blockIdx.y;
  const device::KeyCache& cache = args.cache;
  const int visible = VisibleGroups(step, t, cache.ratio), begin = blockIdx.x * (kScoreThreads / 4);
  if (begin >= visible || (visible <= args.topk && args.trace_scores == nullptr)) return;
  float* weights = query + 4 * kBlock;
  const float* q = static_cast<const float*>(args.query.data) + t * args.query.stride;
  const float* w = static_cast<const float*>(args.weight.data) + t * args.weight.stride;
  for (int i = threadIdx.x; i < 128 * kHeads; i += kScoreThreads) {
    const int h = i / 128, d = i % 128;
    query[d / 32 * kBlock + d % 32 * kHeads + h] = h < args.heads ? q[h * 128 + d] : 0.0f;
  }
  for (int h = threadIdx.x; h < kHeads; h += kScoreThreads) weights[h] = h < args.heads ? Scaled(w[h], scale) : 0.0f;
  __syncthreads();
  const int g = min(begin + static_cast<int>(threadIdx.x >> 2), visible - 1), b = threadIdx.x & 3;
  const device::SequenceRows& rows = step.sequences[step.row_sequence[t]];
  const uint8_t* region = cache.pool + rows.block_table[g / cache.entries_per_block] * cache.block_stride + cache.index_offset;
  const int entry = g % cache.entries_per_block;
  const uint4 codes = *reinterpret_cast<const uint4*>(region + entry * 64 + b * 16);
  const float s = ScaleOf(region[cache.entries_per_block * 64 + entry * 4 + b]);
  const uint32_t words[4] = {codes.x, codes.y, codes.z, codes.w};
  float part[kHeads];
#pragma unroll
  for (int h = 0; h < kHeads; ++h) part[h] = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const float k = DecodeE2M1((words[i] >> (4 * j)) & 15u);
      const float* at = query + b * kBlock + (i * 8 + j) * kHeads;
#pragma unroll
      for (int h = 0; h < kHeads; h += 4) {
        const float4 v = *reinterpret_cast<const float4*>(at + h);
        part[h] = fmaf(k, v.x, part[h]);
        part[h + 1] = fmaf(k, v.y, part[h + 1]);
        part[h + 2] = fmaf(k, v.z, part[h + 2]);
        part[h + 3] = fmaf(k, v.w, part[h + 3]);
      }
    }
  }
  float lanes[8] = {};
#pragma unroll
  for (int h = 0; h < kHeads; ++h) {
    const float own = part[h] * s;
    const int first = threadIdx.x & 28;
    float dot = 0.0f + __shfl_sync(~0u, own, first);
    dot += __shfl_sync(~0u, own, first + 1);
    dot += __shfl_sync(~0u, own, first + 2);
    dot += __shfl_sync(~0u, own, first + 3);
    lanes[h & 7] += weights[h] * (dot > 0.0f ? dot : 0.0f);
  }
  if (b != 0 || begin + static_cast<int>(threadIdx.x >> 2) >= visible) return;
  float score = ((lanes[0] + lanes[4]) + (lanes[2] + lanes[6])) + ((lanes[1] + lanes[5]) + (lanes[3] + lanes[7]));
  if (args.role == Candidates::kConsume && args.trace_scores == nullptr && args.num_candidates[t] >= 0 && !IsCandidate(args, t, g)) score = -INFINITY;
  scores[blockIdx.y * stride + g] = score;
}

// Order-preserving integer of a float; -0 counts as 0.
__device__ __forceinline__ uint32_t OrderKey(float x) {
  const uint32_t bits = __float_as_uint(x + 0.0f);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}
constexpr uint32_t kMinusInfinityKey = 0x007fffffu;

struct SelectShared {
  int32_t histogram[256];
  int32_t warp_counts[2][kSelectThreads / 32];
  uint32_t prefix;
  int32_t wanted;
  int32_t total;
  __align__(16) uint32_t keys[kSelectThreads];
};

// The k best of values[0, n) in ascending order of their numbers; the lower number wins ties; -inf is never chosen. All threads
// of the block; returns how many.
__device__ __noinline__ int SelectTopK(const float* values, int n, int k, int32_t* out, SelectShared& s) {
  const int tid = threadIdx.x, warp = tid >> 5, lane = tid & 31;
  if (n <= kSelectThreads) {
    // Few: a thread a value counts the better ones.
    const uint32_t own = tid < n ? OrderKey(values[tid]) : 0;
    __syncthreads();
    s.keys[tid] = own;
    __syncthreads();
    int rank = 0;
    if (warp * 32 < n) {
#pragma unroll 4
      for (int i = 0; i < n; i += 4) {
        const uint4 other = *reinterpret_cast<const uint4*>(s.keys + i);
        rank += other.x > own || (other.x == own && i < tid);
        rank += other.y > own || (other.y == own && i + 1 < tid);
        rank += other.z > own || (other.z == own && i + 2 < tid);
        rank += other.w > own || (other.w == own && i + 3 < tid);
      }
    }
    const bool takes = own > kMinusInfinityKey && rank < k;
    const uint32_t mask = __ballot_sync(~0u, takes);
    if (lane == 0) s.warp_counts[0][warp] = __popc(mask);
    __syncthreads();
    int at = 0, taken = 0;
    for (int w = 0; w < kSelectThreads / 32; ++w) {
      if (w < warp) at += s.warp_counts[0][w];
      taken += s.warp_counts[0][w];
    }
    if (takes) out[at + __popc(mask & ((1u << lane) - 1u))] = tid;
    return taken;
  }
  // How many there are at all.
  int count = 0;
  for (int i = tid; i < n; i += kSelectThreads) count += OrderKey(values[i]) > kMinusInfinityKey;
  count = __reduce_add_sync(~0u, count);
  __syncthreads();
  if (lane == 0) s.warp_counts[0][warp] = count;
  __syncthreads();
  count = 0;
  for (int w = 0; w < kSelectThreads / 32; ++w) count += s.warp_counts[0][w];
  const bool takes_all = count <= k;
  uint32_t threshold = kMinusInfinityKey + 1;
  int ties = n;  // of the threshold itself, as many as there are
  if (!takes_all) {
    uint32_t prefix = 0, mask = 0;
    int wanted = k;
    for (int shift = 24; shift >= 0; shift -= 8) {
      __syncthreads();
      for (int i = tid; i < 256; i += kSelectThreads) s.histogram[i] = 0;
      __syncthreads();
      for (int i = tid; i < n; i += kSelectThreads) {
        const uint32_t key = OrderKey(values[i]);
        if ((key & mask) == prefix) atomicAdd(&s.histogram[(key >> shift) & 255u], 1);
      }
      __syncthreads();
      if (warp == 0) {
        // Lane l holds digits 255 - 8l downwards; sums of the lanes above it.
        int own = 0;
        for (int i = 0; i < 8; ++i) own += s.histogram[255 - 8 * lane - i];
        int before = own;
#pragma unroll
        for (int d = 1; d < 32; d <<= 1) {
          const int v = __shfl_up_sync(~0u, before, d);
          if (lane >= d) before += v;
        }
        before -= own;
        if (before < wanted && before + own >= wanted) {
          int left = wanted - before, digit = 255 - 8 * lane;
          while (s.histogram[digit] < left) left -= s.histogram[digit--];
          s.prefix = prefix | (static_cast<uint32_t>(digit) << shift);
          s.wanted = left;
        }
      }
      __syncthreads();
      prefix = s.prefix;
      wanted = s.wanted;
      mask |= 255u << shift;
    }
    threshold = prefix;
    ties = wanted;
  }
  // Ascending: positions from counts of the threads before.
  int taken = 0, tied = 0;
  for (int base = 0; base < n; base += kSelectThreads) {
    const int i = base + tid;
    const uint32_t key = i < n ? OrderKey(values[i]) : 0;
    const bool is_tie = !takes_all && key == threshold, is_above = takes_all ? key >= threshold : key > threshold;
    const uint32_t tie_mask = __ballot_sync(~0u, is_tie);
    __syncthreads();
    if (lane == 0) s.warp_counts[0][warp] = __popc(tie_mask);
    __syncthreads();
    int ties_before = tied;
    for (int w = 0; w < kSelectThreads / 32; ++w) {
      if (w < warp) ties_before += s.warp_counts[0][w];
      tied += s.warp_counts[0][w];
    }
    ties_before += __popc(tie_mask & ((1u << lane) - 1u));
    const bool takes = is_above || (is_tie && ties_before < ties);
    const uint32_t take_mask = __ballot_sync(~0u, takes);
    if (lane == 0) s.warp_counts[1][warp] = __popc(take_mask);
    __syncthreads();
    int at = taken;
    for (int w = 0; w < kSelectThreads / 32; ++w) {
      if (w < warp) at += s.warp_counts[1][w];
      taken += s.warp_counts[1][w];
    }
    at += __popc(take_mask & ((1u << lane) - 1u));
    if (takes) out[at] = i;
  }
  return taken;
}

// One block a row.
__global__ void __launch_bounds__(kSelectThreads) ChooseKernel(device::Step step, device::SelectArgs args, int64_t first_row, int64_t stride,
                                                              float* all_scores, int64_t block_stride, float* all_blocks) {
  WaitForEarlier();
  __shared__ SelectShared shared;
  const int64_t t = first_row + blockIdx.x;
  const int tid = threadIdx.x;
  const int visible = VisibleGroups(step, t, args.cache.ratio);
  const int num_blocks = args.block_size > 0 ? (visible + args.block_size - 1) / args.block_size : 0;
  const bool keeps_all_blocks = num_blocks <= args.keep_blocks, traces = args.trace_scores != nullptr;
  int32_t* selected = args.selected + t * args.topk;
  if (args.role == Candidates::kProduce && keeps_all_blocks && tid == 0) args.num_candidates[t] = -1;
  if (visible <= args.topk && !traces) {
    for (int g = tid; g < visible; g += kSelectThreads) selected[g] = g;
    if (tid == 0) args.num_selected[t] = visible;
    return;
  }
  float* scores = all_scores + blockIdx.x * stride;
  if (traces)
    for (int64_t g = tid; g < args.trace_groups; g += kSelectThreads) args.trace_scores[t * args.trace_groups + g] = g < visible ? scores[g] : -INFINITY;
  if (args.role == Candidates::kProduce) {
    float* blocks = all_blocks + blockIdx.x * block_stride;
    for (int b = tid; b < num_blocks; b += kSelectThreads) {
      const int end = min(visible, (b + 1) * args.block_size);
      float best = scores[b * args.block_size];
      for (int i = b * args.block_size + 1; i < end; ++i) best = fmaxf(best, scores[i]);
      blocks[b] = b == num_blocks - 1 ? INFINITY : best;
    }
    __syncthreads();
    if (args.trace_block_scores != nullptr) {
      const int64_t width = (args.trace_groups + args.block_size - 1) / args.block_size;
      for (int64_t b = tid; b < width; b += kSelectThreads) args.trace_block_scores[t * width + b] = b < num_blocks ? blocks[b] : -INFINITY;
    }
    if (!keeps_all_blocks) {
      const int kept = SelectTopK(blocks, num_blocks, args.keep_blocks, args.candidates + t * args.keep_blocks, shared);
      if (tid == 0) args.num_candidates[t] = kept;
    }
  }
  if (args.role == Candidates::kConsume && traces && args.num_candidates[t] >= 0) {
    // All scores were wanted for the trace: those outside the candidates do not count.
    const int32_t* kept = args.candidates + t * args.keep_blocks;
    for (int g = tid; g < visible; g += kSelectThreads) {
      bool is_inside = false;
      for (int c = 0; c < args.num_candidates[t]; ++c) is_inside |= kept[c] == g / args.block_size;
      if (!is_inside) scores[g] = -INFINITY;
    }
    __syncthreads();
  }
  const int count = SelectTopK(scores, visible, args.topk, selected, shared);
  if (tid == 0) args.num_selected[t] = count;
}

template <int kHeads>
void LaunchScores(cudaStream_t stream, const device::Step& step, const device::SelectArgs& args, int64_t first_row, int64_t rows, float* scores,
                  const WeightScale& scale) {
  if (args.cache.index_dim == 128 && args.cache.index_format == device::KeyFormat::kFp4Pow2 && kHeads <= 32) {
    constexpr int kKeys = kScoreThreads / 4;
    Start(Score128Kernel<kHeads>, dim3(static_cast<unsigned>((args.max_groups + kKeys - 1) / kKeys), static_cast<unsigned>(rows)), kScoreThreads,
          (4 * (32 * kHeads + 4) + kHeads) * sizeof(float), stream, step, args, first_row, args.max_groups, scores, scale);
    return;
  }
  const size_t bytes = static_cast<size_t>(args.cache.index_dim + 1) * kHeads * sizeof(float);
  cudaFuncSetAttribute(ScoreKernel<kHeads>, cudaFuncAttributeMaxDynamicSharedMemorySize, 96 << 10);
  const auto blocks = static_cast<unsigned>((args.max_groups + kScoreThreads - 1) / kScoreThreads);
  Start(ScoreKernel<kHeads>, dim3(blocks, static_cast<unsigned>(rows)), kScoreThreads, bytes, stream, step, args, first_row, args.max_groups, scores, scale);
}

}  // namespace

void LaunchSelect(cudaStream_t stream, const device::Step& step, const device::SelectArgs& args, int64_t first_row, int64_t rows,
                  float* scores, float* blocks, const WeightScale& scale) {
  if (args.max_groups > args.topk || (args.trace_scores != nullptr && args.max_groups > 0)) {
    if (args.heads <= 8) {
      LaunchScores<8>(stream, step, args, first_row, rows, scores, scale);
    } else if (args.heads <= 16) {
      LaunchScores<16>(stream, step, args, first_row, rows, scores, scale);
    } else if (args.heads <= 32) {
      LaunchScores<32>(stream, step, args, first_row, rows, scores, scale);
    } else {
      LaunchScores<64>(stream, step, args, first_row, rows, scores, scale);
    }
  }
  const int64_t block_stride = args.block_size > 0 ? (args.max_groups + args.block_size - 1) / args.block_size : 0;
  Start(ChooseKernel, static_cast<unsigned>(rows), kSelectThreads, 0, stream, step, args, first_row, args.max_groups, scores, block_stride, blocks);
}

}  // namespace deepinfer::cuda
