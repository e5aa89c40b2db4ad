// SPDX-License-Identifier: Apache-2.0
//
// Scheduler: decides what every step computes. A pure state machine: no model, no threads, time from an injected clock.
//
//   Add/Abort ... Schedule(plan) -> run the plan -> Process(plan, result) -> TakeEvents
//
// Schedule may run one decode step ahead of Process (asynchronous steps); a prefill step has to be processed, and with it
// everything before, before the next Schedule. Every sequence added ends with exactly one event that has a finish reason.
// Not thread-safe: one thread calls everything.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <set>
#include <span>
#include <unordered_map>
#include <vector>

#include "core/clock.h"
#include "core/status.h"
#include "engine/block_pool.h"
#include "engine/prefix_cache.h"
#include "engine/sequence.h"
#include "engine/step_plan.h"
#include "engine/step_vote.h"
#include "engine/verify_schedule.h"

namespace deepinfer::engine {

struct SchedulerOptions {
  int64_t max_model_len = 4096;
  int64_t max_num_batched_tokens = 4096;
  int max_num_seqs = 256;
  int64_t num_blocks = 1024;     // cache blocks, the null block included
  double state_slots_ratio = 1.2;  // slots = floor(max_num_seqs * ratio) + 1, the null slot included
  bool chunked_prefill = true;
  int64_t max_sum_prefill_len = int64_t{1} << 30;  // sum of full lengths of the sequences of a prefill step
  int64_t max_all_logits_rows = 0;  // chunk limit of prompts whose log probabilities are asked for; 0 = none
  int64_t lookahead_tokens = 0;     // smallest chunk that shares a step with others
  bool stop_preempted = false;      // end preempted requests instead of computing them again
  int num_drafts = 0;               // drafts verified per decode step at most
  // Number of rows per sequence by measured cost and the head's confidence, none at all where drafting does not pay; needs
  // SetDecodeCosts. Off: all drafts are verified.
  bool varlen_verify = false;
  bool prompt_lookup = false;       // drafts from repeated text, where they are worth their rows; needs num_drafts > 0
  int64_t max_decode_gap_ms = 200;  // while sequences decode, a prefill step should last no longer; 0 = no limit
  int64_t starvation_ns = 30'000'000'000;
  int64_t max_skip_ns = 1'000'000'000;  // how long an unschedulable head is passed over
  AlternationOptions alternation;   // max_num_seqs is filled in
  std::vector<int32_t> end_token_ids;  // end of sentence, end of turn
  int32_t vocab_size = 0;           // image sentinels lie behind it; 0 = no images

  CacheMode cache_mode = CacheMode::kOff;
  bool is_batch_invariant = false;  // replay is refused: exact if STATE records are kept, else off
  int64_t decoder_keep = 0;         // decoder replay keeps that many prompt tokens; 0 = decoder replay is off
  PrefixCacheOptions prefix_cache;

  Status Validate() const;
  int64_t num_state_slots() const;
  int64_t prompt_limit() const;
};

// The mode a request runs in: batch-invariant engines never replay, exact hits need decoder replay.
CacheMode ResolveCacheMode(CacheMode asked, const SchedulerOptions& options);

// What became of drafts, by their place behind the row's first token and by the head's confidence. A draft behind a rejected one
// says nothing about its confidence and is counted nowhere but in `num_verified`.
struct DraftStats {
  static constexpr size_t kPositions = 16;  // later ones count as the last
  static constexpr size_t kBins = 20;
  struct Bin {
    int64_t count = 0, num_accepted = 0;
    double confidence = 0;  // sum
  };
  std::array<int64_t, kPositions> num_verified{}, num_reached{}, num_accepted{};  // reached: all drafts before it were accepted
  std::array<Bin, kBins> by_confidence{};  // equal parts of [0, 1]

