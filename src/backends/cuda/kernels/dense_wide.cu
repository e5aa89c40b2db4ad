// SPDX-License-Identifier: Apache-2.0
//
// Dense products with many tokens: wgmma over tiles of weight rows and tokens.
#include <algorithm>

#include "backends/cuda/kernels/dense.h"
#include "backends/cuda/kernels/launch.h"
#include "backends/cuda/kernels/numbers.cuh"
#include "backends/cuda/kernels/wide.cuh"

namespace deepinfer::cuda {
namespace {

struct WideArgs {
  const uint8_t* weights;
  const __nv_bfloat16* x;
  int64_t ldx;
  int tokens;
  int rows;
  int units_per_segment;
  int row_tiles;    // of the grid of tiles
  int token_tiles;
  int rows_per_group;  // block-diagonal: rows that share columns of x; 0 = all
  void* y;
  int64_t ldy;
  OutputType out;
  float limit;
  bool round_bf16;
};

template <int kN>
__device__ __forceinline__ void StorePlain(const WideArgs& a, int first_token, int row, const float (&sums)[kN / 2]) {
  const int group = threadIdx.x / 128, warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const int first = row + group * 64 + warp * 16;
  if (first >= a.rows) return;  // padding, in tiles of 16
#pragma unroll
  for (int j = 0; j < kN / 8; ++j) {
    if (a.out == OutputType::kBf16) {
      const uint32_t low = Transpose8x8(PackBf16(sums[4 * j], sums[4 * j + 1]));
      const uint32_t high = Transpose8x8(PackBf16(sums[4 * j + 2], sums[4 * j + 3]));
      const int token = first_token + 8 * j + g;
      if (token < a.tokens) {
        __nv_bfloat16* to = static_cast<__nv_bfloat16*>(a.y) + token * a.ldy + first + 2 * t;
        *reinterpret_cast<uint32_t*>(to) = low;
        *reinterpret_cast<uint32_t*>(to + 8) = high;
      }
    } else {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int token = first_token + 8 * j + 2 * t + (i & 1);
        const float v = sums[4 * j + i];
        if (token < a.tokens)
          static_cast<float*>(a.y)[token * a.ldy + first + g + 8 * (i / 2)] = a.out == OutputType::kFloat ? v : RoundBf16(v);
      }
    }
  }
}

// SwiGLU of a warpgroup's 32 channels: lane 4g + t of warp w has gate and up of channel 8w + g.
template <int kN, int kMaxTokens>
__device__ __forceinline__ void StoreGateUp(const WideArgs& a, int first_token, int channel, float (&sums)[kN / 2], float* maxima) {
  const int group = threadIdx.x / 128, warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  maxima += group * 4 * kMaxTokens;
#pragma unroll
  for (int j = 0; j < kN / 8; ++j) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float gate = sums[4 * j + i], up = sums[4 * j + 2 + i];
      if (a.round_bf16) gate = RoundBf16(gate), up = RoundBf16(up);
      float x = Swiglu(gate, up, a.limit, 1.0f);
      if (a.round_bf16) x = RoundBf16(x);
      sums[4 * j + i] = x;
      float amax = fabsf(x);
#pragma unroll
      for (int d = 4; d < 32; d *= 2) amax = fmaxf(amax, __shfl_xor_sync(0xffffffffu, amax, d));
      if (g == 0) maxima[warp * kMaxTokens + 8 * j + 2 * t + i] = amax;
    }
  }
  NamedSync(1 + group, 128);
#pragma unroll
  for (int j = 0; j < kN / 8; ++j) {
    float q[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float* at = maxima + 8 * j + 2 * t + i;
      const float amax = fmaxf(fmaxf(at[0], at[kMaxTokens]), fmaxf(at[2 * kMaxTokens], at[3 * kMaxTokens]));
      q[i] = FakeFp8(sums[4 * j + i], QuantExponent(amax));
    }
    const uint32_t pair = Transpose8x8(PackBf16(q[0], q[1]));  // channels 2t, 2t + 1 of token 8j + g
    const int token = first_token + 8 * j + g;
    if (token < a.tokens) {
      __nv_bfloat16* to = static_cast<__nv_bfloat16*>(a.y) + token * a.ldy + channel + group * 32 + warp * 8 + 2 * t;
      *reinterpret_cast<uint32_t*>(to) = pair;
    }
  }
  NamedSync(1 + group, 128);
}

