// SPDX-License-Identifier: Apache-2.0
#include "backends/cpu/kernels/moe.h"

#include <algorithm>
#include <cmath>

#include "backends/cpu/kernels/matmul_tile.h"
#include "core/check.h"

namespace deepinfer::cpu {
namespace {

void ScalarSwiglu(const float* gate, const float* up, int64_t n, float limit, float weight, bool round_bf16, float* out) {
  for (int64_t i = 0; i < n; ++i) {
    float g = gate[i];
    float u = up[i];
    if (limit > 0) {
      g = std::min(g, limit);
      u = std::clamp(u, -limit, limit);
    }
    out[i] = weight * (g / (1.0f + std::exp(-g)) * u);
  }
  if (round_bf16) RoundToBf16InPlace(out, n);
}

}  // namespace

void MoeExperts::Run(ThreadPool& pool, const MoeArgs& args) {
  const PreparedActivations& x = *args.x;
  const int64_t num_rows = x.num_rows();
  const int k = args.num_chosen;
  const auto num_experts = static_cast<int64_t>(args.experts.size());
  if (num_rows == 0) return;

  // Slots: a counting sort of the (row, choice) pairs by expert; rows stay ascending inside an expert.
  slot_begin_.assign(static_cast<size_t>(num_experts) + 1, 0);
  for (int64_t i = 0; i < num_rows * k; ++i) {
    DI_DCHECK(args.chosen[i] < num_experts) << args.chosen[i];
    if (args.chosen[i] >= 0) ++slot_begin_[static_cast<size_t>(args.chosen[i]) + 1];
  }
  for (size_t e = 0; e < static_cast<size_t>(num_experts); ++e) slot_begin_[e + 1] += slot_begin_[e];
  const int64_t num_routed = slot_begin_[static_cast<size_t>(num_experts)];
  const int64_t num_slots = num_routed + (args.shared != nullptr ? num_rows : 0);
  slot_row_.resize(static_cast<size_t>(num_slots));
  slot_weight_.resize(static_cast<size_t>(num_slots));
  for (int64_t i = 0; i < num_rows * k; ++i) {
    if (args.chosen[i] < 0) continue;
    const auto slot = static_cast<size_t>(slot_begin_[static_cast<size_t>(args.chosen[i])]++);
    slot_row_[slot] = static_cast<int32_t>(i / k);
    slot_weight_[slot] = args.weights[i];
  }
  for (size_t e = static_cast<size_t>(num_experts); e > 0; --e) slot_begin_[e] = slot_begin_[e - 1];  // undo the ++
  slot_begin_[0] = 0;
  for (int64_t i = num_routed; i < num_slots; ++i) {
    slot_row_[static_cast<size_t>(i)] = static_cast<int32_t>(i - num_routed);
    slot_weight_[static_cast<size_t>(i)] = 1.0f;
  }

  chunks_.clear();
  const auto add_chunks = [this](int64_t expert, int64_t begin, int64_t end) {
    for (int64_t slot = begin; slot < end; slot += kMaxTileM) {
      chunks_.push_back({static_cast<int32_t>(expert), static_cast<int32_t>(slot),
                         static_cast<int32_t>(std::min<int64_t>(kMaxTileM, end - slot))});
    }
  };
  for (int64_t e = 0; e < num_experts; ++e) {
    add_chunks(e, slot_begin_[static_cast<size_t>(e)], slot_begin_[static_cast<size_t>(e) + 1]);
  }
  if (args.shared != nullptr) add_chunks(num_experts, num_routed, num_slots);
  if (chunks_.empty()) return;

  const auto weights_of = [&args, num_experts](int64_t expert) -> const ExpertWeights& {
    return expert == num_experts ? *args.shared : args.experts[static_cast<size_t>(expert)];
  };
  const ExpertWeights& any = weights_of(chunks_[0].expert);
  const int64_t width = any.gate_up->rows() / 2;
  const int64_t num_pairs = any.gate_up->num_tiles() / 2;
  const int64_t num_down_tiles = any.down->num_tiles();
  act_.Resize(num_slots, width, x.form());
  const SwigluFn swiglu = args.swiglu != nullptr ? args.swiglu : ScalarSwiglu;

  pool.ParallelFor(static_cast<int64_t>(chunks_.size()) * num_pairs, [&](int64_t item, int) {
    const Chunk& chunk = chunks_[static_cast<size_t>(item / num_pairs)];
    const int64_t pair = item % num_pairs;
    const PackedMatrix& w = *weights_of(chunk.expert).gate_up;
    const TileFn fn = SelectTileFn(w, x);
    alignas(64) float gate[kMaxTileM * kTileRows];
    alignas(64) float up[kMaxTileM * kTileRows];
    const int32_t* rows = slot_row_.data() + chunk.first_slot;
    RunPackedTile(fn, w, 2 * pair, x, 0, rows, chunk.num_slots, gate);
    RunPackedTile(fn, w, 2 * pair + 1, x, 0, rows, chunk.num_slots, up);
    if (args.round_bf16) {
      RoundToBf16InPlace(gate, int64_t{chunk.num_slots} * kTileRows);
      RoundToBf16InPlace(up, int64_t{chunk.num_slots} * kTileRows);
    }
    for (int m = 0; m < chunk.num_slots; ++m) {
      const int64_t slot = chunk.first_slot + m;
      float values[kTileRows];
      swiglu(gate + m * kTileRows, up + m * kTileRows, kTileRows, args.swiglu_limit,
             slot_weight_[static_cast<size_t>(slot)], args.round_bf16, values);
      act_.StoreGroup(slot, pair, values);
    }
  }, num_pairs);

  sums_.EnsureCapacity(int64_t{pool.num_threads()} * num_rows * kTileRows * static_cast<int64_t>(sizeof(float)));
  pool.ParallelFor(num_down_tiles, [&](int64_t tile_idx, int thread) {
    float* sums = reinterpret_cast<float*>(sums_.data()) + thread * num_rows * kTileRows;
    std::fill_n(sums, num_rows * kTileRows, 0.0f);
    alignas(64) float y[kMaxTileM * kTileRows];
    int32_t slots[kMaxTileM];
    for (const Chunk& chunk : chunks_) {
      const PackedMatrix& w = *weights_of(chunk.expert).down;
      for (int m = 0; m < chunk.num_slots; ++m) slots[m] = chunk.first_slot + m;
      RunPackedTile(SelectTileFn(w, act_), w, tile_idx, act_, 0, slots, chunk.num_slots, y);
      if (args.round_bf16) RoundToBf16InPlace(y, int64_t{chunk.num_slots} * kTileRows);
      for (int m = 0; m < chunk.num_slots; ++m) {
        float* sum = sums + int64_t{slot_row_[static_cast<size_t>(chunk.first_slot + m)]} * kTileRows;
        for (int r = 0; r < kTileRows; ++r) sum[r] += y[m * kTileRows + r];
      }
    }
    if (args.round_bf16) RoundToBf16InPlace(sums, num_rows * kTileRows);
    const PackedMatrix::Tile& tile = any.down->tile(tile_idx);
    for (int64_t t = 0; t < num_rows; ++t) {
      std::copy_n(sums + t * kTileRows, tile.num_rows, args.out + t * args.ldo + tile.first_row);
    }
  });
}

}  // namespace deepinfer::cpu
