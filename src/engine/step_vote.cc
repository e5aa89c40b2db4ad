// SPDX-License-Identifier: Apache-2.0
#include "engine/step_vote.h"

#include <algorithm>

namespace deepinfer::engine {

bool ShouldPrefill(const AlternationOptions& options, int64_t decode_step, std::span<const StepVote> votes) {
  const auto wants = [](const StepVote& vote) { return vote.wants_prefill; };
  const bool any = std::any_of(votes.begin(), votes.end(), wants);
  if (!any) return false;
  if (options.attempt_interval > 0) {
    if (decode_step != 0 && decode_step % options.any_attempt_interval == 0) return true;
    if (decode_step % options.attempt_interval != 0) return false;
    return std::all_of(votes.begin(), votes.end(), wants);
  }
  const bool is_running = std::any_of(votes.begin(), votes.end(), [](const StepVote& vote) { return vote.num_running > 0; });
  if (!is_running) return true;
  if (decode_step < options.decode_steps_per_prefill) return false;
  int64_t free = 0;
  for (const StepVote& vote : votes) free += vote.wants_prefill ? vote.num_free_seqs : 0;
  if (free * 8 >= int64_t{options.max_num_seqs} * static_cast<int64_t>(votes.size())) return true;
  return votes.size() == 1 ? votes[0].oldest_wait_ns > options.max_wait_ns : decode_step >= options.any_attempt_interval;
}

}  // namespace deepinfer::engine
