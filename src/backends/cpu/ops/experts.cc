// SPDX-License-Identifier: Apache-2.0
//
// Router and experts.
#include <algorithm>
#include <cmath>
#include <cstring>

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
  const int k = args.num_chosen;
  const int64_t hidden = bank.hidden, width = bank.width;
  const ActivationForm form = a.quantize ? ActivationForm::kFp8 : ActivationForm::kFloat32;
  const Rounding rounding = a.round_bf16 ? Rounding::kBf16 : Rounding::kNone;
  const auto ensure = [](std::vector<float>& v, int64_t n) {
    if (static_cast<int64_t>(v.size()) < n) v.resize(static_cast<size_t>(n));
    return v.data();
  };

  // Rows of each expert, in row order.
  const size_t num_experts = bank.experts.size();
  expert_begin_.assign(num_experts + 1, 0);
  for (int64_t i = 0; i < rows * k; ++i) ++expert_begin_[static_cast<size_t>(args.experts[i]) + 1];
  for (size_t e = 0; e < num_experts; ++e) expert_begin_[e + 1] += expert_begin_[e];
  expert_slot_.resize(std::max(expert_slot_.size(), static_cast<size_t>(rows * k)));
  expert_next_.assign(expert_begin_.begin(), expert_begin_.end() - 1);
  for (int64_t i = 0; i < rows * k; ++i)
    expert_slot_[static_cast<size_t>(expert_next_[static_cast<size_t>(args.experts[i])]++)] = static_cast<int32_t>(i);

  float* gathered = ensure(moe_gathered_, rows * hidden);
  float* gate_up = ensure(moe_gate_up_, rows * 2 * width);
  float* act = ensure(moe_act_values_, rows * width);
  float* result = ensure(moe_result_, rows * hidden);
  float* sums = ensure(moe_sums_, rows * hidden);
  std::fill_n(sums, rows * hidden, 0.0f);

  // Experts in ascending order, so a row's results are added in ascending expert id.
  for (size_t e = 0; e <= num_experts; ++e) {
    const bool is_shared = e == num_experts;
    const int32_t* slots = is_shared ? nullptr : expert_slot_.data() + expert_begin_[e];
    const int64_t n = is_shared ? rows : expert_begin_[e + 1] - expert_begin_[e];
    if (n == 0) continue;
    const auto& expert = is_shared ? bank.shared : bank.experts[e];
    for (int64_t i = 0; i < n; ++i)
      std::memcpy(gathered + i * hidden, Row(args.x, is_shared ? i : slots[i] / k), static_cast<size_t>(hidden) * sizeof(float));
    expert_input_.Prepare(*pool_, gathered, n, hidden, hidden, form);
    cpu::MatMul(*pool_, expert_input_, expert.w13, gate_up, 2 * width, rounding);
    ForRows(n, width * 8, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i)
        row_ops_.swiglu(gate_up + i * 2 * width, gate_up + i * 2 * width + width, width, args.swiglu_limit,
                        is_shared ? 1.0f : args.weights[slots[i]], a.round_bf16, act + i * width);
    });
    expert_input_.Prepare(*pool_, act, n, width, width, form);
    cpu::MatMul(*pool_, expert_input_, expert.w2, result, hidden, rounding);
    for (int64_t i = 0; i < n; ++i)
      row_ops_.add(result + i * hidden, hidden, sums + (is_shared ? i : slots[i] / k) * hidden);
  }
  for (int64_t t = 0; t < rows; ++t) {
    if (a.round_bf16) {
      row_ops_.round_bf16(sums + t * hidden, hidden, Row(args.out, t));
    } else {
      std::memcpy(Row(args.out, t), sums + t * hidden, static_cast<size_t>(hidden) * sizeof(float));
    }
  }
}

}  // namespace deepinfer::cpu
