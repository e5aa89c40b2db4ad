// SPDX-License-Identifier: Apache-2.0
//
// The expert layer in two phases (model.md 7 step 4 to 6). Gate and up: one item is 32 channels of both halves of one
// expert for up to 64 of its rows; SwiGLU, routing weight and the quantisation of the block for `down` happen on the spot.
// Down: one item is 32 outputs of all rows over all experts in ascending order, then the shared expert, so each output is
// summed by one thread in a fixed order. Results depend neither on threads nor on the rows that share the call.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "backends/cpu/kernels/matmul.h"
#include "core/threads.h"

namespace deepinfer::cpu {

struct ExpertWeights {
  const PackedMatrix* gate_up = nullptr;  // [2I, H]: w1 and w3 packed with interleave
  const PackedMatrix* down = nullptr;     // [H, I]
};

// out[i] = weight * silu(min(gate, limit)) * clamp(up, -limit, limit), rounded to bf16 on request; limit <= 0: no clamp.
using SwigluFn = void (*)(const float* gate, const float* up, int64_t n, float limit, float weight, bool round_bf16,
                          float* out);

struct MoeArgs {
  const PreparedActivations* x = nullptr;  // [T, H]
  std::span<const ExpertWeights> experts;
  const ExpertWeights* shared = nullptr;   // null = none
  int num_chosen = 0;                      // K
  const int32_t* chosen = nullptr;         // [T, K] expert numbers; -1 = padding
  const float* weights = nullptr;          // [T, K]
  float swiglu_limit = 0;
  bool round_bf16 = false;                 // the storage points of `release`
  SwigluFn swiglu = nullptr;               // null = the scalar one
  float* out = nullptr;                    // [T, H], row stride ldo
  int64_t ldo = 0;
};

// Keeps the buffers of one layer call for the next; one call at a time. The activations between the two phases take the
// form of args.x (quantised per 32 when x is).
class MoeExperts {
 public:
  void Run(ThreadPool& pool, const MoeArgs& args);

 private:
  struct Chunk {
    int32_t expert;      // experts.size() = shared
    int32_t first_slot;  // into slot_row_ and the rows of act_
    int32_t num_slots;   // 1..64
  };
  std::vector<int32_t> slot_begin_;   // [E + 1]
  std::vector<int32_t> slot_row_;     // input row of each slot, experts ascending, then the shared expert's
  std::vector<float> slot_weight_;
  std::vector<Chunk> chunks_;
  PreparedActivations act_;           // [slots, I]
  AlignedBuffer sums_;                // per thread [T][32]
};

}  // namespace deepinfer::cpu
