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

void MoeExperts::Plan(const MoeArgs& args) {
  const PreparedActivations& x = *args.x;
  const int64_t num_rows = x.num_rows();
  const int k = args.num_chosen;
  const auto num_experts = static_cast<int64_t>(args.experts.size());

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
  act_.Resize(num_slots, args.shared != nullptr ? args.shared->gate_up->rows() / 2 : args.experts[0].gate_up->rows() / 2, x.form());
}

std::span<const MoeExperts::Chunk> MoeExperts::ChunksOf(int64_t first, int64_t last) const {
  const auto begin = std::lower_bound(chunks_.begin(), chunks_.end(), first, [](const Chunk& c, int64_t e) { return c.expert < e; });
  const auto end = std::upper_bound(begin, chunks_.end(), last, [](int64_t e, const Chunk& c) { return e < c.expert; });
  return {begin, end};
}

void MoeExperts::GateUp(ThreadPool& pool, const MoeArgs& args, std::span<const Chunk> chunks) {
  if (chunks.empty()) return;
  const PreparedActivations& x = *args.x;
  const SwigluFn swiglu = args.swiglu != nullptr ? args.swiglu : ScalarSwiglu;
  const int64_t num_pairs = WeightsOf(args, chunks[0].expert).gate_up->num_tiles() / 2;
  pool.ParallelFor(static_cast<int64_t>(chunks.size()) * num_pairs, [&](int64_t item, int) {
    const Chunk& chunk = chunks[static_cast<size_t>(item / num_pairs)];
    const int64_t pair = item % num_pairs;
    const PackedMatrix& w = *WeightsOf(args, chunk.expert).gate_up;
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
}

void MoeExperts::Down(ThreadPool& pool, const MoeArgs& args, std::span<const Chunk> chunks, bool is_first, bool is_last) {
  if (chunks.empty() && !is_last) return;
  const int64_t num_rows = args.x->num_rows();
  const PackedMatrix& shape = *WeightsOf(args, (chunks.empty() ? chunks_ : chunks)[0].expert).down;
  // Sums that are carried from part to part have a place per tile.
  const bool is_carried = !is_first || !is_last;
  const int64_t places = is_carried ? shape.num_tiles() : pool.num_threads();
  const int64_t bytes = places * num_rows * kTileRows * static_cast<int64_t>(sizeof(float));
  if (is_first) sums_.EnsureCapacity(bytes);
  pool.ParallelFor(shape.num_tiles(), [&](int64_t tile_idx, int thread) {
    float* sums = reinterpret_cast<float*>(sums_.data()) + (is_carried ? tile_idx : thread) * num_rows * kTileRows;
    if (is_first) std::fill_n(sums, num_rows * kTileRows, 0.0f);
    alignas(64) float y[kMaxTileM * kTileRows];
    int32_t slots[kMaxTileM];
    for (const Chunk& chunk : chunks) {
      const PackedMatrix& w = *WeightsOf(args, chunk.expert).down;
      for (int m = 0; m < chunk.num_slots; ++m) slots[m] = chunk.first_slot + m;
      RunPackedTile(SelectTileFn(w, act_), w, tile_idx, act_, 0, slots, chunk.num_slots, y);
      if (args.round_bf16) RoundToBf16InPlace(y, int64_t{chunk.num_slots} * kTileRows);
      for (int m = 0; m < chunk.num_slots; ++m) {
        float* sum = sums + int64_t{slot_row_[static_cast<size_t>(chunk.first_slot + m)]} * kTileRows;
        for (int r = 0; r < kTileRows; ++r) sum[r] += y[m * kTileRows + r];
      }
    }
    if (!is_last) return;
    if (args.round_bf16) RoundToBf16InPlace(sums, num_rows * kTileRows);
    const PackedMatrix::Tile& tile = shape.tile(tile_idx);
    for (int64_t t = 0; t < num_rows; ++t) {
      std::copy_n(sums + t * kTileRows, tile.num_rows, args.out + t * args.ldo + tile.first_row);
    }
  });
}

bool MoeExperts::Run(ThreadPool& pool, const MoeArgs& args) {
  if (args.x->num_rows() == 0) return true;
  Plan(args);
  if (chunks_.empty()) return true;
  if (args.source != nullptr) return RunFromSource(pool, args);
  routed_ = args.experts;
  GateUp(pool, args, chunks_);
  Down(pool, args, chunks_, true, true);
  return true;
}

bool MoeExperts::RunFromSource(ThreadPool& pool, const MoeArgs& args) {
  ExpertSource& source = *args.source;
  const auto num_experts = static_cast<int64_t>(args.experts.size());
  fetched_.assign(args.experts.size(), {});
  routed_ = fetched_;
  distinct_.clear();
  for (int32_t e = 0; e < num_experts; ++e)
    if (slot_begin_[static_cast<size_t>(e)] < slot_begin_[static_cast<size_t>(e) + 1]) distinct_.push_back(e);
  const std::span<const int32_t> all = distinct_;
  const size_t group_size = static_cast<size_t>(source.max_group());
  const size_t num_groups = (all.size() + group_size - 1) / group_size;
  const auto group = [&](size_t g) { return all.subspan(g * group_size, std::min(group_size, all.size() - g * group_size)); };
  size_t num_begun = 0;
  const auto begin_up_to = [&](size_t count) {
    for (; num_begun < std::min(count, num_groups); ++num_begun) source.Begin(group(num_begun));
  };
  const size_t num_ahead = source.can_overlap() ? 2 : 1;
  begin_up_to(num_ahead);
  GateUp(pool, args, ChunksOf(num_experts, num_experts));  // of the shared expert, while the first are on their way
  bool is_ok = true;
  for (size_t g = 0; g < num_groups && is_ok; ++g) {
    const std::span<const int32_t> experts = group(g);
    for (size_t done = 0; done < experts.size();) {
      ready_.clear();
      is_ok = source.Next(ready_);
      if (!is_ok) break;
      done += ready_.size();
      ready_chunks_.clear();
      for (const ExpertSource::Ready& ready : ready_) {
        fetched_[static_cast<size_t>(ready.expert)] = ready.weights;
        const auto chunks = ChunksOf(ready.expert, ready.expert);
        ready_chunks_.insert(ready_chunks_.end(), chunks.begin(), chunks.end());
      }
      GateUp(pool, args, ready_chunks_);
    }
    const bool is_last = g + 1 == num_groups;
    // Ascending experts, then the shared one, whatever the order in which they came.
    if (is_ok) Down(pool, args, ChunksOf(experts.front(), is_last ? num_experts : experts.back()), g == 0, is_last);
    source.End();
    if (is_ok) begin_up_to(g + 1 + num_ahead);
    if (!is_ok)
      for (size_t open = g + 1; open < num_begun; ++open) source.End();
  }
  if (num_groups == 0) Down(pool, args, chunks_, true, true);
  return is_ok;
}

}  // namespace deepinfer::cpu