  void Add(size_t position, bool is_reached, bool is_accepted, float confidence);
};

struct SchedulerStats {
  int64_t num_added = 0, num_finished = 0, num_aborted = 0, num_preempted = 0, num_forked = 0;
  int64_t num_prefill_steps = 0, num_decode_steps = 0;
  int64_t num_prefill_tokens = 0;   // computed in prefill steps, replayed ones included
  int64_t num_replayed_tokens = 0;
  int64_t num_bound_tokens = 0;     // of sequences when they get caches: computed, found in the cache, again after preemption
  int64_t num_lookup_tokens = 0;    // those that were looked up in the cache
  int64_t num_cached_tokens = 0;    // those that were found there
  int64_t num_output_tokens = 0;
  int64_t num_verified_drafts = 0, num_accepted_drafts = 0;
  int64_t num_lookup_verified = 0, num_lookup_accepted = 0;  // of those, from repeated text
  int64_t num_draftless_steps = 0;  // decode steps while drafting was paused
  double confidence_error = 0;      // sum over verified drafts
  int64_t num_decode_rows = 0;      // sequences of processed decode steps
  DraftStats drafts;
  int64_t forward_ns = 0, sample_ns = 0, draft_ns = 0;  // of decode steps
  int64_t num_freed_partials = 0, num_demoted_forks = 0, num_block_copies = 0;
};

class Scheduler {
 public:
  // `options` are valid; `clock` outlives the scheduler.
  Scheduler(SchedulerOptions options, const Clock& clock);
  ~Scheduler();
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;

  void Add(SequenceSpec spec);
  // Ends a sequence wherever it is, forks that do not exist yet included. Its event comes at once, its tokens of steps in
  // flight are dropped. False if it is unknown or has ended.
  bool Abort(uint64_t id, FinishReason reason = FinishReason::kAbort);
  void SetSchedulable(uint64_t id, bool is_schedulable);

  // Plans the next step into `plan`; kNone when there is nothing to run now.
  StepKind Schedule(StepPlan& plan);
  // The parts of Schedule, for ranks that decide together: vote, choose, then plan. A planned prefill may be empty: if it
  // is on all ranks, the step has to become a decode step.
  StepVote Vote();
  bool PlanPrefill(StepPlan& plan);
  bool PlanDecode(StepPlan& plan);
  int64_t decode_step() const { return decode_step_; }
  // A prefill step of this rank's group that had no rows here.
  void SkipPrefill() { decode_step_ = 0; }

  void Process(const StepPlan& plan, const StepResult& result);
  // Moves the events since the last call to the end of `events`.
  void TakeEvents(std::vector<SequenceEvent>& events);

  // From the next step on at most that many drafts, with or without SchedulerOptions::varlen_verify. While nothing runs.
  void SetDrafting(int num_drafts, bool varlen_verify);
  // What decode steps cost, for varlen_verify; corrected by every step processed from here on.
  void SetDecodeCosts(DecodeCostModel costs) { costs_ = std::move(costs); }
  const DecodeCostModel& decode_costs() const { return costs_; }

  bool has_work() const { return !sequences_.empty(); }
  int64_t num_sequences() const { return static_cast<int64_t>(sequences_.size()); }
  int64_t num_waiting() const { return static_cast<int64_t>(waiting_.size()); }
  int64_t num_prompted() const { return static_cast<int64_t>(prompted_.size()); }
  int64_t num_running() const { return static_cast<int64_t>(running_.size()); }
  int64_t num_partial() const;  // waiting sequences whose prompt is computed in part
  const SchedulerOptions& options() const { return options_; }
  const SchedulerStats& stats() const { return stats_; }
  const BlockPool& blocks() const { return blocks_; }
  const BlockPool& slots() const { return slots_; }
  const PrefixCache& prefix_cache() const { return cache_; }
  // Tokens that a prefill step may have while sequences decode.
  int64_t DecodeGapTokens() const;

  // Recounts every owner of every block, slot and record; aborts the process on a difference.
  void CheckInvariants() const;

 private:
  struct WaitingOrder {
    bool operator()(const Sequence* a, const Sequence* b) const;
  };
  struct ArrivalOrder {
    bool operator()(const Sequence* a, const Sequence* b) const;
  };

  // Waiting queue.
  void Enqueue(Sequence& seq);
  void Dequeue(Sequence& seq);
  void PromoteStarved(int64_t now_ns);
  // The first sequence that prefill may start with; null if the queue is empty or blocked by an unschedulable one.
  Sequence* FindHead(int64_t now_ns);

