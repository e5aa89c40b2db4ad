// SPDX-License-Identifier: Apache-2.0
//
// What bench/peers/cuda_torch.py loads to launch our kernels beside torch's in one process: C functions over device pointers.
#include <vector>

#include "backends/cuda/kernels/dense.h"
#include "backends/cuda/kernels/experts.h"

using namespace deepinfer::cuda;

extern "C" {

int64_t di_expert_bytes(int which) { return which == 0 ? ExpertGateUpLayout().bytes() : ExpertDownLayout().bytes(); }
int64_t di_dense_bytes(int rows, int cols) { return LayoutOf(PackedKind::kFp8, rows, cols).bytes(); }
int64_t di_dense_workspace(int rows, int cols) { return DenseWorkspaceBytes(LayoutOf(PackedKind::kFp8, rows, cols)); }
int64_t di_plan_bytes(int rows, int experts, int chosen) { return PlanBytes(rows, chosen, experts); }

// Random codes and scales of one matrix, packed. fp4 = 0: FP8 tiles.
int di_pack(int fp4, int rows, int cols, const uint8_t* data, const uint8_t* scale, uint8_t* out, cudaStream_t stream) {
  const PackSource source{data, scale, rows};
  return LaunchPack(LayoutOf(fp4 ? PackedKind::kFp4 : PackedKind::kFp8, rows, cols), RowOrder::kStacked, &source, 1, out, nullptr, stream);
}

int di_dense(int rows, int cols, const uint8_t* weights, const void* x, int tokens, void* y, void* workspace, int fast,
             int dependent, cudaStream_t stream) {
  DenseArgs a;
  a.layout = LayoutOf(PackedKind::kFp8, rows, cols);
  a.weights = weights;
  a.x = static_cast<const __nv_bfloat16*>(x);
  a.ldx = cols;
  a.tokens = tokens;
  a.y = y;
  a.ldy = rows;
  a.workspace = workspace;
  a.fast = fast;
  a.dependent = dependent;
  return LaunchDense(a, stream);
}

// what: 0 plan, 1 gate and up, 2 down.
int di_experts(int what, int rows, int experts, int chosen_count, const int32_t* chosen, const float* weights,
               const uint8_t* const* gate_up, const uint8_t* const* down, const void* x, void* act, void* y, void* plan, int fast,
               int dependent, cudaStream_t stream) {
  ExpertsArgs a;
  a.plan = PlanViews(plan, rows, chosen_count, experts);
  a.num_experts = experts;
  a.num_chosen = chosen_count;
  a.rows = rows;
  a.chosen = chosen;
  a.weights = weights;
  a.gate_up = gate_up;
  a.down = down;
  a.x = static_cast<const __nv_bfloat16*>(x);
  a.ldx = kExpertHidden;
  a.swiglu_limit = 10;
  a.act = static_cast<__nv_bfloat16*>(act);
  a.y = y;
  a.fast = fast;
  a.dependent = dependent;
  return what == 0 ? LaunchExpertPlan(a, stream) : what == 1 ? LaunchExpertGateUp(a, stream) : LaunchExpertDown(a, stream);
}

}  // extern "C"
