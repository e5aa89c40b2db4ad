// SPDX-License-Identifier: Apache-2.0
#include "sampling/draw.h"

#include <algorithm>
#include <array>
#include <bit>
#include <limits>

#include "sampling/row_ops.h"

namespace deepinfer::sampling {

int NumLanes(int64_t n) {
  if (n >= 8192) return 2048;
  return static_cast<int>(std::bit_ceil(static_cast<uint64_t>(std::max<int64_t>(n, 1))));
}

void DrawWorkspace::Reserve(int64_t max_tokens) {
  const size_t n = static_cast<size_t>(max_tokens);
  if (max_tokens <= 0 || keys.size() >= n) return;
  const size_t num_lanes = static_cast<size_t>(NumLanes(max_tokens < 8192 ? 8191 : max_tokens));
  weights.resize(n);
  values.resize(n);
  float_lanes.resize(num_lanes);
  lanes.resize(num_lanes);
  keys.resize(n);
  ids.resize(n);
  id_weights.resize(n);
}

int32_t DrawInverseCdf(std::span<const uint32_t> weights, PhiloxStream stream, DrawWorkspace& workspace) {
  const int64_t n = static_cast<int64_t>(weights.size());
  const int num_lanes = NumLanes(n);
  workspace.Reserve(n);
  GetRowOps().sum_lanes(weights.data(), n, workspace.lanes.data(), num_lanes);
  const std::span<const uint32_t> lanes(workspace.lanes.data(), static_cast<size_t>(num_lanes));
  // Weights are probabilities times 2^31, so the total fits 32 bits for any row that sums to about one.
  uint32_t total = 0;
  for (const uint32_t lane : lanes) total += lane;
  if (total == 0) return -1;
  // Words at or above the largest multiple of the total are thrown away: no bias.
  const uint32_t limit = std::numeric_limits<uint32_t>::max() / total * total;
  uint32_t word = stream.Next();
  while (word >= limit) word = stream.Next();
  uint32_t rest = word % total;
  size_t lane = 0;
  while (rest >= lanes[lane]) rest -= lanes[lane++];
  for (size_t column = lane; column < weights.size(); column += static_cast<size_t>(num_lanes)) {
    if (rest < weights[column]) return static_cast<int32_t>(column);
    rest -= weights[column];
  }
  return -1;  // not reached: rest is below the lane's sum
}

namespace {

// Collects the tokens with a weight; false when they are too many for the sparse race to pay.
bool CollectSparse(std::span<const uint32_t> weights, DrawWorkspace& workspace, int64_t& count) {
  const int64_t n = static_cast<int64_t>(weights.size());
  const int64_t max_count = n / 6;
  count = 0;
  constexpr int64_t kStep = 64;
  for (int64_t base = 0; base < n; base += kStep) {
    const int64_t end = std::min(n, base + kStep);
    uint32_t any = 0;
    for (int64_t i = base; i < end; ++i) any |= weights[static_cast<size_t>(i)];
    if (any == 0) continue;
    for (int64_t i = base; i < end; ++i) {
      const uint32_t weight = weights[static_cast<size_t>(i)];
      if (weight == 0) continue;
      if (count == max_count) return false;
      workspace.ids[static_cast<size_t>(count)] = static_cast<int32_t>(i);
      workspace.id_weights[static_cast<size_t>(count)] = weight;
      ++count;
    }
  }
  return true;
}

}  // namespace

int32_t DrawRace(std::span<const uint32_t> weights, const PhiloxStream& stream, DrawWorkspace& workspace) {
  const RowOps& ops = GetRowOps();
  const int64_t n = static_cast<int64_t>(weights.size());
  workspace.Reserve(n);
  const std::array<uint32_t, 4> name = {stream.key0(), stream.key1(), stream.sub_lo(), stream.sub_hi()};
  int64_t count = 0;
  const bool is_sparse = CollectSparse(weights, workspace, count);
  if (is_sparse && count == 0) return -1;
  float* keys = workspace.keys.data();
  if (is_sparse) {
    ops.race_keys_of(workspace.id_weights.data(), workspace.ids.data(), count, name.data(), keys);
  } else {
    count = n;
    ops.race_keys(weights.data(), 0, n, name.data(), keys);
  }
  int64_t best = 0;
  for (int64_t i = 1; i < count; ++i) {
    if (keys[i] < keys[best]) best = i;  // strict: ties keep the lowest id
  }
  if (keys[best] == std::numeric_limits<float>::infinity()) return -1;
  return is_sparse ? workspace.ids[static_cast<size_t>(best)] : static_cast<int32_t>(best);
}

float ExponentialFromWord(uint32_t word) { return GetRowOps().exponential(word); }

}  // namespace deepinfer::sampling
