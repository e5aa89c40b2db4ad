// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda/kernels/dense.h"

#include <algorithm>

#include "backends/cuda/kernels/launch.h"
#include "backends/cuda/kernels/numbers.cuh"
#include "backends/cuda/kernels/stream.cuh"

namespace deepinfer::cuda {
namespace {

struct StreamArgs {
  const uint8_t* weights;
  const __nv_bfloat16* x;
  int64_t ldx;
  int tokens;
  int units;            // of all segments
  int units_per_segment;
  int units_per_group;  // block-diagonal: units that share columns of x; 0 = all
  int granule;          // a block gets whole multiples of this many units
  int rows;
  void* y;
  int64_t ldy;
  OutputType out;
  bool swiglu;
  float limit;
  bool round_bf16;
  float* sums;    // two segments: [2][tokens][rows padded]
  int* counters;  // [units per segment], zero between calls
};

__device__ __forceinline__ void Store(const StreamArgs& a, int token, int row, float value) {
  if (row >= a.rows) return;
  const int64_t at = token * a.ldy + row;
  if (a.out == OutputType::kBf16) {
    static_cast<__nv_bfloat16*>(a.y)[at] = __float2bfloat16_rn(value);
  } else {
    static_cast<float*>(a.y)[at] = a.out == OutputType::kFloat ? value : RoundBf16(value);
  }
}

template <typename G, int kTokenTiles>
__global__ void __launch_bounds__(kStreamThreads, 1) DenseStreamKernel(const __grid_constant__ StreamArgs a) {
  extern __shared__ __align__(128) uint8_t smem[];
  using Ring = StreamRing<G>;
  using P = Partials<kTokenTiles>;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int granules = a.units / a.granule;
  const int begin = static_cast<int>(int64_t{blockIdx.x} * granules / gridDim.x) * a.granule;
  const int end = static_cast<int>((int64_t{blockIdx.x} + 1) * granules / gridDim.x) * a.granule;
  const uint8_t* source = a.weights + (int64_t{begin} * kPackWarps + warp) * (G::kChunks * G::kChunkBytes);
  const int num_chunks = (end - begin) * G::kChunks;
  int asked = 0;
  const auto next = [&](int) -> const uint8_t* {
    if (asked >= num_chunks) return nullptr;
    const uint8_t* chunk = source + (asked / G::kChunks) * G::kUnitBytes + (asked % G::kChunks) * G::kChunkBytes;
    ++asked;
    return chunk;
  };

  WarpRing<G> ring;
  ring.Init(smem, warp, lane);
  BatchBuffers<kTokenTiles> batches{reinterpret_cast<float*>(smem + StreamSmem<G>::kPartialOffset),
                                    reinterpret_cast<uint64_t*>(smem + StreamSmem<G>::kBatchOffset)};
  if (threadIdx.x == 0) InitBatchBarriers(batches.bars);
  DependencyLaunch();
  if (lane == 0) {
    for (int i = 0; i < Ring::kDepth && i < num_chunks; ++i) ring.Fill(i, next(0));
  }
  __syncthreads();
  DependencyWait();

  uint32_t x[G::kGroups][kTokenTiles][4];
  for (int unit = begin; unit < end;) {
    const int segment = unit / a.units_per_segment;
    const int row_unit = unit % a.units_per_segment;
    // Columns of x that units up to `last` use.
    int columns = segment, last = (segment + 1) * a.units_per_segment;
    if (a.units_per_group > 0) {
      columns = row_unit / a.units_per_group;
      last = (columns + 1) * a.units_per_group;
    }
    last = min(last, end);
    const __nv_bfloat16* from[kTokenTiles];
#pragma unroll
    for (int n = 0; n < kTokenTiles; ++n) {
      const int token = 8 * n + lane / 4;
      from[n] = token < a.tokens
                    ? a.x + token * a.ldx + int64_t{columns} * G::kSegmentCols + (warp % G::kSlices) * (G::kGroups * 32)
                    : nullptr;
    }
    LoadTokens<G, kTokenTiles>(from, lane, x);
    RunUnits<G, kTokenTiles>(
        ring, batches, x, warp, lane, unit, last, next, [&](const float* buffer, int first, int count, int owner) {
          const int row_first = first - segment * a.units_per_segment;
          if (a.swiglu) {
            const int item = row_first / kBatchUnits;
            for (int token = owner; token < a.tokens; token += P::kOwners) {
              const float* from_unit = buffer + lane / 8 * P::kUnitFloats;
              const float gate = SumSlices<G, kTokenTiles>(from_unit, 0, token, lane % 8);
              const float up = SumSlices<G, kTokenTiles>(from_unit, 0, token, lane % 8 + 8);
              StoreSwiglu(gate, up, a.limit, 1.0f, a.round_bf16,
                          static_cast<__nv_bfloat16*>(a.y) + token * a.ldy + item * 32, lane);
            }
            return;
          }
          constexpr int kRows = 16 * G::kRowTiles;  // of a unit
          const int blocks = (count * kRows + 31) / 32;
          for (int i = owner; i < blocks * a.tokens; i += P::kOwners) {
            const int token = i / blocks;
            const int o = i % blocks * 32 + lane;
            if (o >= count * kRows) continue;
            const float sum =
                SumSlices<G, kTokenTiles>(buffer + o / kRows * P::kUnitFloats, o % kRows / 16, token, o % 16);
            const int r = row_first * kRows + o;
            if (a.sums != nullptr) {
              a.sums[(int64_t{segment} * 16 + token) * (a.units_per_segment * kRows) + r] = sum;
            } else {
              Store(a, token, r, sum);
            }
          }
        });
    unit = last;
  }
  if (a.sums == nullptr) return;

  // Two segments: whoever is last with a unit adds both.
  __shared__ int is_last[kStreamThreads];
  for (int first = begin; first < end; first += kStreamThreads) {
    const int count = min(kStreamThreads, end - first);
    __threadfence();
    __syncthreads();
    if (threadIdx.x < count) {
      int* counter = a.counters + (first + threadIdx.x) % a.units_per_segment;
      const int before = atomicAdd(counter, 1);
      is_last[threadIdx.x] = before == 1;
      if (before == 1) *counter = 0;
    }
    __threadfence();
    __syncthreads();
    constexpr int kRows = 16 * G::kRowTiles;
    const int padded = a.units_per_segment * kRows;
    for (int o = threadIdx.x; o < count * kRows * a.tokens; o += kStreamThreads) {
      const int u = o / (kRows * a.tokens);
      if (!is_last[u]) continue;
      const int token = o / kRows % a.tokens;
      const int r = (first + u) % a.units_per_segment * kRows + o % kRows;
      const float* at = a.sums + int64_t{token} * padded + r;
      Store(a, token, r, __ldcg(at) + __ldcg(at + int64_t{16} * padded));
    }
    __syncthreads();
  }
}

template <typename G>
cudaError_t LaunchStream(StreamArgs a, int blocks, cudaStream_t stream, bool dependent) {
  if (a.tokens <= 8) {
    return Launch(DenseStreamKernel<G, 1>, dim3(blocks), dim3(kStreamThreads), StreamSmem<G>::kBytes, stream, dependent, a);
  }
  return Launch(DenseStreamKernel<G, 2>, dim3(blocks), dim3(kStreamThreads), StreamSmem<G>::kBytes, stream, dependent, a);
}

// One thread per block of 32 values.
template <typename T>
__global__ void QuantizeKernel(const T* x, int64_t ldx, int64_t rows, int blocks, __nv_bfloat16* out, int64_t ldo) {
  // Eight lanes share a block, four values each.
  const int64_t i = (int64_t{blockIdx.x} * blockDim.x + threadIdx.x);
  const int64_t block = i / 8;
  const bool is_valid = block < rows * blocks;
  const int64_t row = is_valid ? block / blocks : 0;
  const int col = is_valid ? static_cast<int>(block % blocks) * 32 + static_cast<int>(i % 8) * 4 : 0;
  float v[4];
  for (int j = 0; j < 4; ++j) v[j] = static_cast<float>(x[row * ldx + col + j]);
  float amax = fmaxf(fmaxf(fabsf(v[0]), fabsf(v[1])), fmaxf(fabsf(v[2]), fabsf(v[3])));
  for (int d = 4; d > 0; d /= 2) amax = fmaxf(amax, __shfl_xor_sync(0xffffffffu, amax, d));
  const int e = QuantExponent(amax);
  if (!is_valid) return;
  for (int j = 0; j < 4; ++j) out[row * ldo + col + j] = __float2bfloat16_rn(FakeFp8(v[j], e));
}

}  // namespace

int64_t DenseWorkspaceBytes(const PackedLayout& layout) {
  if (layout.segments != 2) return 0;
  const int64_t padded = int64_t{layout.units_per_segment()} * 16 * layout.row_tiles;
  return 2 * 16 * padded * 4 + layout.units_per_segment() * 4;
}

cudaError_t LaunchDenseStream(const DenseArgs& args, cudaStream_t stream) {
  const PackedLayout& l = args.layout;
  if (!l.valid() || args.tokens < 0 || (l.segments == 2 && (args.workspace == nullptr || args.num_groups != 1)))
    return cudaErrorInvalidValue;
  if (args.num_groups > 1 && l.units_per_segment() % args.num_groups != 0) return cudaErrorInvalidValue;
  if (args.swiglu && (l.row_tiles != 1 || l.segments != 1 || l.rows % 64 != 0)) return cudaErrorInvalidValue;
  StreamArgs a = {};
  a.weights = args.weights;
  a.ldx = args.ldx;
  a.units = l.units();
  a.units_per_segment = l.units_per_segment();
  a.units_per_group = args.num_groups > 1 ? l.units_per_segment() / args.num_groups : 0;
  a.granule = args.swiglu ? kBatchUnits : 1;
  a.rows = l.rows;
  a.ldy = args.ldy;
  a.out = args.out;
  a.swiglu = args.swiglu;
  a.limit = args.swiglu_limit;
  a.round_bf16 = args.round_bf16;
  if (l.segments == 2) {
    a.sums = static_cast<float*>(args.workspace);
    a.counters = reinterpret_cast<int*>(a.sums + int64_t{2} * 16 * l.units_per_segment() * 16 * l.row_tiles);
  }
  const int value_bytes = args.swiglu || args.out == OutputType::kBf16 ? 2 : 4;
  const int blocks = std::min(NumMultiprocessors(), a.units / a.granule);
  for (int first = 0; first < args.tokens; first += 16) {
    a.tokens = std::min(16, args.tokens - first);
    a.x = args.x + first * args.ldx;
    a.y = static_cast<uint8_t*>(args.y) + first * args.ldy * value_bytes;
    cudaError_t error = cudaErrorInvalidValue;
    const auto launch = [&]<typename G>(G) { error = LaunchStream<G>(a, blocks, stream, args.dependent); };
    if (l.kind == PackedKind::kFp8) {
      switch (l.cols) {
        case 1280: launch(Geometry<PackedKind::kFp8, 4, 10, 5>{}); break;
        case 2304: launch(Geometry<PackedKind::kFp8, 8, 9, 3>{}); break;
        case 4096: case 8192: launch(Geometry<PackedKind::kFp8, 16, 8, 4>{}); break;
        case 5120: launch(Geometry<PackedKind::kFp8, 16, 10, 5>{}); break;
        case 6144: launch(Geometry<PackedKind::kFp8, 16, 12, 3>{}); break;
      }
    } else if (l.kind == PackedKind::kBf16) {
      if (l.cols == 5120) launch(Geometry<PackedKind::kBf16, 16, 10, 2>{});
    }
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

cudaError_t LaunchQuantize(const void* x, bool is_float, int64_t ldx, int64_t rows, int cols, __nv_bfloat16* out, int64_t ldo,
                           cudaStream_t stream) {
  if (cols % 32 != 0) return cudaErrorInvalidValue;
  if (rows == 0) return cudaSuccess;
  const int64_t threads = rows * (cols / 32) * 8;
  const auto blocks = static_cast<unsigned>((threads + 255) / 256);
  if (is_float) {
    QuantizeKernel<<<blocks, 256, 0, stream>>>(static_cast<const float*>(x), ldx, rows, cols / 32, out, ldo);
  } else {
    QuantizeKernel<<<blocks, 256, 0, stream>>>(static_cast<const __nv_bfloat16*>(x), ldx, rows, cols / 32, out, ldo);
  }
  return cudaGetLastError();
}

}  // namespace deepinfer::cuda
