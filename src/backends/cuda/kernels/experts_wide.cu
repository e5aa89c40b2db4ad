// SPDX-License-Identifier: Apache-2.0
//
// Expert products with many rows an expert: wgmma over jobs of up to 64 rows (96 when `fast`).
#include <algorithm>

#include "backends/cuda/kernels/experts.h"
#include "backends/cuda/kernels/experts_args.h"
#include "backends/cuda/kernels/launch.h"
#include "backends/cuda/kernels/numbers.cuh"
#include "backends/cuda/kernels/wide.cuh"

namespace deepinfer::cuda {
namespace {

using GateUp = Geometry<PackedKind::kFp4, 16, 10, 10>;
using Down = Geometry<PackedKind::kFp4, 8, 9, 9>;

// SwiGLU of a warpgroup's 32 channels: lane 4g + t of warp w has gate and up of channel 8w + g.
template <int kN, int kMaxTokens>
__device__ __forceinline__ void StoreGateUp(const ExpertProductArgs& a, const ExpertJob& job, int channel, float (&sums)[kN / 2], float* maxima) {
  const int group = threadIdx.x / 128, warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  maxima += group * 4 * kMaxTokens;
#pragma unroll
  for (int j = 0; j < kN / 8; ++j) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int token = 8 * j + 2 * t + i;
      float gate = sums[4 * j + i], up = sums[4 * j + 2 + i];
      if (a.round_bf16) gate = RoundBf16(gate), up = RoundBf16(up);
      const float weight = token < job.count ? a.weights[a.slot_pair[job.first_slot + token]] : 0.0f;
      float x = Swiglu(gate, up, a.limit, weight);
      if (a.round_bf16) x = RoundBf16(x);
      sums[4 * j + i] = x;
      float amax = fabsf(x);
#pragma unroll
      for (int d = 4; d < 32; d *= 2) amax = fmaxf(amax, __shfl_xor_sync(0xffffffffu, amax, d));
      if (g == 0) maxima[warp * kMaxTokens + token] = amax;
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
    // Lane 4g + t gets channels 2t and 2t + 1 of token 8j + g.
    const uint32_t pair = Transpose8x8(PackBf16(q[0], q[1]));
    const int token = 8 * j + g;
    if (token < job.count) {
      __nv_bfloat16* to = static_cast<__nv_bfloat16*>(a.out) + int64_t{job.first_slot + token} * kExpertWidth + channel + group * 32 +
                          warp * 8 + 2 * t;
      *reinterpret_cast<uint32_t*>(to) = pair;
    }
  }
  NamedSync(1 + group, 128);
}

template <int kN>
__device__ __forceinline__ void StoreDown(const ExpertProductArgs& a, const ExpertJob& job, int row, const float (&sums)[kN / 2]) {
  const int group = threadIdx.x / 128, warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const int first = row + group * 64 + warp * 16;
#pragma unroll
  for (int j = 0; j < kN / 8; ++j) {
    if (a.round_bf16) {
      const uint32_t low = Transpose8x8(PackBf16(sums[4 * j], sums[4 * j + 1]));
      const uint32_t high = Transpose8x8(PackBf16(sums[4 * j + 2], sums[4 * j + 3]));
      const int token = 8 * j + g;
      if (token < job.count) {
        __nv_bfloat16* to = static_cast<__nv_bfloat16*>(a.out) + int64_t{job.first_slot + token} * kExpertHidden + first + 2 * t;
        *reinterpret_cast<uint32_t*>(to) = low;
        *reinterpret_cast<uint32_t*>(to + 8) = high;
      }
    } else {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int token = 8 * j + 2 * t + (i & 1);
        if (token < job.count)
          static_cast<float*>(a.out)[int64_t{job.first_slot + token} * kExpertHidden + first + g + 8 * (i / 2)] = sums[4 * j + i];
      }
    }
  }
}

