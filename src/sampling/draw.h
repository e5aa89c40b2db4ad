// SPDX-License-Identifier: Apache-2.0
//
// The two draws over fixed-point weights w[c] = trunc(p[c] * 2^31). Both are exact in integers or in the project's own
// float functions: the result depends on the weights and the stream name only (vectors of engine.md 14.3 and 14.5).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "sampling/philox.h"

namespace deepinfer::sampling {

// Number of lanes (BD) for a row: 2048 from 8192 tokens on, else the next power of two >= n.
int NumLanes(int64_t n);

// Buffers of the draws; grow to the largest row once.
struct DrawWorkspace {
  explicit DrawWorkspace(int64_t max_tokens = 0) { Reserve(max_tokens); }
  void Reserve(int64_t max_tokens);

  std::vector<uint32_t> weights;  // of verification rows
  std::vector<float> values;      // residuals
  std::vector<float> float_lanes;
  std::vector<uint32_t> lanes;
  std::vector<float> keys;
  std::vector<int32_t> ids;  // tokens with a weight, when they are few
  std::vector<uint32_t> id_weights;
};

// Integer inverse CDF: the word picks a lane by prefix sums of the lanes, then a column in it. -1 when all weights are zero.
int32_t DrawInverseCdf(std::span<const uint32_t> weights, PhiloxStream stream, DrawWorkspace& workspace);

// Exponential race: argmin of e[c] / w[c], e[c] from word c of the stream; ties: lowest id. -1 when all weights are zero.
int32_t DrawRace(std::span<const uint32_t> weights, const PhiloxStream& stream, DrawWorkspace& workspace);

// e = -log(u) of one word, exact near both ends.
float ExponentialFromWord(uint32_t word);

}  // namespace deepinfer::sampling
