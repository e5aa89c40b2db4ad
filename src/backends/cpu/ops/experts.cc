// SPDX-License-Identifier: Apache-2.0
//
// Router and experts.
#include <algorithm>
#include <cmath>

#include "backends/cpu/cpu_device.h"
#include "backends/cpu/cpu_weights.h"

namespace deepinfer::cpu {

void CpuDevice::Route(const device::RouterArgs& args, int64_t rows) {
  const int num_experts = static_cast<int>(args.gate->rows());
  const int k = args.num_chosen;
  MatMulFloat(*args.gate, *args.x, args.biased_scores, num_experts);
  router_scores_.resize(std::max(router_scores_.size(), static_cast<size_t>(rows * num_experts)));
  ForRows(rows, num_experts * 20 + 100, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      float* biased = args.biased_scores + t * num_experts;
      float* scores = router_scores_.data() + t * num_experts;
      const float* bias =
          args.bias_image != nullptr && args.is_image != nullptr && args.is_image[t] ? args.bias_image : args.bias;
      for (int e = 0; e < num_experts; ++e) {
        const float z = biased[e] / args.temperature;
        const float softplus = z > 20.0f ? z : std::log1p(std::exp(z));
        scores[e] = std::sqrt(softplus);
        biased[e] = scores[e] + bias[e];
      }
      int32_t* chosen = args.experts + t * k;
      float* weights = args.weights + t * k;
      // Insertion into a short sorted list: ties keep the lower expert first.
      int n = 0;
      for (int e = 0; e < num_experts; ++e) {
        int at = n < k ? n : k;
        while (at > 0 && biased[e] > biased[chosen[at - 1]]) --at;
        if (at >= k) continue;
        for (int i = std::min(n, k - 1); i > at; --i) chosen[i] = chosen[i - 1];
        chosen[at] = e;
        if (n < k) ++n;
      }
      float sum = 0;
      for (int i = 0; i < k; ++i) {
        weights[i] = scores[chosen[i]];
        sum += weights[i];
      }
      if (k > 1)
        for (int i = 0; i < k; ++i) weights[i] = weights[i] / (sum + 1e-20f);
      for (int i = 0; i < k; ++i) weights[i] *= args.scaling;
    }
  });
}

void CpuDevice::Experts(const Arithmetic& a, const device::ExpertArgs& args, int64_t) {
  const auto& bank = static_cast<const CpuExpertBank&>(*args.bank);
  MoeArgs moe;
  moe.x = &static_cast<const CpuInput&>(*args.x).prepared;
  moe.experts = bank.views;
  moe.shared = &bank.shared_view;
  moe.num_chosen = args.num_chosen;
  moe.chosen = args.experts;
  moe.weights = args.weights;
  moe.swiglu_limit = args.swiglu_limit;
  moe.round_bf16 = a.round_bf16;
  moe.swiglu = row_ops_.swiglu;
  moe.out = Row(args.out, 0);
  moe.ldo = args.out.stride;
  moe_.Run(*pool_, moe);
}

}  // namespace deepinfer::cpu
