// SPDX-License-Identifier: Apache-2.0
//
// What the kernels of the two expert products get, few rows (experts.cu) and many (experts_wide.cu) alike.
#pragma once

#include "backends/cuda/kernels/experts.h"

namespace deepinfer::cuda {

struct ExpertProductArgs {
  const int32_t* num_jobs;
  const ExpertJob* jobs;
  const int32_t* slot_pair;
  const __nv_bfloat16* x;
  int64_t ldx;
  int num_chosen;
  const float* weights;
  float limit;
  bool round_bf16;
  void* out;
  // Few pairs: every block makes the jobs itself from the pairs' experts, and a pair's number is its slot. 0 = as planned.
  int direct_pairs = 0;
  const int32_t* chosen = nullptr;
  const uint8_t* const* matrices = nullptr;
};

// Pairs of a call whose blocks make the jobs themselves, else 0.
int DirectPairs(const ExpertsArgs& args);

inline ExpertProductArgs GateUpArgs(const ExpertsArgs& args) {
  return {args.plan.num_jobs, args.plan.jobs,    args.plan.slot_pair, args.x,  args.ldx, args.num_chosen,
          args.weights,       args.swiglu_limit, args.round_bf16,     args.act,
          DirectPairs(args),  args.chosen,       args.gate_up};
}
inline ExpertProductArgs DownArgs(const ExpertsArgs& args) {
  return {args.plan.num_jobs, args.plan.jobs, args.plan.slot_pair, args.act,          kExpertWidth, args.num_chosen, nullptr, 0,
          args.round_bf16,    args.y,         DirectPairs(args),   args.chosen,       args.down};
}

}  // namespace deepinfer::cuda
