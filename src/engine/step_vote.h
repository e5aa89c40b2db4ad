// SPDX-License-Identifier: Apache-2.0
//
// Prefill or decode? The rule that alternates step types, as a pure function of one vote per data-parallel rank, so that
// all ranks choose the same (engine.md 7.3 and 24.1 of the specification).
#pragma once

#include <cstdint>
#include <span>

namespace deepinfer::engine {

struct AlternationOptions {
  int max_num_seqs = 256;
  // Fixed points of the public engine: every `attempt_interval` decode steps prefill runs if all ranks want it, every
  // `any_attempt_interval` if any does. 0 = the adaptive rule.
  int64_t attempt_interval = 0;
  int64_t any_attempt_interval = 100;
  // Adaptive rule: decode steps that follow each prefill step while sequences run.
  int64_t decode_steps_per_prefill = 1;
  int64_t max_wait_ns = 50'000'000;  // one rank: a request that waited longer is tried at once
};

struct StepVote {
  bool wants_prefill = false;
  int64_t num_running = 0;   // sequences that decode or are ready to
  int64_t num_free_seqs = 0;
  int64_t oldest_wait_ns = 0;
};

// `decode_step`: decode steps since the last prefill step, 0 at start; the same on all ranks.
bool ShouldPrefill(const AlternationOptions& options, int64_t decode_step, std::span<const StepVote> votes);

}  // namespace deepinfer::engine
