// SPDX-License-Identifier: Apache-2.0
//
// Router choice and general experts: every (row, choice) pair on its own, so a result depends on its row only.
#include "backends/cuda/ops/dot.cuh"
#include "backends/cuda/ops/start.cuh"

namespace deepinfer::cuda {
namespace {

constexpr int kMaxExperts = 1024;
constexpr int kMaxChosen = 32;

// One warp a row. biased_scores holds the products on entry.
__global__ void RouteChoiceKernel(device::RouterArgs args, int num_experts) {
  WaitForEarlier();
  __shared__ float scores[kMaxExperts], biased[kMaxExperts];
  const int64_t t = blockIdx.x;
  const int lane = threadIdx.x, k = args.num_chosen;
  float* out = args.biased_scores + t * num_experts;
  const float* bias = args.bias_image != nullptr && args.is_image != nullptr && args.is_image[t] != 0 ? args.bias_image : args.bias;
  for (int e = lane; e < num_experts; e += 32) {
    const float z = out[e] / args.temperature;
    const float softplus = z > 20.0f ? z : log1pf(expf(z));
    scores[e] = sqrtf(softplus);
    biased[e] = scores[e] + bias[e];
    out[e] = biased[e];
  }
  __syncwarp();
  float sum = 0;
  __shared__ int32_t chosen[kMaxChosen];
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

__device__ __forceinline__ WeightView ExpertOf(WeightView first, int64_t bytes, int64_t scale_bytes, int32_t expert) {
  first.data += expert * bytes;
  if (first.scale != nullptr) first.scale += expert * scale_bytes;
  return first;
}

// 32 channels of one (row, choice) pair; choice num_chosen is the shared expert. Eight warps.
template <typename X>
__global__ void __launch_bounds__(256) GateUpKernel(device::Arithmetic a, ExpertBankView bank, int num_chosen, const int32_t* experts,
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
  for (int i = warp; i < 64; i += 8) {
    const int64_t channel = first + (i & 31);
    const float v = channel < bank.inner ? WarpDot(w, (i >= 32 ? bank.inner : 0) + channel, x + t * x_stride) : 0.0f;
    if (lane == 0) products[i] = RoundIf(v, a.round_bf16);
  }
  __syncthreads();
  if (warp != 0) return;
  float g = products[lane], u = products[32 + lane];
  if (limit > 0) {
    g = g < limit ? g : limit;
    u = u < -limit ? -limit : (u > limit ? limit : u);
  }
  const float weight = is_shared ? 1.0f : weights[t * num_chosen + choice];
  float v = RoundIf(weight * (g / (1.0f + expf(-g)) * u), a.round_bf16);
  if (a.quantize) v = FakeFp8Lane(v);
  if (first + lane < bank.padded_inner) act[slot * bank.padded_inner + first + lane] = v;
}

// One warp an output: the chosen experts in ascending order, then the shared one.
__global__ void __launch_bounds__(128) DownKernel(device::Arithmetic a, ExpertBankView bank, int num_chosen, const int32_t* experts,
                                                  const float* act, F out) {
  WaitForEarlier();
  const int64_t t = blockIdx.y, h = static_cast<int64_t>(blockIdx.x) * 4 + (threadIdx.x >> 5);
  if (h >= bank.hidden) return;
  const int32_t* chosen = experts + t * num_chosen;
  const float* rows = act + t * (num_chosen + 1) * bank.padded_inner;
  float sum = 0;
  int32_t last = -1;
  for (int i = 0; i < num_chosen; ++i) {
    int32_t next = INT32_MAX;
    int at = -1;
    for (int j = 0; j < num_chosen; ++j)
      if (chosen[j] > last && chosen[j] < next) next = chosen[j], at = j;
    if (at < 0) break;
    last = next;
    const WeightView w = ExpertOf(bank.routed.down, bank.down_bytes, bank.down_scale_bytes, next);
    sum += RoundIf(WarpDot(w, h, rows + at * bank.padded_inner), a.round_bf16);
  }
  sum += RoundIf(WarpDot(bank.shared.down, h, rows + num_chosen * bank.padded_inner), a.round_bf16);
  if ((threadIdx.x & 31) == 0) out.data[t * out.stride + h] = RoundIf(sum, a.round_bf16);
}

}  // namespace

void LaunchRouteChoice(cudaStream_t stream, const device::RouterArgs& args, int num_experts, int64_t rows) {
  Start(RouteChoiceKernel, static_cast<unsigned>(rows), 32, 0, stream, args, num_experts);
}

void LaunchExperts(cudaStream_t stream, const device::Arithmetic& a, const ExpertBankView& bank, const device::ExpertArgs& args,
                   const InputView& x, int64_t rows, float* act, F out) {
  const dim3 gate_up(static_cast<unsigned>(bank.padded_inner / 32), static_cast<unsigned>(rows * (args.num_chosen + 1)));
  if (x.is_bf16) {
    Start(GateUpKernel<uint16_t>, gate_up, 256, 0, stream, a, bank, args.num_chosen, args.experts, args.weights, args.swiglu_limit,
                                              static_cast<const uint16_t*>(x.values), x.stride, act);
  } else {
    Start(GateUpKernel<float>, gate_up, 256, 0, stream, a, bank, args.num_chosen, args.experts, args.weights, args.swiglu_limit,
                                              static_cast<const float*>(x.values), x.stride, act);
  }
  Start(DownKernel, dim3(static_cast<unsigned>((bank.hidden + 3) / 4), static_cast<unsigned>(rows)), 128, 0, stream, a, bank, args.num_chosen,
                                                                                                                 args.experts, act, out);
}

}  // namespace deepinfer::cuda
