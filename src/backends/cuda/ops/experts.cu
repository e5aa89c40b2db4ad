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
  __shared__ RouteShared shared;
  const int64_t t = blockIdx.x;
#pragma unroll 4
  for (int e = threadIdx.x; e < num_experts; e += 32) {
    shared.scores[e] = args.biased_scores[t * num_experts + e];
    shared.biased[e] = RouteBias(args, t)[e];
  }
  __syncwarp();
  ChooseExperts(args, num_experts, t, shared, true);
}

constexpr int kSmallRouterThreads = 512;

// One block a row.
template <typename X>
__global__ void __launch_bounds__(kSmallRouterThreads) SmallRouteKernel(device::RouterArgs args, WeightView gate, const X* x, int64_t x_stride) {
  WaitForEarlier();
  __shared__ SmallRouteShared shared;
  SmallRouteRow(args, gate, x, x_stride, blockIdx.x, shared, true);
}

// Grid: parts of 32 channels, (row, choice) pairs; choice num_chosen is the shared expert. With a router (RouteX: of its input) every
// block makes the row's choice for itself, one of them for memory.
template <typename X, typename RouteX>
__global__ void __launch_bounds__(512) GateUpKernel(device::Arithmetic a, ExpertBankView bank, ExpertChoices choices, float limit, const X* x,
                                                    int64_t x_stride, float* act, device::RouterArgs router, WeightView gate, const RouteX* route_x,
                                                    int64_t route_stride) {
  const int64_t slot = blockIdx.y, t = slot / (choices.num_chosen + 1);
  const int choice = static_cast<int>(slot % (choices.num_chosen + 1));
  const bool is_shared = choice == choices.num_chosen;
  if (route_x != nullptr && !is_shared) {
    // The warp's first row of the router.
    const int64_t bytes = WeightRowBytes(gate.format, gate.padded_cols), at = (threadIdx.x >> 5) * bytes + (threadIdx.x & 31) * 16;
    if (static_cast<int64_t>(threadIdx.x & 31) * 16 < bytes && at < gate.rows * bytes) asm volatile("prefetch.global.L1 [%0];" ::"l"(gate.data + at));
  }
  WaitForEarlier();
  __shared__ float products[64];
  int32_t expert = 0;
  float weight = 1.0f;
  if (route_x != nullptr) {
    __shared__ SmallRouteShared shared;
    const bool writes = choice == 0 && blockIdx.x == 0;
    if (!is_shared) {
      SmallRouteRow(router, gate, route_x, route_stride, t, shared, writes);
      __syncthreads();
      expert = shared.chosen[choice];
      weight = shared.weights[choice];
    }
  } else if (!is_shared) {
    expert = choices.experts[t * choices.num_chosen + choice];
    weight = choices.weights[t * choices.num_chosen + choice];
  }
  if (expert < 0) return;
  const WeightView w = is_shared ? bank.shared.gate_up : ExpertOf(bank.routed.gate_up, bank.gate_up_bytes, bank.gate_up_scale_bytes, expert);
  GateUpPart(a, w, bank.inner, weight, limit, x + t * x_stride, act + slot * bank.padded_inner, static_cast<int>(blockIdx.x), products);
}

constexpr int kDownWarps = 8;

// Four outputs of one row: a warp an expert, then the sum over the chosen experts in ascending order and the shared one.
__global__ void __launch_bounds__(kDownWarps * 32) DownKernel(device::Arithmetic a, ExpertBankView bank, ExpertChoices choices, const float* act, F out) {
  WaitForEarlier();
  __shared__ float results[kMaxChosen + 1][kExpertRowsAtOnce];
  __shared__ int32_t order[kMaxChosen];  // choices by ascending expert
  const int num_chosen = choices.num_chosen;
  const int64_t t = blockIdx.y, first = static_cast<int64_t>(blockIdx.x) * kExpertRowsAtOnce;
  const int32_t* chosen = choices.experts + t * num_chosen;
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
  if (warp == kDownWarps - 1) {
    const int32_t own = lane < num_chosen ? chosen[lane] : -1;
    int before = 0, count = 0;
#pragma unroll 1
    for (int j = 0; j < num_chosen; ++j) {
      const int32_t other = __shfl_sync(~0u, own, j);
      before += other >= 0 && other < own;
      count += other >= 0;
    }
    if (own >= 0) order[before] = lane;
    if (lane >= count) order[lane] = -1;
  }
#pragma unroll 1
  for (int choice = warp; choice <= num_chosen; choice += kDownWarps) {
    const bool is_shared = choice == num_chosen;
    const int32_t expert = is_shared ? 0 : chosen[choice];
    if (expert < 0) continue;
    const WeightView w = is_shared ? bank.shared.down : ExpertOf(bank.routed.down, bank.down_bytes, bank.down_scale_bytes, expert);
    int64_t rows[kExpertRowsAtOnce];
#pragma unroll
    for (int r = 0; r < kExpertRowsAtOnce; ++r) rows[r] = min(first + r, bank.hidden - 1);
    float sums[kExpertRowsAtOnce];
    WarpRowDots(w, rows, act + (t * (num_chosen + 1) + choice) * bank.padded_inner, sums);
#pragma unroll
    for (int r = 0; r < kExpertRowsAtOnce; ++r)
      if (lane == r) results[choice][r] = RoundIf(sums[r], a.round_bf16);
  }
  __syncthreads();
  const int r = threadIdx.x;
  if (r >= kExpertRowsAtOnce || first + r >= bank.hidden) return;
  float sum = 0;
#pragma unroll 1
  for (int i = 0; i < num_chosen && order[i] >= 0; ++i) sum += results[order[i]][r];
  sum += results[num_chosen][r];
  out.data[t * out.stride + first + r] = RoundIf(sum, a.round_bf16);
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
                   const InputView& x, int64_t rows, float* act, F out, const RoutePart& route) {
  const ExpertChoices choices{args.num_chosen, args.experts, args.weights};
  const dim3 grid(static_cast<unsigned>(bank.padded_inner / 32), static_cast<unsigned>(rows * (args.num_chosen + 1)));
  const auto gate_up = [&]<typename X, typename RouteX>() {
    Start(GateUpKernel<X, RouteX>, grid, 512, 0, stream, a, bank, choices, args.swiglu_limit, static_cast<const X*>(x.values), x.stride, act,
          route.args, route.gate, static_cast<const RouteX*>(route.x.values), route.x.stride);
  };
  if (x.is_bf16) {
    gate_up.template operator()<uint16_t, float>();
  } else {
    gate_up.template operator()<float, float>();
  }
  const auto groups = static_cast<unsigned>((bank.hidden + kExpertRowsAtOnce - 1) / kExpertRowsAtOnce);
  Start(DownKernel, dim3(groups, static_cast<unsigned>(rows)), kDownWarps * 32, 0, stream, a, bank, choices, act, out);
}

}  // namespace deepinfer::cuda