template <typename S, bool kBySlice, int kSegments, bool kSwiglu>
__global__ void __launch_bounds__(S::Threads::kCount, 1) DenseWideKernel(const __grid_constant__ WideArgs a) {
  extern __shared__ uint8_t raw_smem[];
  using G = typename S::Geometry;
  constexpr int kN = S::kMaxTokens;
  uint8_t* const smem = AlignedSmem<S>(raw_smem);
  uint64_t* const full = reinterpret_cast<uint64_t*>(smem + S::kBarrierOffset);
  uint64_t* const empty = full + S::kStages;
  InitStages<S>(full, empty);
  DependencyLaunch();
  DependencyWait();
  // Bands of eight row tiles by all token tiles, row tiles fastest: neighbours share tokens and weights in the L2 cache.
  constexpr int kBand = 8;
  const int work = a.row_tiles * a.token_tiles;
  const auto place = [&](int w, int& row, int& first_token) {
    const int band = w / (kBand * a.token_tiles);
    const int height = min(kBand, a.row_tiles - band * kBand);
    const int in_band = w - band * kBand * a.token_tiles;
    row = (band * kBand + in_band % height) * S::kRows;
    first_token = in_band / height * kN;
  };
  if (threadIdx.x >= 128 * S::kWarpgroups) {
    LowerRegisters<S::Threads::kProducer>();
    WideProducer<S> producer{smem, full, empty};
    for (int w = blockIdx.x; w < work; w += gridDim.x) {
      int row, first_token;
      place(w, row, first_token);
      const int group = a.rows_per_group > 0 ? row / a.rows_per_group : 0;
      const WideTile tile{a.weights, row / 16, a.units_per_segment * G::kRowTiles, min(kN, a.tokens - first_token),
                          int64_t{group} * G::kSegmentCols};
      producer.Fetch(tile, kSegments, a.units_per_segment, [&](int token) -> const __nv_bfloat16* {
        return first_token + token < a.tokens ? a.x + (first_token + token) * a.ldx : nullptr;
      });
    }
    producer.Finish();
    return;
  }
  RaiseRegisters<S::Threads::kConsumer>();
  WideConsumer<S> consumer{smem, full, empty};
  for (int w = blockIdx.x; w < work; w += gridDim.x) {
    int row, first_token;
    place(w, row, first_token);
    float sums[kN / 2];
    consumer.template Multiply<kN, kBySlice, kSegments>(sums);
    if constexpr (kSwiglu) {
      StoreGateUp<kN, kN>(a, first_token, row / 2, sums, reinterpret_cast<float*>(smem + S::kMaximaOffset));
    } else {
      StorePlain<kN>(a, first_token, row, sums);
    }
  }
}

template <typename S, bool kBySlice, int kSegments, bool kSwiglu>
cudaError_t LaunchTiles(WideArgs a, const PackedLayout& l, cudaStream_t stream, bool dependent) {
  a.row_tiles = (l.rows + S::kRows - 1) / S::kRows;
  a.token_tiles = (a.tokens + S::kMaxTokens - 1) / S::kMaxTokens;
  const int blocks = std::min(NumMultiprocessors(), a.row_tiles * a.token_tiles);
  return Launch(DenseWideKernel<S, kBySlice, kSegments, kSwiglu>, dim3(blocks), dim3(S::Threads::kCount), S::kBytes, stream, dependent, a);
}

template <typename G, int kSegments>
cudaError_t LaunchGeometry(const WideArgs& a, const DenseArgs& args, cudaStream_t stream) {
  if constexpr (G::kKind == PackedKind::kFp8 && G::kSegmentCols == 5120) {
    if (args.swiglu) return LaunchTiles<WideSmem<G, 64, 2>, true, 1, true>(a, args.layout, stream, args.dependent);
  }
  if (args.fast && args.tokens > 64)
    // The widest tile of tokens that leaves room for three stages.
    return LaunchTiles<WideSmem<G, G::kChunk == 5 ? 96 : 128, 4>, false, kSegments, false>(a, args.layout, stream, args.dependent);
  return LaunchTiles<WideSmem<G, 64, 2>, true, kSegments, false>(a, args.layout, stream, args.dependent);
}

}  // namespace

cudaError_t LaunchDenseWide(const DenseArgs& args, cudaStream_t stream) {
  const PackedLayout& l = args.layout;
  if (!l.valid() || args.tokens < 0 || (args.swiglu && (l.cols != 5120 || l.kind != PackedKind::kFp8 || l.rows % 64 != 0)))
    return cudaErrorInvalidValue;
  if (args.num_groups > 1 && (l.rows % args.num_groups != 0 || l.rows / args.num_groups % 256 != 0)) return cudaErrorInvalidValue;
  if (args.tokens == 0) return cudaSuccess;
  WideArgs a = {};
  a.weights = args.weights;
  a.x = args.x;
  a.ldx = args.ldx;
  a.tokens = args.tokens;
  a.rows = l.rows;
  a.units_per_segment = l.units_per_segment();
  a.rows_per_group = args.num_groups > 1 ? l.rows / args.num_groups : 0;
  a.y = args.y;
  a.ldy = args.ldy;
  a.out = args.out;
  a.limit = args.swiglu_limit;
  a.round_bf16 = args.round_bf16;
  if (l.kind == PackedKind::kFp8) {
    switch (l.cols) {
      case 1280: return LaunchGeometry<Geometry<PackedKind::kFp8, 4, 10, 5>, 1>(a, args, stream);
      case 2304: return LaunchGeometry<Geometry<PackedKind::kFp8, 8, 9, 3>, 1>(a, args, stream);
      case 4096: return LaunchGeometry<Geometry<PackedKind::kFp8, 16, 8, 4>, 1>(a, args, stream);
      case 5120: return LaunchGeometry<Geometry<PackedKind::kFp8, 16, 10, 5>, 1>(a, args, stream);
      case 6144: return LaunchGeometry<Geometry<PackedKind::kFp8, 16, 12, 3>, 1>(a, args, stream);
      case 8192: return LaunchGeometry<Geometry<PackedKind::kFp8, 16, 8, 4>, 2>(a, args, stream);
    }
  } else if (l.kind == PackedKind::kBf16 && l.cols == 5120) {
    return LaunchGeometry<Geometry<PackedKind::kBf16, 16, 10, 2>, 1>(a, args, stream);
  }
  return cudaErrorInvalidValue;
}

cudaError_t LaunchDense(const DenseArgs& args, cudaStream_t stream) {
  return args.tokens <= kStreamTokens ? LaunchDenseStream(args, stream) : LaunchDenseWide(args, stream);
}

}  // namespace deepinfer::cuda
