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

struct DrawWorkspace {
  std::vector<uint32_t> lanes;
  std::vector<float> keys;
};

// Integer inverse CDF: lane = column mod BD; the word picks a lane by prefix sums, then a column in it. -1 when all weights
// are zero.
int32_t DrawInverseCdf(std::span<const uint32_t> weights, PhiloxStream stream, DrawWorkspace& workspace);

// Exponential race: argmin of e[c] / w[c], e[c] from word c of the stream; ties: lowest id. -1 when all weights are zero.
// ids (optional) names the vocabulary id of each entry, ascending.
int32_t DrawRace(std::span<const uint32_t> weights, const PhiloxStream& stream, DrawWorkspace& workspace,
                 std::span<const int32_t> ids = {});

// e = -log(u) of one word, exact near both ends.
float ExponentialFromWord(uint32_t word);

}  // namespace deepinfer::sampling
