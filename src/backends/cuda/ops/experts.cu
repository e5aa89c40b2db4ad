// SPDX-License-Identifier: Apache-2.0
//
// Router choice and general experts: every (row, choice) pair on its own, so a result depends on its row only.
#include "backends/cuda/ops/dot.cuh"
#include "backends/cuda/ops/start.cuh"

namespace deepinfer::cuda {
namespace {

constexpr int kMaxExperts = 1024;
constexpr int kMaxChosen = 32;

// By one warp; products in `scores`, which become the scores.
__device__ __forceinline__ void ChooseExperts(const device::RouterArgs& args, int num_experts, int64_t t, float* scores, float* biased, int32_t* chosen) {
  const int lane = threadIdx.x & 31, k = args.num_chosen;
  const float* bias = args.bias_image != nullptr && args.is_image != nullptr && args.is_image[t] != 0 ? args.bias_image : args.bias;
  for (int e = lane; e < num_experts; e += 32) {
    const float z = scores[e] / args.temperature;
    const float softplus = z > 20.0f ? z : log1pf(expf(z));
    scores[e] = sqrtf(softplus);
    biased[e] = scores[e] + bias[e];
    args.biased_scores[t * num_experts + e] = biased[e];
  }
  __syncwarp();
  float sum = 0;
  for (int i = 0; i < k; ++i) {
    float best = -INFINITY;
    int at = num_experts;
    for (int e = lane; e < num_experts; e += 32)
      if (biased[e] > best) best = biased[e], at = e;
#pragma unroll
    for (int d = 16; d > 0; d >>= 1) {
      const float v = __shfl_xor_sync(~0u, best, d);
      const int other = __shfl_xor_sync(~0u, at, d);
      if (v > best || (v == best && other < at)) best = v, at = other;
    }
    if (at >= num_experts) at = 0;  // not a number anywhere
    if (lane == 0) chosen[i] = at, biased[at] = -INFINITY;
    __syncwarp();
    sum += scores[at];
  }
  for (int i = lane; i < k; i += 32) {
    float w = scores[chosen[i]];
    if (k > 1) w = w / (sum + 1e-20f);
    args.weights[t * k + i] = w * args.scaling;
    args.experts[t * k + i] = chosen[i];
  }
}

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

constexpr int kSmallRouterExperts = 64, kSmallRouterInputs = 1024, kSmallRouterThreads = 512;

// One block a row: a warp a product, then the choice.
template <typename X>
__global__ void __launch_bounds__(kSmallRouterThreads) SmallRouteKernel(device::RouterArgs args, WeightView gate, const X* x, int64_t x_stride) {
  WaitForEarlier();
  __shared__ float scores[kSmallRouterExperts], biased[kSmallRouterExperts];
  __shared__ int32_t chosen[kMaxChosen];
  const int64_t t = blockIdx.x;
  const int num_experts = static_cast<int>(gate.rows);
  for (int e = threadIdx.x >> 5; e < num_experts; e += kSmallRouterThreads / 32) {
    const float v = WarpDot(gate, e, x + t * x_stride);
    if ((threadIdx.x & 31) == 0) scores[e] = v;
  }
  __syncthreads();
  if (threadIdx.x < 32) ChooseExperts(args, num_experts, t, scores, biased, chosen);
}

__device__ __forceinline__ WeightView ExpertOf(WeightView first, int64_t bytes, int64_t scale_bytes, int32_t expert) {
  first.data += expert * bytes;
  if (first.scale != nullptr) first.scale += expert * scale_bytes;
  return first;
}

constexpr int kRowsAtOnce = 4;

// 32 channels of one (row, choice) pair; choice num_chosen is the shared expert. Sixteen warps of two channels each.
template <typename X>
__global__ void __launch_bounds__(512) GateUpKernel(device::Arithmetic a, ExpertBankView bank, int num_chosen, const int32_t* experts,
                                                    const float* weights, float limit, const X* x, int64_t x_stride, float* act) {
  WaitForEarlier();
  __shared__ float products[64];
  const int64_t slot = blockIdx.y, t = slot / (num_chosen + 1);
  const int choice = static_cast<int>(slot % (num_chosen + 1));
  const bool is_shared = choice == num_chosen;
  const int32_t expert = is_shared ? 0 : experts[t * num_chosen + choice];
  if (expert < 0) return;
  const WeightView w = is_shared ? bank.shared.gate_up : ExpertOf(bank.routed.gate_up, bank.gate_up_bytes, bank.gate_up_scale_bytes, expert);
  const int64_t first = static_cast<int64_t>(blockIdx.x) * 32;
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
  {
    // Channels behind the last one read some row; nobody reads their products.
    const int64_t c0 = min(first + 2 * warp, bank.inner - 1), c1 = min(first + 2 * warp + 1, bank.inner - 1);
    const int64_t rows[kRowsAtOnce] = {c0, c1, bank.inner + c0, bank.inner + c1};
    float sums[kRowsAtOnce];
    WarpRowDots(w, rows, x + t * x_stride, sums);
    if (lane == 0) {
      products[2 * warp] = RoundIf(sums[0], a.round_bf16);
      products[2 * warp + 1] = RoundIf(sums[1], a.round_bf16);
      products[32 + 2 * warp] = RoundIf(sums[2], a.round_bf16);
      products[32 + 2 * warp + 1] = RoundIf(sums[3], a.round_bf16);
    }
  }
  __syncthreads();
  if (warp != 0) return;
  float g = products[lane], u = products[32 + lane];
  if (limit > 0) {
    g = g < limit ? g : limit;
    u = u < -limit ? -limit : (u > limit ? limit : u);
  }
  const float weight = is_shared ? 1.0f : weights[t * num_chosen + choice];
  float v = first + lane < bank.inner ? RoundIf(weight * (g / (1.0f + expf(-g)) * u), a.round_bf16) : 0.0f;
  if (a.quantize) v = FakeFp8Lane(v);
  act[slot * bank.padded_inner + first + lane] = v;
}

constexpr int kDownWarps = 8;

// Four outputs of one row: a warp an expert, then the sum over the chosen experts in ascending order and the shared one.
__global__ void __launch_bounds__(kDownWarps * 32) DownKernel(device::Arithmetic a, ExpertBankView bank, int num_chosen, const int32_t* experts,
                                                              const float* act, F out) {
  WaitForEarlier();
  __shared__ float results[kMaxChosen + 1][kRowsAtOnce];
  __shared__ int32_t order[kMaxChosen];  // choices by ascending expert
  const int64_t t = blockIdx.y, first = static_cast<int64_t>(blockIdx.x) * kRowsAtOnce;
  const int32_t* chosen = experts + t * num_chosen;
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
  if (threadIdx.x < kMaxChosen) order[threadIdx.x] = -1;
  __syncthreads();
  if (warp == kDownWarps - 1 && lane < num_chosen && chosen[lane] >= 0) {
    int before = 0;
    for (int j = 0; j < num_chosen; ++j) before += chosen[j] >= 0 && chosen[j] < chosen[lane];
    order[before] = lane;
  }
  for (int choice = warp; choice <= num_chosen; choice += kDownWarps) {
    const bool is_shared = choice == num_chosen;
    const int32_t expert = is_shared ? 0 : chosen[choice];
    if (expert < 0) continue;
    const WeightView w = is_shared ? bank.shared.down : ExpertOf(bank.routed.down, bank.down_bytes, bank.down_scale_bytes, expert);
    int64_t rows[kRowsAtOnce];
#pragma unroll
    for (int r = 0; r < kRowsAtOnce; ++r) rows[r] = min(first + r, bank.hidden - 1);
    float sums[kRowsAtOnce];
    WarpRowDots(w, rows, act + (t * (num_chosen + 1) + choice) * bank.padded_inner, sums);
#pragma unroll
    for (int r = 0; r < kRowsAtOnce; ++r)
      if (lane == r) results[choice][r] = RoundIf(sums[r], a.round_bf16);
  }
  __syncthreads();
  const int r = threadIdx.x;
  if (r >= kRowsAtOnce || first + r >= bank.hidden) return;
  float sum = 0;
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
                   const InputView& x, int64_t rows, float* act, F out) {
  const dim3 gate_up(static_cast<unsigned>(bank.padded_inner / 32), static_cast<unsigned>(rows * (args.num_chosen + 1)));
  if (x.is_bf16) {
    Start(GateUpKernel<uint16_t>, gate_up, 512, 0, stream, a, bank, args.num_chosen, args.experts, args.weights, args.swiglu_limit,
                                              static_cast<const uint16_t*>(x.values), x.stride, act);
  } else {
    Start(GateUpKernel<float>, gate_up, 512, 0, stream, a, bank, args.num_chosen, args.experts, args.weights, args.swiglu_limit,
                                              static_cast<const float*>(x.values), x.stride, act);
  }
  Start(DownKernel, dim3(static_cast<unsigned>((bank.hidden + kRowsAtOnce - 1) / kRowsAtOnce), static_cast<unsigned>(rows)), kDownWarps * 32, 0, stream, a, bank, args.num_chosen,
                                                                                                                 args.experts, act, out);
}

}  // namespace deepinfer::cuda
