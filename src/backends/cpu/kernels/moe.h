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

// Experts that are fetched when a step needs them. A group of experts is begun, becomes usable bit by bit, and is ended;
// two groups may be begun at a time, so that the next one is on its way while one is computed.
class ExpertSource {
 public:
  virtual ~ExpertSource() = default;
  // The most experts of one group, at least 1.
  virtual int64_t max_group() const = 0;
  // Two groups at a time are possible.
  virtual bool can_overlap() const = 0;
  // Starts to fetch `experts` (ascending); they stay where they are until End.
  virtual void Begin(std::span<const int32_t> experts) = 0;
  struct Ready {
    int32_t expert;
    ExpertWeights weights;
  };
  // Appends experts of the oldest group that became usable since the last call, at least one; sleeps until there is one.
  // False: one of them cannot be had.
  virtual bool Next(std::vector<Ready>& ready) = 0;
  // The oldest group is not needed any more.
  virtual void End() = 0;
};

struct MoeArgs {
  const PreparedActivations* x = nullptr;  // [T, H]
  std::span<const ExpertWeights> experts;
  ExpertSource* source = nullptr;          // set: `experts` has the size only, and `shared` is not null
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
  // False: an expert cannot be had, `out` is void. Results do not depend on where experts come from.
  bool Run(ThreadPool& pool, const MoeArgs& args);

 private:
  struct Chunk {
    int32_t expert;      // experts.size() = shared
    int32_t first_slot;  // into slot_row_ and the rows of act_
    int32_t num_slots;   // 1..64
  };
  void Plan(const MoeArgs& args);
  void GateUp(ThreadPool& pool, const MoeArgs& args, std::span<const Chunk> chunks);
  // Adds the outputs of `chunks` to the sums, which begin with the first part and are written with the last.
  void Down(ThreadPool& pool, const MoeArgs& args, std::span<const Chunk> chunks, bool is_first, bool is_last);
  bool RunFromSource(ThreadPool& pool, const MoeArgs& args);
  const ExpertWeights& WeightsOf(const MoeArgs& args, int64_t expert) const {
    return expert == static_cast<int64_t>(args.experts.size()) ? *args.shared : routed_[static_cast<size_t>(expert)];
  }
  // Chunks of experts [first, last] (numbers).
  std::span<const Chunk> ChunksOf(int64_t first, int64_t last) const;

  std::vector<int32_t> slot_begin_;   // [E + 1]
  std::vector<int32_t> slot_row_;     // input row of each slot, experts ascending, then the shared expert's
  std::vector<float> slot_weight_;
  std::vector<Chunk> chunks_;
  PreparedActivations act_;           // [slots, I]
  AlignedBuffer sums_;                // per thread [T][32]; from a source with several groups: per tile
  std::span<const ExpertWeights> routed_;  // [E] of the call: args.experts, or fetched_
  std::vector<ExpertWeights> fetched_;     // from a source
  std::vector<int32_t> distinct_;       // experts of the call, ascending
  std::vector<ExpertSource::Ready> ready_;
  std::vector<Chunk> ready_chunks_;
};

}  // namespace deepinfer::cpu