template <typename G, bool kIsGateUp, bool kFast>
__global__ void __launch_bounds__(WideThreads<4>::kCount, 1) ExpertWideKernel(const __grid_constant__ ExpertProductArgs a) {
  extern __shared__ uint8_t raw_smem[];
  constexpr int kMaxTokens = kFast ? kFastJobRows : kWideJobRows;
  using S = WideSmem<G, kMaxTokens, 4>;
  uint8_t* const smem = AlignedSmem<S>(raw_smem);
  uint64_t* const full = reinterpret_cast<uint64_t*>(smem + S::kBarrierOffset);
  uint64_t* const empty = full + S::kStages;
  InitStages<S>(full, empty);
  DependencyLaunch();
  DependencyWait();
  constexpr int kMatrixRows = kIsGateUp ? 2 * kExpertWidth : kExpertHidden;
  static_assert(kMatrixRows % S::kRows == 0);
  constexpr int kTiles = kMatrixRows / S::kRows;
  constexpr int kUnits = kMatrixRows / 16 / G::kRowTiles;
  const int work = *a.num_jobs * kTiles;
  if (threadIdx.x >= 128 * S::kWarpgroups) {
    LowerRegisters<S::Threads::kProducer>();
    WideProducer<S> producer{smem, full, empty};
    for (int w = blockIdx.x; w < work; w += gridDim.x) {
      const ExpertJob job = a.jobs[w / kTiles];
      const WideTile tile{kIsGateUp ? job.gate_up : job.down, w % kTiles * (S::kRows / 16), kMatrixRows / 16, job.count, 0};
      producer.Fetch(tile, 1, kUnits, [&](int token) -> const __nv_bfloat16* {
        if (token >= job.count) return nullptr;
        const int slot = job.first_slot + token;
        return a.x + int64_t{kIsGateUp ? a.slot_pair[slot] / a.num_chosen : slot} * a.ldx;
      });
    }
    producer.Finish();
    return;
  }
  RaiseRegisters<S::Threads::kConsumer>();
  WideConsumer<S> consumer{smem, full, empty};
  float* const maxima = reinterpret_cast<float*>(smem + S::kMaximaOffset);
  for (int w = blockIdx.x; w < work; w += gridDim.x) {
    const ExpertJob job = a.jobs[w / kTiles];
    const int first = w % kTiles * S::kRows;
    const auto run = [&]<int kN>(Wgmma<kN>) {
      float sums[kN / 2];
      consumer.template Multiply<kN, !kFast, 1>(sums);
      if constexpr (kIsGateUp) {
        StoreGateUp<kN, kMaxTokens>(a, job, first / 2, sums, maxima);
      } else {
        StoreDown<kN>(a, job, first, sums);
      }
    };
    if (job.count <= 32) {
      run(Wgmma<32>{});
    } else if (job.count <= 64) {
      run(Wgmma<64>{});
    } else if constexpr (kFast) {
      if (job.count <= 80) {
        run(Wgmma<80>{});
      } else {
        run(Wgmma<96>{});
      }
    }
  }
}

template <typename G, bool kIsGateUp>
cudaError_t LaunchWide(const ExpertsArgs& args, const ExpertProductArgs& a, cudaStream_t stream) {
  const dim3 grid(NumMultiprocessors()), block(WideThreads<4>::kCount);
  if (args.fast)
    return Launch(ExpertWideKernel<G, kIsGateUp, true>, grid, block, WideSmem<G, kFastJobRows, 4>::kBytes, stream, args.dependent, a);
  return Launch(ExpertWideKernel<G, kIsGateUp, false>, grid, block, WideSmem<G, kWideJobRows, 4>::kBytes, stream, args.dependent, a);
}

}  // namespace

cudaError_t LaunchExpertGateUpWide(const ExpertsArgs& args, cudaStream_t stream) {
  return LaunchWide<GateUp, true>(args, GateUpArgs(args), stream);
}
cudaError_t LaunchExpertDownWide(const ExpertsArgs& args, cudaStream_t stream) {
  return LaunchWide<Down, false>(args, DownArgs(args), stream);
}

}  // namespace deepinfer::cuda
