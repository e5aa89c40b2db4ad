// SPDX-License-Identifier: Apache-2.0
//
// The product of one packed tile by a tile unit, over `Engine` (the processor's, or TileModel in tests) and `Weights`, which
// gives the bf16 pairs of a group, scale included, and names the inputs it is multiplied with. Inputs go in blocks of 16 rows, weights in blocks of 16 output rows; the
// sums of a product stay in tile registers over all groups (up to 32 inputs) or over kChunk groups (more). Weights are decoded
// once per chunk. The same instructions serve any number of inputs, so an output does not depend on it.
#pragma once

#include <cstdint>
#include <cstring>

#include "backends/cpu/kernels/matmul_kernels.h"

namespace deepinfer::cpu {

// Registers: 0-3 outputs [inputs 0-15, 16-31][rows 0-15, 16-31], 4-5 inputs, 6-7 weights.
template <typename Engine>
struct TileBlock {
  Engine& engine;
  bool is_double;  // two blocks of inputs

  __attribute__((always_inline)) void Zero() const {
    engine.template Zero<0>();
    engine.template Zero<1>();
    if (!is_double) return;
    engine.template Zero<2>();
    engine.template Zero<3>();
  }
  __attribute__((always_inline)) void Load(const float* out) const {
    engine.template Load<0>(out, 128);
    engine.template Load<1>(out + 16, 128);
    if (!is_double) return;
    engine.template Load<2>(out + 16 * 32, 128);
    engine.template Load<3>(out + 16 * 32 + 16, 128);
  }
  __attribute__((always_inline)) void Store(float* out) const {
    engine.template Store<0>(out, 128);
    engine.template Store<1>(out + 16, 128);
    if (!is_double) return;
    engine.template Store<2>(out + 16 * 32, 128);
    engine.template Store<3>(out + 16 * 32 + 16, 128);
  }
  // One group: x [inputs][16 pairs], w [16 pairs][32 rows].
  __attribute__((always_inline)) void Add(const uint32_t* x, const uint32_t* w) const {
    engine.template Load<6>(w, 128);
    engine.template Load<7>(w + 16, 128);
    engine.template Load<4>(x, 64);
    engine.template DotBf16<0, 4, 6>();
    engine.template DotBf16<1, 4, 7>();
    if (!is_double) return;
    engine.template Load<5>(x + 16 * 16, 64);
    engine.template DotBf16<2, 5, 6>();
    engine.template DotBf16<3, 5, 7>();
  }
};

// Writes task.out for whole blocks of 16 inputs (one block of num_m inputs when there are fewer). With few inputs, weights are
// decoded one chunk ahead of their products: a tile load has to wait until the stores of what it reads have left the
// processor's queue. With many, the products hide that and the first-level cache is better used.
template <typename Weights, typename Engine>
void MultiplyTiles(Engine& engine, const TileTask& task) {
  constexpr int kChunk = 4;  // groups
  struct Chunk {
    const uint32_t* weights[kChunk];
    const uint32_t* inputs[kChunk];
  };
  alignas(64) uint32_t panels[2][Weights::kIsDecoded ? kChunk * 512 : 16];
  alignas(64) uint32_t gathered[2][kChunk][kMaxTileM * 16];
  Chunk chunks[2];
  const int num_m = task.num_m;
  bool is_contiguous = true;
  for (int m = 1; m < num_m; ++m) is_contiguous &= task.row_idx[m] == task.row_idx[0] + m;
  const bool stays = num_m <= 32;  // outputs stay in registers
  const int64_t x_stride = task.group_rows * 16;
  const Weights weights(task);

  const auto size_of = [&](int64_t first) __attribute__((always_inline)) {
    return static_cast<int>(task.num_groups - first < kChunk ? task.num_groups - first : kChunk);
  };
  const auto prepare = [&](int64_t first) __attribute__((always_inline)) {
    const int64_t slot = stays ? first / kChunk % 2 : 0;
    for (int g = 0; g < size_of(first); ++g) {
      if constexpr (Weights::kIsDecoded) {
        weights.Decode(first + g, panels[slot] + g * 512);
        chunks[slot].weights[g] = panels[slot] + g * 512;
      } else {
        chunks[slot].weights[g] = weights.Group(first + g);
      }
      const uint32_t* x = Weights::Inputs(task) + (first + g) * x_stride;
      chunks[slot].inputs[g] = x + int64_t{task.row_idx[0]} * 16;
      if (is_contiguous) continue;
      for (int m = 0; m < num_m; ++m) std::memcpy(gathered[slot][g] + m * 16, x + int64_t{task.row_idx[m]} * 16, 64);
      chunks[slot].inputs[g] = gathered[slot][g];
    }
  };

  engine.Configure(num_m < 16 ? num_m : 16);
  if (stays) prepare(0);
  for (int64_t first = 0; first < task.num_groups; first += kChunk) {
    const int64_t next = stays ? first + kChunk : first;
    if (next < task.num_groups) prepare(next);
    const Chunk& chunk = chunks[stays ? first / kChunk % 2 : 0];
    const int count = size_of(first);
    for (int m = 0; m < num_m; m += 32) {
      const TileBlock<Engine> block{engine, num_m - m > 16};
      float* out = task.out + m * 32;
      if (first == 0) {
        block.Zero();
      } else if (!stays) {
        block.Load(out);
      }
      for (int g = 0; g < count; ++g) block.Add(chunk.inputs[g] + m * 16, chunk.weights[g]);
      if (!stays || first + count == task.num_groups) block.Store(out);
    }
  }
  engine.Release();
}

}  // namespace deepinfer::cpu
