// SPDX-License-Identifier: Apache-2.0
//
// The expert layer on sm_90a (model.md 7, steps 4 to 6): plan (rows sorted by expert), gate and up with SwiGLU, routing weight
// and quantisation, down, sum over the chosen experts in ascending order plus the shared expert. Experts are FP4, packed
// (weights.h): gate_up [2I, H] from w1 and w3 with kInterleaved, down [H, I]. The kernels serve H = 5120 and I = 2304.
//
// Nothing is decided on the host but the grid: counts live on the device, so a captured graph serves any routing.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "backends/cuda/kernels/dense.h"
#include "backends/cuda/kernels/weights.h"

namespace deepinfer::cuda {

inline constexpr int kExpertHidden = 5120;
inline constexpr int kExpertWidth = 2304;
inline constexpr int kMaxPlannedExperts = 1024;
inline constexpr int kStreamJobRows = 16;  // rows of a job of the kernels for few rows an expert
inline constexpr int kWideJobRows = 64;    // ... of those for many
inline constexpr int kFastJobRows = 96;    // ... when `fast`

inline PackedLayout ExpertGateUpLayout() { return LayoutOf(PackedKind::kFp4, 2 * kExpertWidth, kExpertHidden); }
inline PackedLayout ExpertDownLayout() { return LayoutOf(PackedKind::kFp4, kExpertHidden, kExpertWidth); }

// Rows of one expert that are multiplied together.
struct ExpertJob {
  int32_t expert;
  int32_t first_slot;
  int32_t count;
  int32_t unused;
  const uint8_t* gate_up;  // packed matrices of the expert
  const uint8_t* down;
};

// Views into one workspace of PlanBytes. A slot is a (row, choice) pair, sorted by expert.
struct ExpertPlan {
  int32_t* num_jobs = nullptr;
  ExpertJob* jobs = nullptr;
  int32_t* slot_pair = nullptr;  // [T*K] row * K + choice
  int32_t* pair_slot = nullptr;  // [T*K], -1 for padding
};
int64_t PlanBytes(int64_t max_rows, int num_chosen, int num_experts);
ExpertPlan PlanViews(void* workspace, int64_t max_rows, int num_chosen, int num_experts);

enum class ExpertForm { kAuto, kStream, kWide };

struct ExpertsArgs {
  ExpertPlan plan;
  int num_experts = 0;
  int num_chosen = 0;               // K, at most 16
  int rows = 0;                     // T
  const int32_t* chosen = nullptr;  // [T, K], -1 = padding
  const float* weights = nullptr;   // [T, K]
  const uint8_t* const* gate_up = nullptr;  // [num_experts] packed matrices (device array of device pointers)
  const uint8_t* const* down = nullptr;
  const __nv_bfloat16* x = nullptr;  // [T, H] quantised, ldx values apart
  int64_t ldx = 0;
  float swiglu_limit = 0;
  bool round_bf16 = true;
  __nv_bfloat16* act = nullptr;  // [T*K, I] scratch: the activations between the products
  void* y = nullptr;             // [T*K, H] scratch, bf16 if round_bf16, else float32
  const void* shared = nullptr;  // [T, H] result of the shared expert, the type of y; null = none
  int64_t ld_shared = 0;
  void* out = nullptr;           // [T, H]
  int64_t ldo = 0;
  OutputType out_type = OutputType::kBf16;
  bool dependent = false;        // programmatic dependent launch
  ExpertForm form = ExpertForm::kAuto;
  bool fast = false;  // wide form: float32 sums over all of K in one go, on up to 96 rows; other bits than the stream form
};

// In this order on one stream. Up to 32 pairs of up to 8 rows nothing is planned: LaunchExpertPlan launches nothing, every block makes the jobs
// from `chosen`. With `dependent` the kernel of down reads the plan (or `chosen`) and weights while the one of gate and up still
// runs, so a kernel between the two must have been launched after that one. Products come in two forms with the same bits: weights streamed past up to 16 rows at a time,
// or wgmma on up to 64. `rows` and num_experts decide (many rows an expert); `form` overrides, the same for plan and products.
cudaError_t LaunchExpertPlan(const ExpertsArgs& args, cudaStream_t stream);
cudaError_t LaunchExpertGateUp(const ExpertsArgs& args, cudaStream_t stream);
cudaError_t LaunchExpertDown(const ExpertsArgs& args, cudaStream_t stream);
// What Launch... of the wide form call.
cudaError_t LaunchExpertGateUpWide(const ExpertsArgs& args, cudaStream_t stream);
cudaError_t LaunchExpertDownWide(const ExpertsArgs& args, cudaStream_t stream);
cudaError_t LaunchExpertSum(const ExpertsArgs& args, cudaStream_t stream);

}  // namespace deepinfer::cuda