  // Caches.
  int64_t NumBlocks(const Sequence& seq) const;
  // Prompt log probabilities are wanted and not delivered yet.
  static bool NeedsAllRows(const Sequence& seq) { return seq.spec.needs_all_rows && !seq.has_reported_first; }
  PrefixHit FindPrefix(Sequence& seq);
  // Blocks and a slot for the whole prompt: the hit's blocks first. There is room for them.
  void Bind(Sequence& seq, const PrefixHit& hit, StepPlan& plan);
  void ReleaseCaches(Sequence& seq);
  void GrowTable(Sequence& seq, int64_t num_blocks, StepPlan& plan);
  void AddTableOp(const Sequence& seq, int64_t first, StepPlan& plan) const;
  // Index of the table block that the next decode row writes, if it has other owners too; else -1. Only the first one it
  // writes can have: blocks behind it are new.
  int64_t SharedWriteBlock(const Sequence& seq) const;
  void CopyBlockOnWrite(Sequence& seq, int64_t index, StepPlan& plan);
  void PublishBlocks(Sequence& seq, int64_t end);
  void PlanSaves(Sequence& seq, int64_t begin, int64_t end, bool is_decode, StepPlan& plan);
  void ProcessSave(const StepPlan& plan, const StateSave& save);

  // Planning.
  void BeginPlan(StepPlan& plan);
  bool EndPlan(StepPlan& plan);
  StepRow& AddRow(Sequence& seq, int64_t num_tokens, StepPlan& plan);
  // Tokens of the next chunk; 0 = none fits. `is_cut` if the budget ends it before the prompt does.
  int64_t ChunkLength(Sequence& seq, int64_t used, int64_t budget, bool& is_cut) const;
  // Drafts behind the rows of a step that is not a decode step.
  int NumDraftsNow() const { return options_.varlen_verify && draft_pause_.is_paused() ? 0 : draft_limit_; }
  // Rows of every sequence in scheduled_ (verify_lengths_), and whether the step drafts.
  void ChooseVerifyLengths(StepPlan& plan);
  bool AdmitFork(Sequence& seq, StepPlan& plan);
  void AdmitPrompted(StepPlan& plan);
  int64_t BlocksWanted(const Sequence& seq) const;
  // Frees blocks for order_[i]; preempts from `front` up. False: it was preempted itself.
  bool MakeRoom(int64_t count, size_t i, size_t& front);
  bool FreeLastPartial();
  bool DemoteLastFork();
  void Preempt(Sequence& seq);

  // Results and ends.
  void ProcessRow(const StepPlan& plan, const StepResult& result, size_t i);
  void ForkChildren(Sequence& parent);
  // Pushes the event: `event` with the reason, or one without a token.
  void Finish(Sequence& seq, FinishReason reason, SequenceEvent* event = nullptr);
  void Collect(Sequence& seq);
  void SweepRunning();
  FinishReason CheckStop(const Sequence& seq, int32_t token, bool& is_stop_token) const;

  SchedulerOptions options_;
  const Clock& clock_;
  ImageTokens image_tokens_;
  BlockPool blocks_;
  BlockPool slots_;
  PrefixCache cache_;

  std::unordered_map<uint64_t, std::unique_ptr<Sequence>> sequences_;
  std::unordered_map<uint64_t, Sequence*> unborn_forks_;  // child id -> parent
  std::set<Sequence*, WaitingOrder> waiting_;
  std::set<Sequence*, ArrivalOrder> waiting_by_arrival_;  // not promoted ones
  std::deque<Sequence*> prompted_;
  std::vector<Sequence*> running_;
  bool has_finished_running_ = false;
  std::vector<std::unique_ptr<Sequence>> graveyard_;  // finished and collected, destroyed at a safe point

  int64_t decode_step_ = 0;
  uint64_t num_plans_ = 0;
  bool has_prefill_in_flight_ = false;
  int num_steps_in_flight_ = 0;
  int64_t num_saves_in_flight_ = 0;
  std::vector<SlotOp> pending_ops_;  // in front of the next plan: snapshots of forked states
  std::vector<double> prefill_ms_per_token_;  // of the last prefill steps, a ring
  size_t next_prefill_sample_ = 0;
  std::vector<SequenceEvent> events_;
  SchedulerStats stats_;
  DecodeCostModel costs_;
  VerifyPlanner verify_planner_;
  DraftPause draft_pause_;
  MeanRates mean_rates_;
  int draft_limit_ = 0;  // of options_.num_drafts
  float lookup_min_rate_ = 0.5f, head_tokens_ = 0;  // of the newest decode step

  // Scratch.
  std::vector<VerifyCandidate> verify_candidates_;
  std::vector<int32_t> verify_lengths_;
  std::vector<double> step_rates_;
  std::vector<int32_t> hit_blocks_;
  std::vector<Sequence*> order_, scheduled_;
};

}  // namespace deepinfer::engine
