// SPDX-License-Identifier: Apache-2.0
//
// The configuration of the released model (checkpoint.md 2), and real-width slices of it for work
// on speed: fewer layers, experts and Engram rows, every matrix as wide as released (`perf-small`
// of performance.md 6).
#pragma once

#include <cstdint>

#include "core/json.h"

namespace deepinfer::model {

Json ReleasedConfigJson();

struct SliceOptions {
  int num_experts = 16;
  int64_t engram_rows = 1'000'000;  // about; the prime sums decide
  int num_draft_stages = 0;
  int num_draft_experts = 16;
  int64_t max_position_embeddings = 1'048'576;
};

// Seven layers, one of each kind:
//   0 window only          1 KV and index source, ratio 2    2 reuses 1
//   3 re-indexes, Engram   4 KV, index and candidate source, ratio 1    5 reuses 4    6 re-indexes
//   inside the candidates
// Text only; the vocabulary and the tokenizer are the released ones.
Json SliceConfigJson(const SliceOptions& options);

}  // namespace deepinfer::model
