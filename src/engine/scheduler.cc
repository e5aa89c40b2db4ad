// SPDX-License-Identifier: Apache-2.0
#include "engine/scheduler.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include <fmt/format.h>

#include "core/check.h"

namespace deepinfer::engine {
namespace {

// Above this part of the cache in use new prompts wait, so that running sequences can grow.
constexpr double kPrefillWatermark = 0.9;

}  // namespace

Status SchedulerOptions::Validate() const {
  const int64_t rows = int64_t{max_num_seqs} * (1 + num_drafts);
  if (max_model_len < 1) return InvalidArgument(fmt::format("max_model_len is {} but must be at least 1", max_model_len), "max_model_len");
  if (max_num_seqs < 1) return InvalidArgument(fmt::format("max_num_seqs is {} but must be at least 1", max_num_seqs), "max_num_seqs");
  if (num_drafts < 0 || 2 * (num_drafts + 1) + num_drafts > kTokensPerBlock)
    return InvalidArgument(fmt::format("{} drafts do not fit into a step; at most 42 are possible", num_drafts), "num_drafts");
  if (max_num_batched_tokens < rows || max_num_batched_tokens < kTokensPerBlock)
    return InvalidArgument(fmt::format("max_num_batched_tokens is {} but {} sequences with {} drafts need at least {}", max_num_batched_tokens,
                                       max_num_seqs, num_drafts, std::max(rows, kTokensPerBlock)),
                           "max_num_batched_tokens");
  if (!chunked_prefill && max_num_batched_tokens < max_model_len)
    return InvalidArgument(fmt::format("max_num_batched_tokens is {} but without chunked prefill it must be at least max_model_len {}",
                                       max_num_batched_tokens, max_model_len),
                           "max_num_batched_tokens");
  if (max_sum_prefill_len < prompt_limit())
    return InvalidArgument(fmt::format("max_sum_prefill_len is {} but must be at least {}", max_sum_prefill_len, prompt_limit()),
                           "max_sum_prefill_len");
  if (num_blocks < 2) return InvalidArgument(fmt::format("num_blocks is {} but must be at least 2", num_blocks), "num_blocks");
  if (num_state_slots() < max_num_seqs + 1)
    return InvalidArgument(fmt::format("a state slot ratio of {} leaves fewer slots than {} sequences; use at least 1", state_slots_ratio, max_num_seqs),
                           "state_slots_ratio");
  if (max_decode_gap_ms < 0) return InvalidArgument(fmt::format("max_decode_gap_ms is {} but must not be negative", max_decode_gap_ms), "max_decode_gap_ms");
  if (alternation.attempt_interval < 0 || alternation.any_attempt_interval < 1 || alternation.decode_steps_per_prefill < 0)
    return InvalidArgument("prefill attempt intervals must be at least 1", "prefill_attempt_interval");
  if (prefix_cache.replay_tokens < 2 || prefix_cache.replay_tokens % 2 != 0)
    return InvalidArgument(fmt::format("kv.replay_tokens is {} but must be even and positive", prefix_cache.replay_tokens), "kv.replay_tokens");
  if (prefix_cache.state_every_blocks < 1)
    return InvalidArgument(fmt::format("kv.state_every_blocks is {} but must be at least 1", prefix_cache.state_every_blocks), "kv.state_every_blocks");
  return Status::Ok();
}

int64_t SchedulerOptions::num_state_slots() const { return static_cast<int64_t>(std::floor(max_num_seqs * state_slots_ratio)) + 1; }

int64_t SchedulerOptions::prompt_limit() const {
  return chunked_prefill ? max_model_len : std::min(max_model_len, max_num_batched_tokens);
}

CacheMode ResolveCacheMode(CacheMode asked, const SchedulerOptions& options) {
  CacheMode mode = asked;
  if (mode == CacheMode::kReplay && options.is_batch_invariant)
    mode = options.prefix_cache.num_state_records > 0 ? CacheMode::kExact : CacheMode::kOff;
  if (mode == CacheMode::kExact && options.decoder_keep == 0) mode = CacheMode::kOff;
  return mode;
}

bool Scheduler::WaitingOrder::operator()(const Sequence* a, const Sequence* b) const {
  if (a->owns_blocks() != b->owns_blocks()) return a->owns_blocks();
  if (a->is_promoted != b->is_promoted) return a->is_promoted;
  if (a->spec.priority != b->spec.priority) return a->spec.priority < b->spec.priority;
  if (a->was_preempted != b->was_preempted) return a->was_preempted;
  if (a->spec.arrival_ns != b->spec.arrival_ns) return a->spec.arrival_ns < b->spec.arrival_ns;
  return a->id < b->id;
}

bool Scheduler::ArrivalOrder::operator()(const Sequence* a, const Sequence* b) const {
  return a->waiting_since_ns != b->waiting_since_ns ? a->waiting_since_ns < b->waiting_since_ns : a->id < b->id;
}

Scheduler::Scheduler(SchedulerOptions options, const Clock& clock)
    : options_(std::move(options)),
      clock_(clock),
      image_tokens_(options_.vocab_size > 0 ? ImageTokens::ForVocab(options_.vocab_size) : ImageTokens()),
      blocks_(static_cast<int32_t>(options_.num_blocks)),
      slots_(static_cast<int32_t>(options_.num_state_slots())),
      cache_(blocks_, options_.prefix_cache),
      mean_rates_(static_cast<size_t>(options_.num_drafts)) {
  options_.alternation.max_num_seqs = options_.max_num_seqs;
  draft_limit_ = options_.num_drafts;
}

Scheduler::~Scheduler() = default;

// ---- arrivals, the waiting queue ----------------------------------------------------------------------------------------

void Scheduler::Add(SequenceSpec spec) {
  DI_CHECK(!spec.tokens.empty()) << "sequence " << spec.id << " has no tokens";
  DI_CHECK(sequences_.count(spec.id) == 0 && unborn_forks_.count(spec.id) == 0) << "sequence id " << spec.id << " is taken";
  auto owned = std::make_unique<Sequence>();
  Sequence& seq = *owned;
  seq.id = spec.id;
  seq.tokens = std::move(spec.tokens);
  seq.prompt_len = seq.length();
  seq.cache_mode = ResolveCacheMode(spec.cache_mode.value_or(options_.cache_mode), options_);
  if (options_.decoder_keep > 0) seq.decoder_floor = std::max<int64_t>(0, seq.prompt_len - options_.decoder_keep);
  seq.spec = std::move(spec);
  seq.waiting_since_ns = seq.spec.arrival_ns;
  for (const uint64_t id : seq.spec.fork_ids) {
    DI_CHECK(sequences_.count(id) == 0 && unborn_forks_.emplace(id, &seq).second) << "sequence id " << id << " is taken";
  }
  stats_.num_added += 1 + static_cast<int64_t>(seq.spec.fork_ids.size());
  sequences_.emplace(seq.id, std::move(owned));
  Enqueue(seq);
}

void Scheduler::Enqueue(Sequence& seq) {
  DI_CHECK(!seq.is_queued) << "sequence " << seq.id << " waits twice";
  seq.status = SequenceStatus::kWaiting;
  seq.is_queued = true;
  waiting_.insert(&seq);
  if (!seq.was_promoted) waiting_by_arrival_.insert(&seq);
}

void Scheduler::Dequeue(Sequence& seq) {
  DI_CHECK(seq.is_queued && waiting_.erase(&seq) == 1) << "sequence " << seq.id << " does not wait";
  if (!seq.was_promoted) waiting_by_arrival_.erase(&seq);
  seq.is_queued = false;
}

void Scheduler::PromoteStarved(int64_t now_ns) {
  while (!waiting_by_arrival_.empty()) {
    Sequence& seq = **waiting_by_arrival_.begin();
    if (now_ns - seq.waiting_since_ns <= options_.starvation_ns) return;
    Dequeue(seq);
    seq.is_promoted = seq.was_promoted = true;
    Enqueue(seq);
  }
}

Sequence* Scheduler::FindHead(int64_t now_ns) {
  for (Sequence* seq : waiting_) {
    if (seq->spec.is_schedulable) return seq;
    if (seq->skipped_since_ns < 0) seq->skipped_since_ns = now_ns;
    if (now_ns - seq->skipped_since_ns > options_.max_skip_ns) return nullptr;
  }
  return nullptr;
}

int64_t Scheduler::num_partial() const {
  // They stand in front.
  int64_t count = 0;
  for (auto it = waiting_.begin(); it != waiting_.end() && (*it)->owns_blocks(); ++it) ++count;
  return count;
}

void Scheduler::SetSchedulable(uint64_t id, bool is_schedulable) {
  const auto it = sequences_.find(id);
  if (it != sequences_.end()) it->second->spec.is_schedulable = is_schedulable;
}

// ---- planning -------------------------------------------------------------------------------------------------------------

StepKind Scheduler::Schedule(StepPlan& plan) {
  const StepVote vote = Vote();
  if (ShouldPrefill(options_.alternation, decode_step_, {&vote, 1}) && PlanPrefill(plan)) return plan.kind;
  return PlanDecode(plan) ? plan.kind : StepKind::kNone;
}

StepVote Scheduler::Vote() {
  DI_CHECK(!has_prefill_in_flight_) << "a prefill step has to be processed before the next step is planned";
  SweepRunning();
  const int64_t now_ns = clock_.NowNs();
  PromoteStarved(now_ns);
  StepVote vote;
  vote.num_running = num_running() + num_prompted();
  vote.num_free_seqs = options_.max_num_seqs - num_running();
  const Sequence* head = FindHead(now_ns);
  if (head == nullptr) return vote;
  const double used = static_cast<double>(blocks_.num_used()) / static_cast<double>(blocks_.num_usable());
  vote.wants_prefill = used <= kPrefillWatermark || head->owns_blocks() || vote.num_running == 0;
  vote.oldest_wait_ns = now_ns - head->waiting_since_ns;
  if (!waiting_by_arrival_.empty())
    vote.oldest_wait_ns = std::max(vote.oldest_wait_ns, now_ns - (*waiting_by_arrival_.begin())->waiting_since_ns);
  return vote;
}

void Scheduler::BeginPlan(StepPlan& plan) {
  SweepRunning();
  plan.Clear();
  plan.ops.insert(plan.ops.end(), pending_ops_.begin(), pending_ops_.end());
}

bool Scheduler::EndPlan(StepPlan& plan) {
  if (plan.rows.empty()) {
    // Nobody needs the operations: what was admitted in this call has been given up again.
    plan.Clear();
    return false;
  }
  pending_ops_.clear();
  if (plan.kind == StepKind::kPrefill) plan.num_drafts = NumDraftsNow();
  plan.redistributes &= options_.varlen_verify && costs_.has_curve();
  if (options_.prompt_lookup && draft_limit_ > 0) {
    plan.lookup_min_rate = lookup_min_rate_;
    plan.head_tokens = plan.num_drafts > 0 ? head_tokens_ : 0;
  }
  plan.number = ++num_plans_;
  ++num_steps_in_flight_;
  return true;
}

StepRow& Scheduler::AddRow(Sequence& seq, int64_t num_tokens, StepPlan& plan) {
  StepRow& row = plan.rows.emplace_back();
  row.sequence = &seq;
  row.sequence_id = seq.id;
  row.user = seq.spec.user.get();
  row.generation = seq.generation;
  row.state_slot = seq.state_slot;
  row.start = seq.num_cached + seq.total_inflight;
  row.num_tokens = static_cast<int32_t>(num_tokens);
  row.previous_row = seq.total_inflight > 0 ? seq.last_row : -1;
  row.needs_all_rows = NeedsAllRows(seq);
  row.write_floor = seq.write_floor;
  row.ids_begin = static_cast<int64_t>(plan.ids.size());
  seq.last_row = static_cast<int32_t>(plan.rows.size()) - 1;
  seq.total_inflight += options_.num_drafts + 1;
  seq.last_inflight = options_.num_drafts + 1;
  ++seq.steps_in_flight;
  plan.num_tokens += num_tokens;
  return row;
}

int64_t Scheduler::DecodeGapTokens() const {
  if (options_.max_decode_gap_ms == 0 || prefill_ms_per_token_.empty()) return options_.max_num_batched_tokens;
  std::vector<double> sorted = prefill_ms_per_token_;
  std::sort(sorted.begin(), sorted.end());
  const double median = sorted[sorted.size() / 2];
  const double tokens = static_cast<double>(options_.max_decode_gap_ms) / std::max(median, 1e-9);
  if (tokens >= static_cast<double>(options_.max_num_batched_tokens)) return options_.max_num_batched_tokens;
  return std::max(static_cast<int64_t>(tokens), kTokensPerBlock);
}

int64_t Scheduler::ChunkLength(Sequence& seq, int64_t used, int64_t budget, bool& is_cut) const {
  const int64_t remaining = seq.length() - seq.num_cached, room = budget - used;
  int64_t q = std::min(remaining, room);
  if (NeedsAllRows(seq) && options_.max_all_logits_rows > 0) q = std::min(q, options_.max_all_logits_rows);
  is_cut = q < remaining;
  const auto& marks = seq.spec.chunk_checkpoints;
  while (seq.next_checkpoint < marks.size() && marks[seq.next_checkpoint] <= seq.num_cached) ++seq.next_checkpoint;
  if (seq.next_checkpoint < marks.size() && seq.num_cached + q >= marks[seq.next_checkpoint]) {
    q = marks[seq.next_checkpoint] - seq.num_cached;
    is_cut = false;
  }
  // Image runs are never cut.
  int64_t end = seq.num_cached + q;
  if (q > 0 && IsInsideImage(seq.tokens, end, image_tokens_)) {
    int64_t run_end = end;
    while (run_end < seq.length() && seq.tokens[static_cast<size_t>(run_end)] == image_tokens_.pad) ++run_end;
    int64_t run_begin = end - 1;
    while (seq.tokens[static_cast<size_t>(run_begin)] == image_tokens_.pad) --run_begin;
    const bool can_grow = used == 0 && run_end - seq.num_cached <= options_.max_num_batched_tokens;
    // A run longer than every budget still has to be computed in one piece: alone.
    const bool must_grow = used == 0 && run_begin <= seq.num_cached;
    q = (can_grow || must_grow ? run_end : run_begin) - seq.num_cached;
    is_cut = seq.num_cached + q < seq.length();
  }
  return std::max<int64_t>(q, 0);
}

bool Scheduler::PlanPrefill(StepPlan& plan) {
  DI_CHECK(!has_prefill_in_flight_) << "a prefill step has to be processed before the next step is planned";
  BeginPlan(plan);
  plan.kind = StepKind::kPrefill;
  const int64_t now_ns = clock_.NowNs();
  int64_t budget = options_.max_num_batched_tokens;
  // A prompt that may not be cut is not held back by the gap either: it would wait for ever.
  if (options_.chunked_prefill && num_running() + num_prompted() > 0) budget = std::min(budget, DecodeGapTokens());
  int64_t num_complete = 0, sum_len = 0;
  while (Sequence* head = FindHead(now_ns)) {
    Sequence& seq = *head;
    PrefixHit hit;
    if (!seq.owns_blocks()) {
      const int64_t num_blocks = NumBlocks(seq);
      if (seq.length() > options_.prompt_limit() || blocks_.CanAllocate(num_blocks) == BlockPool::Fit::kNever) {
        // A sequence that has produced tokens was taken off the device and can never come back.
        Finish(seq, seq.output_len() > 0 ? FinishReason::kInsufficientResource : FinishReason::kPromptLengthExceeded);
        continue;
      }
      hit = FindPrefix(seq);
      int64_t need = num_blocks - static_cast<int64_t>(hit_blocks_.size());
      for (const int32_t block : hit_blocks_) need += blocks_.ref_count(block) == 0 ? 1 : 0;
      if (need > blocks_.num_free() || slots_.num_free() == 0) break;
    }
    if (num_running() + num_complete >= options_.max_num_seqs) break;
    if (sum_len > 0 && sum_len + seq.length() > options_.max_sum_prefill_len) break;
    const bool is_new = !seq.owns_blocks();
    if (is_new) seq.num_cached = hit.start;  // undone below if no chunk fits
    bool is_cut = false;
    const int64_t q = ChunkLength(seq, plan.num_tokens, budget, is_cut);
    const bool is_chunk = q < seq.length() - seq.num_cached;
    const bool is_too_small = is_chunk && !plan.rows.empty() && q < std::max<int64_t>(options_.lookahead_tokens, 1);
    if (q < 1 || is_too_small || (is_cut && !options_.chunked_prefill && !NeedsAllRows(seq))) {
      if (is_new) {
        seq.num_cached = 0;
        seq.next_checkpoint = 0;
      }
      break;
    }
    Dequeue(seq);
    if (is_new) Bind(seq, hit, plan);
    if (RequestProbe* const probe = seq.spec.probe.get(); probe != nullptr && probe->scheduled_ns.load(std::memory_order_relaxed) == 0) {
      probe->scheduled_ns.store(now_ns, std::memory_order_relaxed);
    }
    sum_len += seq.length();
    StepRow& row = AddRow(seq, q, plan);
    row.start = seq.num_cached;
    row.previous_row = -1;
    row.num_ids = static_cast<int32_t>(q);
    row.is_last_chunk = !is_chunk;
    if (!is_chunk) seq.num_drafts = NumDraftsNow();
    plan.ids.insert(plan.ids.end(), seq.tokens.begin() + seq.num_cached, seq.tokens.begin() + seq.num_cached + q);
    if (!is_chunk && seq.output_len() > 0) {
      row.outputs_begin = static_cast<int64_t>(plan.ids.size());
      row.num_outputs = static_cast<int32_t>(seq.output_len());
      plan.ids.insert(plan.ids.end(), seq.tokens.begin() + seq.prompt_len, seq.tokens.end());
    }
    PlanSaves(seq, std::max(seq.num_cached, seq.write_floor), seq.num_cached + q, false, plan);
    if (is_chunk) break;
    seq.status = SequenceStatus::kRunning;
    ++num_complete;
  }
  if (!EndPlan(plan)) return false;
  decode_step_ = 0;
  has_prefill_in_flight_ = true;
  ++stats_.num_prefill_steps;
  stats_.num_prefill_tokens += plan.num_tokens;
  return true;
}

bool Scheduler::AdmitFork(Sequence& seq, StepPlan& plan) {
  if (slots_.ref_count(seq.snapshot_slot) == 1) {
    seq.state_slot = seq.snapshot_slot;  // the last one to need it
  } else {
    seq.state_slot = slots_.Allocate();
    if (seq.state_slot == 0) return false;
    SlotOp op;
    op.kind = SlotOp::Kind::kCopyState;
    op.from = seq.snapshot_slot;
    op.to = seq.state_slot;
    op.count = seq.num_cached;
    plan.ops.push_back(op);
    slots_.Release(seq.snapshot_slot);
  }
  seq.snapshot_slot = 0;
  AddTableOp(seq, 0, plan);
  return true;
}

void Scheduler::AdmitPrompted(StepPlan& plan) {
  while (!prompted_.empty() && num_running() < options_.max_num_seqs) {
    Sequence& seq = *prompted_.front();
    if (!AdmitFork(seq, plan)) {
      // Something that runs will give its slot back; otherwise forks have to make room for each other.
      if (num_running() > 0 || num_steps_in_flight_ > 0) return;
      DemoteLastFork();
      continue;
    }
    prompted_.pop_front();
    seq.status = SequenceStatus::kRunning;
    running_.push_back(&seq);
  }
}

int64_t Scheduler::BlocksWanted(const Sequence& seq) const {
  const int64_t growth = std::max<int64_t>(NumBlocks(seq) - static_cast<int64_t>(seq.table.size()), 0);
  return growth + (SharedWriteBlock(seq) >= 0 ? 1 : 0);
}

bool Scheduler::PlanDecode(StepPlan& plan) {
  DI_CHECK(!has_prefill_in_flight_) << "a prefill step has to be processed before the next step is planned";
  BeginPlan(plan);
  plan.kind = StepKind::kDecode;
  ++decode_step_;
  AdmitPrompted(plan);
  order_.clear();
  scheduled_.clear();
  const int64_t rows_per_step = options_.num_drafts + 1;
  int64_t wanted = 0;
  for (Sequence* seq : running_) {
    // Each step in flight adds at least one token: no step for a sequence that is certain to have ended by then.
    const int64_t least = seq->total_inflight / rows_per_step;
    if (seq->output_len() + least >= seq->spec.max_tokens || seq->length() + least > options_.max_model_len) continue;
    order_.push_back(seq);
    wanted += BlocksWanted(*seq);
  }
  if (wanted > blocks_.num_free()) {
    // Least urgent first. Rows are handed out from the other end.
    std::sort(order_.begin(), order_.end(), [](const Sequence* a, const Sequence* b) {
      if (a->spec.priority != b->spec.priority) return a->spec.priority > b->spec.priority;
      if (a->output_len() != b->output_len()) return a->output_len() > b->output_len();
      if (a->spec.arrival_ns != b->spec.arrival_ns) return a->spec.arrival_ns > b->spec.arrival_ns;
      return a->id > b->id;
    });
  }
  size_t front = 0;
  for (size_t i = order_.size(); i-- > front;) {
    Sequence& seq = *order_[i];
    // Blocks that rejected drafts left over.
    for (const int64_t n = NumBlocks(seq); static_cast<int64_t>(seq.table.size()) > n; seq.table.pop_back())
      blocks_.Release(seq.table.back());
    if (const int64_t count = BlocksWanted(seq); count > blocks_.num_free() && !MakeRoom(count, i, front)) break;
    if (const int64_t shared = SharedWriteBlock(seq); shared >= 0)
      CopyBlockOnWrite(seq, shared, plan);
    GrowTable(seq, NumBlocks(seq), plan);
    scheduled_.push_back(&seq);
  }
  // A strict total order: the order of a batch reaches the kernels.
  std::sort(scheduled_.begin(), scheduled_.end(), [](const Sequence* a, const Sequence* b) {
    if (a->length() != b->length()) return a->length() > b->length();
    if (a->spec.arrival_ns != b->spec.arrival_ns) return a->spec.arrival_ns < b->spec.arrival_ns;
    return a->id < b->id;
  });
  ChooseVerifyLengths(plan);
  for (size_t i = 0; i < scheduled_.size(); ++i) {
    Sequence* const seq = scheduled_[i];
    StepRow& row = AddRow(*seq, verify_lengths_[i], plan);
    seq->num_drafts = plan.Drafts(i) ? plan.num_drafts : 0;
    ++seq->num_decodes_planned;
    plan.redistributes |= row.previous_row >= 0;
    if (row.previous_row < 0) {
      row.num_ids = 1;
      plan.ids.push_back(seq->tokens[static_cast<size_t>(row.start)]);
    }
    PlanSaves(*seq, row.start, row.start + row.num_tokens, true, plan);
  }
  if (!EndPlan(plan)) return false;
  ++stats_.num_decode_steps;
  return true;
}

void Scheduler::SetDrafting(int num_drafts, bool varlen_verify) {
  DI_CHECK(num_steps_in_flight_ == 0 && sequences_.empty()) << "sequences are running";
  DI_CHECK(num_drafts >= 0 && num_drafts <= options_.num_drafts) << num_drafts;
  draft_limit_ = num_drafts;
  options_.varlen_verify = varlen_verify;
}

void Scheduler::ChooseVerifyLengths(StepPlan& plan) {
  verify_lengths_.clear();
  for (const Sequence* seq : scheduled_) verify_lengths_.push_back(seq->num_drafts + 1);
  plan.num_drafts = draft_limit_;
  if (draft_limit_ == 0 || !options_.varlen_verify || !costs_.has_curve() || scheduled_.empty()) return;
  verify_candidates_.clear();
  for (const Sequence* seq : scheduled_) {
    // How long a proposal may be must not depend on its own confidences: those of the one before decide. While a step is in
    // flight that is the newest one the host knows.
    const bool is_paired = seq->num_decodes_planned == seq->num_decodes_processed;
    const auto of = [&](const std::vector<float>& rates) {
      return (rates.empty() ? mean_rates_.rates() : std::span<const float>(rates)).first(static_cast<size_t>(seq->num_drafts));
    };
    verify_candidates_.push_back({of(is_paired ? seq->previous_rates : seq->rates), of(seq->rates)});
  }
  const VerifyChoice choice = verify_planner_.ChooseNumRows(verify_candidates_, costs_);
  verify_planner_.DistributeRows(verify_candidates_, choice.num_rows, verify_lengths_);
  const int64_t n = static_cast<int64_t>(scheduled_.size());
  if (choice.step_ms <= 0) return;
  // Whether to draft is decided before anyone knows the drafts: by what they were worth lately.
  const std::span<const float> rates = mean_rates_.rates().first(static_cast<size_t>(draft_limit_));
  verify_candidates_.assign(scheduled_.size(), {rates, rates});
  const VerifyChoice usual = verify_planner_.ChooseNumRows(verify_candidates_, costs_);
  const double rate_on = usual.expected_tokens / (usual.step_ms + costs_.DraftMs(n));
  const double rate_off = static_cast<double>(n) / (costs_.ForwardMs(costs_.Bucket(n)) + costs_.SamplerMs(n));
  head_tokens_ = static_cast<float>(usual.expected_tokens / static_cast<double>(n) - 1);
  // A row more is worth its time if what it is expected to give is more than the step gives in that time.
  const int64_t bucket = costs_.Bucket(n), wider = costs_.Bucket(n + draft_limit_);
  if (wider > bucket) {
    const double row_ms = (costs_.ForwardMs(wider) - costs_.ForwardMs(bucket)) / static_cast<double>(wider - bucket);
    lookup_min_rate_ = static_cast<float>(std::clamp(row_ms * std::max(rate_off, draft_pause_.is_paused() ? 0.0 : rate_on), 0.05, 1.5));
  }
  if (!draft_pause_.Update(rate_on, rate_off)) {
    plan.num_drafts = 0;
    ++stats_.num_draftless_steps;
  } else if (draft_pause_.is_paused()) {
    plan.num_probe_rows = static_cast<int32_t>(std::clamp<int64_t>(n / 16, 1, 4));
    ++stats_.num_draftless_steps;
  }
}

bool Scheduler::MakeRoom(int64_t count, size_t i, size_t& front) {
  while (count > blocks_.num_free()) {
    if (FreeLastPartial() || DemoteLastFork()) continue;
    Sequence& victim = *order_[front];
    Preempt(victim);
    if (front++ == i) return false;
  }
  return true;
}

bool Scheduler::FreeLastPartial() {
  Sequence* last = nullptr;
  for (Sequence* seq : waiting_) {
    if (!seq->owns_blocks()) break;
    last = seq;
  }
  if (last == nullptr) return false;
  Dequeue(*last);
  ReleaseCaches(*last);
  Enqueue(*last);
  ++stats_.num_freed_partials;
  return true;
}

bool Scheduler::DemoteLastFork() {
  if (prompted_.empty()) return false;
  Sequence& seq = *prompted_.back();
  prompted_.pop_back();
  ReleaseCaches(seq);
  Enqueue(seq);
  ++stats_.num_demoted_forks;
  return true;
}

void Scheduler::Preempt(Sequence& seq) {
  ++stats_.num_preempted;
  if (RequestProbe* const probe = seq.spec.probe.get()) {
    probe->preempted_ns.store(clock_.NowNs(), std::memory_order_relaxed);
    probe->num_preempted.fetch_add(1, std::memory_order_relaxed);
  }
  running_.erase(std::find(running_.begin(), running_.end(), &seq));
  // Steps in flight may still write the blocks, but the device does so before anything that is planned from here on.
  ReleaseCaches(seq);
  if (options_.stop_preempted) {
    Finish(seq, FinishReason::kInsufficientResource);
    return;
  }
  seq.was_preempted = true;
  seq.is_promoted = false;
  seq.waiting_since_ns = clock_.NowNs();
  Enqueue(seq);
}

}  // namespace deepinfer::engine
