// SPDX-License-Identifier: Apache-2.0
//
// Router and experts.
#include <algorithm>
#include <cmath>
#include <utility>

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

void CpuDevice::Experts(const Arithmetic& a, const device::ExpertArgs& args, int64_t rows) {
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
  if (bank.streamed < 0) {
    moe_.Run(*pool_, moe);
    return;
  }
  moe.source = expert_cache_.get();
  expert_cache_->SelectBank(bank.streamed);
  // After an error the step is lost: no more reads for it.
  if (expert_cache_->has_error() || !moe_.Run(*pool_, moe)) {
    for (int64_t t = 0; t < rows; ++t) std::fill_n(Row(args.out, t), bank.shared.down.rows(), 0.0f);
  }
  expert_cache_->EndStep();
}

Status CpuDevice::StreamExperts(device::ExpertStreaming streaming) {
  DI_ASSIGN_OR_RETURN(expert_cache_, ExpertCache::Create(std::move(streaming), *pool_));
  return Status::Ok();
}

void CpuDevice::PrefetchExperts(const device::ExpertBank& bank, const int32_t* experts, int64_t count) {
  const int streamed = static_cast<const CpuExpertBank&>(bank).streamed;
  if (streamed >= 0 && !expert_cache_->has_error()) expert_cache_->Guess(streamed, {experts, static_cast<size_t>(count)});
}

}  // namespace deepinfer::cpu
