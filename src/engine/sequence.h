// SPDX-License-Identifier: Apache-2.0
//
// Sequence: one token list and everything the scheduler knows about it. SequenceSpec is what a caller asks for. Owned by
// the Scheduler and touched by its thread only.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "deepinfer/output.h"
#include "engine/prefix_cache.h"
#include "engine/prefix_key.h"
#include "engine/request_probe.h"

namespace deepinfer::engine {

struct SequenceSpec {
  uint64_t id = 0;  // unique; ties are broken by it, so ids ascend with arrival
  std::vector<int32_t> tokens;  // the prompt, not empty
  int priority = 0;             // smaller = sooner
  int64_t arrival_ns = 0;
  int64_t max_tokens = 16;
  bool ignore_eos = false;
  std::vector<int32_t> stop_token_ids;
  std::optional<CacheMode> cache_mode;  // unset: the scheduler's
  Key256 cache_root;                    // root of the key chain: fingerprint and salt
  std::vector<ImageSpan> images;        // of expanded image tokens, by position
  std::vector<int64_t> chunk_checkpoints;  // ascending lengths at which a prefill chunk has to end
  bool is_schedulable = true;           // false: pixels are on their way (SetSchedulable)
  bool needs_all_rows = false;          // prompt log probabilities: nothing of the prompt may come from the cache
  // Siblings that share the prompt (n > 1), made when the prompt of this one is complete. Ascending, above `id`.
  std::vector<uint64_t> fork_ids;
  // What the caller attaches (sampling parameters, ...); handed through to rows and events.
  std::shared_ptr<void> user;
  std::shared_ptr<RequestProbe> probe;  // may be null
};

enum class SequenceStatus { kWaiting, kPrompted, kRunning, kFinished };

struct Sequence {
  SequenceSpec spec;
  uint64_t id = 0;
  int64_t prompt_len = 0;
  std::vector<int32_t> tokens;  // prompt and output
  SequenceStatus status = SequenceStatus::kWaiting;
  FinishReason finish_reason = FinishReason::kNone;
  CacheMode cache_mode = CacheMode::kOff;

  // Caches. Positions below num_cached have their keys in the blocks (committed tokens only).
  int64_t num_cached = 0;
  int64_t valid_start = 0;    // window keys below it do not exist (encoder replay)
  int64_t write_floor = 0;    // compressed keys below it exist in shared blocks and are not written
  int64_t decoder_floor = 0;  // first position that has to run through the consumer half (decoder replay)
  int64_t cached_tokens = 0;  // H of the newest lookup
  std::vector<int32_t> table;
  int32_t state_slot = 0;
  int32_t snapshot_slot = 0;  // a waiting fork's share of its parent's state
  std::vector<Key256> keys;   // of full blocks, as far as they were needed
  int64_t num_published = 0;  // leading blocks that were offered to the prefix cache
  int64_t decode_record = -1;  // block index of the newest STATE record that decoding saved off the grid, -1 = none

  // Steps that were planned and not processed yet.
  int steps_in_flight = 0;        // all, stale ones included
  int64_t total_inflight = 0;     // token bound of those of this generation
  int64_t last_inflight = 0;
  uint32_t generation = 0;        // grows when the caches are given up: rows of older ones are void
  int32_t last_row = -1;          // row of the newest step planned
  int num_drafts = 0;             // drafts that the device holds, or will hold after the steps in flight
  // Cumulative acceptance rates of the newest drafts that the host knows of, and of those before.
  std::vector<float> rates, previous_rates;
  int64_t num_decodes_planned = 0, num_decodes_processed = 0;

  // Waiting order.
  int64_t waiting_since_ns = 0;
  int64_t skipped_since_ns = -1;  // unschedulable at the head since then
  bool was_preempted = false;
  bool is_promoted = false;       // waited too long: in front of every priority
  bool was_promoted = false;      // only once
  bool is_queued = false;         // in the waiting queue
  size_t next_checkpoint = 0;     // into spec.chunk_checkpoints
  bool has_reported_first = false;

  int64_t length() const { return static_cast<int64_t>(tokens.size()); }
  int64_t output_len() const { return length() - prompt_len; }
  bool owns_blocks() const { return !table.empty(); }
  bool is_fork() const { return snapshot_slot != 0; }
  bool is_finished() const { return status == SequenceStatus::kFinished; }
};

}  // namespace deepinfer::engine
