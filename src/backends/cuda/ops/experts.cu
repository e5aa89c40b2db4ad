// SPDX-License-Identifier: Apache-2.0
//
// Router choice and general experts: a result depends on its row only.
#include "backends/cuda/ops/experts.cuh"
#include "backends/cuda/ops/start.cuh"

namespace deepinfer::cuda {
namespace {

// One warp a row. biased_scores holds the products on entry.
__global__ void RouteChoiceKernel(device::RouterArgs args, int num_experts) {
  WaitForEarlier();
  __shared__ float scores[kMaxExperts], biased[kMaxExperts];
  __shared__ int32_t chosen[kMaxChosen];
  const int64_t t = blockIdx.x;
  for (int e = threadIdx.x; e < num_experts; e += 32) scores[e] = args.biased_scores[t * num_experts + e];
  __syncwarp();
  ChooseExperts(args, num_experts, t, scores, biased, chosen);
}

constexpr int kSmallRouterThreads = 512;

// One block a row.
template <typename X>
__global__ void __launch_bounds__(kSmallRouterThreads) SmallRouteKernel(device::RouterArgs args, WeightView gate, const X* x, int64_t x_stride) {
  WaitForEarlier();
  __shared__ SmallRouteShared shared;
  SmallRouteRow(args, gate, x, x_stride, blockIdx.x, shared, kSmallRouterThreads);
}

template <typename X>
__global__ void __launch_bounds__(512) GateUpKernel(device::Arithmetic a, ExpertBankView bank, ExpertChoices choices, float limit, const X* x,
                                                    int64_t x_stride, float* act) {
  WaitForEarlier();
  __shared__ float products[64];
  GateUpPart(a, bank, choices, limit, x, x_stride, act, blockIdx.y, static_cast<int>(blockIdx.x), products);
}

constexpr int kDownWarps = 8;

__global__ void __launch_bounds__(kDownWarps * 32) DownKernel(device::Arithmetic a, ExpertBankView bank, ExpertChoices choices, const float* act, F out) {
  WaitForEarlier();
  __shared__ DownShared<1> shared;
  DownGroups<kDownWarps, 1>(a, bank, choices, act, out, blockIdx.y, static_cast<int64_t>(blockIdx.x) * kExpertRowsAtOnce, shared);
}

}  // namespace

bool IsSmallRouter(const WeightView& gate) {
  return gate.rows <= kSmallRouterExperts && gate.padded_cols <= kSmallRouterInputs;
}

void LaunchSmallRoute(cudaStream_t stream, const device::RouterArgs& args, const WeightView& gate, const InputView& x, int64_t rows) {
  const auto blocks = static_cast<unsigned>(rows);
  if (x.is_bf16) {
    Start(SmallRouteKernel<uint16_t>, blocks, kSmallRouterThreads, 0, stream, args, gate, static_cast<const uint16_t*>(x.values), x.stride);
  } else {
    Start(SmallRouteKernel<float>, blocks, kSmallRouterThreads, 0, stream, args, gate, static_cast<const float*>(x.values), x.stride);
  }
}

void LaunchRouteChoice(cudaStream_t stream, const device::RouterArgs& args, int num_experts, int64_t rows) {
  Start(RouteChoiceKernel, static_cast<unsigned>(rows), 32, 0, stream, args, num_experts);
}

void LaunchExperts(cudaStream_t stream, const device::Arithmetic& a, const ExpertBankView& bank, const device::ExpertArgs& args,
                   const InputView& x, int64_t rows, float* act, F out) {
  const ExpertChoices choices{args.num_chosen, args.experts, args.weights};
  const dim3 gate_up(static_cast<unsigned>(bank.padded_inner / 32), static_cast<unsigned>(rows * (args.num_chosen + 1)));
  if (x.is_bf16) {
    Start(GateUpKernel<uint16_t>, gate_up, 512, 0, stream, a, bank, choices, args.swiglu_limit, static_cast<const uint16_t*>(x.values), x.stride, act);
  } else {
    Start(GateUpKernel<float>, gate_up, 512, 0, stream, a, bank, choices, args.swiglu_limit, static_cast<const float*>(x.values), x.stride, act);
  }
  const auto groups = static_cast<unsigned>((bank.hidden + kExpertRowsAtOnce - 1) / kExpertRowsAtOnce);
  Start(DownKernel, dim3(groups, static_cast<unsigned>(rows)), kDownWarps * 32, 0, stream, a, bank, choices, act, out);
}

}  // namespace deepinfer::cuda
