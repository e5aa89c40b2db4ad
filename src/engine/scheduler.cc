// SPDX-License-Identifier: Apache-2.0
#include "engine/scheduler.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include <fmt/format.h>

#include "core/check.h"

namespace deepinfer::engine {
namespace {

constexpr size_t kNumPrefillSamples = 9;
// Above this part of the cache in use new prompts wait, so that running sequences can grow.
constexpr double kPrefillWatermark = 0.9;

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

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
      cache_(blocks_, options_.prefix_cache) {
  options_.alternation.max_num_seqs = options_.max_num_seqs;
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

void Scheduler::SetSchedulable(uint64_t id, bool is_schedulable) {
  const auto it = sequences_.find(id);
  if (it != sequences_.end()) it->second->spec.is_schedulable = is_schedulable;
}

// ---- caches ---------------------------------------------------------------------------------------------------------------

int64_t Scheduler::NumBlocks(const Sequence& seq) const {
  // With drafts, a step in flight or planned may write that many positions more.
  const int64_t drafts = seq.output_len() > 0 || seq.total_inflight > 0 ? options_.num_drafts : 0;
  return CeilDiv(seq.length() + seq.total_inflight + drafts, kTokensPerBlock);
}

PrefixHit Scheduler::FindPrefix(Sequence& seq) {
  hit_blocks_.clear();
  if (seq.cache_mode == CacheMode::kOff || NeedsAllRows(seq)) return {};
  ExtendKeys(seq.spec.cache_root, seq.tokens, seq.spec.images, (seq.length() - 1) / kTokensPerBlock, seq.keys);
  return cache_.Lookup(seq.tokens, seq.keys, seq.cache_mode, seq.decoder_floor, image_tokens_, hit_blocks_);
}

void Scheduler::AddTableOp(const Sequence& seq, int64_t first, StepPlan& plan) const {
  SlotOp op;
  op.kind = SlotOp::Kind::kTable;
  op.to = seq.state_slot;
  op.first = first;
  op.begin = static_cast<int64_t>(plan.blocks.size());
  op.count = static_cast<int64_t>(seq.table.size()) - first;
  plan.blocks.insert(plan.blocks.end(), seq.table.begin() + first, seq.table.end());
  plan.ops.push_back(op);
}

void Scheduler::GrowTable(Sequence& seq, int64_t num_blocks, StepPlan& plan) {
  const int64_t first = static_cast<int64_t>(seq.table.size());
  if (num_blocks <= first) return;
  while (static_cast<int64_t>(seq.table.size()) < num_blocks) {
    const int32_t block = blocks_.Allocate();
    DI_CHECK(block != 0) << "no block for sequence " << seq.id << ", " << num_blocks << " wanted";
    seq.table.push_back(block);
  }
  AddTableOp(seq, first, plan);
}

void Scheduler::Bind(Sequence& seq, const PrefixHit& hit, StepPlan& plan) {
  seq.state_slot = slots_.Allocate();
  DI_CHECK(seq.state_slot != 0) << "no state slot for sequence " << seq.id;
  seq.num_cached = hit.start;
  seq.valid_start = hit.valid_start;
  seq.write_floor = hit.num_tokens;
  seq.cached_tokens = hit.num_tokens;
  seq.num_published = hit.num_tokens / kTokensPerBlock;
  SlotOp op;
  op.kind = SlotOp::Kind::kBind;
  op.to = seq.state_slot;
  op.begin = static_cast<int64_t>(plan.ids.size());
  op.count = hit.start;
  op.valid_start = hit.valid_start;
  op.decoder_floor = seq.decoder_floor;
  plan.ids.insert(plan.ids.end(), seq.tokens.begin(), seq.tokens.begin() + hit.start);
  plan.ops.push_back(op);
  if (hit.state_record != 0) {
    SlotOp load;
    load.kind = SlotOp::Kind::kLoadState;
    load.from = hit.state_record;
    load.to = seq.state_slot;
    plan.ops.push_back(load);
    cache_.TouchRecord(seq.keys[static_cast<size_t>(seq.num_published - 1)]);
  }
  for (const int32_t block : hit_blocks_) {
    blocks_.Take(block);
    seq.table.push_back(block);
  }
  const int64_t num_blocks = NumBlocks(seq);
  while (static_cast<int64_t>(seq.table.size()) < num_blocks) {
    seq.table.push_back(blocks_.Allocate());
    DI_CHECK(seq.table.back() != 0) << "no block for sequence " << seq.id << ", " << num_blocks << " wanted";
  }
  AddTableOp(seq, 0, plan);
  // Checkpoints that the hit covers are passed.
  const auto& marks = seq.spec.chunk_checkpoints;
  while (seq.next_checkpoint < marks.size() && marks[seq.next_checkpoint] <= seq.num_cached) ++seq.next_checkpoint;
  stats_.num_cached_tokens += hit.num_tokens;
  stats_.num_replayed_tokens += hit.num_tokens - hit.start;
}

void Scheduler::ReleaseCaches(Sequence& seq) {
  blocks_.ReleaseTable(seq.table);
  if (seq.state_slot != 0) slots_.Release(seq.state_slot);
  if (seq.snapshot_slot != 0) slots_.Release(seq.snapshot_slot);
  seq.state_slot = seq.snapshot_slot = 0;
  seq.num_cached = seq.valid_start = seq.write_floor = 0;
  seq.num_published = 0;
  seq.decode_record = -1;
  seq.total_inflight = seq.last_inflight = 0;
  seq.next_checkpoint = 0;
  ++seq.generation;
}

int64_t Scheduler::SharedWriteBlock(const Sequence& seq) const {
  const int64_t start = seq.num_cached + seq.total_inflight, first_write = std::max(start, seq.write_floor);
  if (first_write > start + options_.num_drafts) return -1;
  const int64_t index = first_write / kTokensPerBlock;
  if (index >= static_cast<int64_t>(seq.table.size())) return -1;
  return blocks_.ref_count(seq.table[static_cast<size_t>(index)]) > 1 ? index : -1;
}

void Scheduler::CopyBlockOnWrite(Sequence& seq, int64_t index, StepPlan& plan) {
  int32_t& block = seq.table[static_cast<size_t>(index)];
  SlotOp copy;
  copy.kind = SlotOp::Kind::kCopyBlock;
  copy.from = block;
  copy.to = blocks_.Allocate();
  DI_CHECK(copy.to != 0) << "no block to copy block " << block << " of sequence " << seq.id;
  plan.ops.push_back(copy);
  blocks_.Release(block);
  block = copy.to;
  SlotOp table;
  table.kind = SlotOp::Kind::kTable;
  table.to = seq.state_slot;
  table.first = index;
  table.begin = static_cast<int64_t>(plan.blocks.size());
  table.count = 1;
  plan.blocks.push_back(block);
  plan.ops.push_back(table);
  ++stats_.num_block_copies;
}

void Scheduler::PublishBlocks(Sequence& seq, int64_t end) {
  if (seq.cache_mode == CacheMode::kOff) return;
  const int64_t num_full = end / kTokensPerBlock;
  if (num_full <= seq.num_published) return;
  ExtendKeys(seq.spec.cache_root, seq.tokens, seq.spec.images, num_full, seq.keys);
  for (int64_t i = seq.num_published; i < num_full; ++i)
    cache_.Publish(seq.keys[static_cast<size_t>(i)], seq.table[static_cast<size_t>(i)], seq.valid_start > 0);
  seq.num_published = num_full;
}

void Scheduler::PlanSaves(Sequence& seq, int64_t begin, int64_t end, bool is_decode, StepPlan& plan) {
  if (!cache_.keeps_states() || seq.cache_mode == CacheMode::kOff || seq.valid_start > 0) return;
  // With drafts the step's last position is not known here.
  if (is_decode && options_.num_drafts > 0) return;
  const int64_t exact_end = seq.decoder_floor / kTokensPerBlock;
  for (int64_t n = begin / kTokensPerBlock + 1; n * kTokensPerBlock <= end; ++n) {
    // While decoding the newest boundary is kept, since nobody knows where the answer ends.
    const bool is_on_grid = n % cache_.options().state_every_blocks == 0;
    if (!is_on_grid && n != exact_end && !is_decode) continue;
    if (!is_decode) {
      ExtendKeys(seq.spec.cache_root, seq.tokens, seq.spec.images, n, seq.keys);
      if (cache_.HasRecord(seq.keys[static_cast<size_t>(n - 1)])) {
        cache_.TouchRecord(seq.keys[static_cast<size_t>(n - 1)]);
        continue;
      }
    }
    const int32_t record = cache_.AllocateRecord();
    if (record == 0) return;
    plan.saves.push_back({static_cast<int32_t>(plan.rows.size()) - 1, n * kTokensPerBlock, record});
    ++num_saves_in_flight_;
  }
}

void Scheduler::ProcessSave(const StepPlan& plan, const StateSave& save) {
  const StepRow& row = plan.rows[static_cast<size_t>(save.row)];
  Sequence& seq = *row.sequence;
  --num_saves_in_flight_;
  // Rows of older generations are void; so is a row whose sequence ended before it (its tokens were not committed).
  if (row.generation != seq.generation || seq.num_cached < save.position) {
    cache_.FreeRecord(save.record);
    return;
  }
  const int64_t n = save.position / kTokensPerBlock;
  ExtendKeys(seq.spec.cache_root, seq.tokens, seq.spec.images, n, seq.keys);
  cache_.PublishRecord(seq.keys[static_cast<size_t>(n - 1)], save.record);
  if (plan.kind != StepKind::kDecode) return;
  if (seq.decode_record >= 0) cache_.DropRecord(seq.keys[static_cast<size_t>(seq.decode_record)]);
  seq.decode_record = n % cache_.options().state_every_blocks == 0 ? -1 : n - 1;
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
  if (num_running() + num_prompted() > 0) budget = std::min(budget, DecodeGapTokens());
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
    sum_len += seq.length();
    StepRow& row = AddRow(seq, q, plan);
    row.start = seq.num_cached;
    row.previous_row = -1;
    row.num_ids = static_cast<int32_t>(q);
    row.is_last_chunk = !is_chunk;
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
  for (Sequence* seq : scheduled_) {
    StepRow& row = AddRow(*seq, rows_per_step, plan);
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

// ---- results --------------------------------------------------------------------------------------------------------------

void Scheduler::Process(const StepPlan& plan, const StepResult& result) {
  DI_CHECK(num_steps_in_flight_ > 0 && plan.number == num_plans_ + 1 - static_cast<uint64_t>(num_steps_in_flight_))
      << "step " << plan.number << " is processed out of order";
  --num_steps_in_flight_;
  if (plan.kind == StepKind::kPrefill) {
    has_prefill_in_flight_ = false;
    if (result.duration_ns > 0 && plan.num_tokens > 0) {
      const double ms = static_cast<double>(result.duration_ns) * 1e-6 / static_cast<double>(plan.num_tokens);
      if (prefill_ms_per_token_.size() < kNumPrefillSamples) prefill_ms_per_token_.push_back(ms);
      prefill_ms_per_token_[next_prefill_sample_] = ms;
      next_prefill_sample_ = (next_prefill_sample_ + 1) % kNumPrefillSamples;
    }
  }
  for (size_t i = 0; i < plan.rows.size(); ++i) ProcessRow(plan, result, i);
  for (const StateSave& save : plan.saves) ProcessSave(plan, save);
  for (const StepRow& row : plan.rows) {
    Sequence& seq = *row.sequence;
    --seq.steps_in_flight;
    if (seq.is_finished() && seq.steps_in_flight == 0) Collect(seq);
  }
  SweepRunning();
}

void Scheduler::ProcessRow(const StepPlan& plan, const StepResult& result, size_t i) {
  const StepRow& row = plan.rows[i];
  Sequence& seq = *row.sequence;
  // Preempted or ended while the step was in flight.
  if (row.generation != seq.generation || seq.is_finished()) return;
  if (seq.total_inflight == seq.last_inflight) seq.last_inflight = 0;
  seq.total_inflight = seq.last_inflight;
  const bool is_prefill = plan.kind == StepKind::kPrefill;
  if (result.outcome[i] != RowOutcome::kOk) {
    Finish(seq, result.outcome[i] == RowOutcome::kInvalidLogits ? FinishReason::kInvalidLogits : FinishReason::kInternalError);
    return;
  }
  const int64_t cached_before = seq.num_cached;
  if (is_prefill) {
    seq.num_cached += row.num_tokens;
    PublishBlocks(seq, seq.num_cached);
    if (!row.is_last_chunk) {
      Enqueue(seq);
      return;
    }
    seq.is_promoted = false;
    seq.was_preempted = false;
    running_.push_back(&seq);
    if (!seq.spec.fork_ids.empty()) ForkChildren(seq);
  }
  const int64_t count = result.num_tokens[i];
  DI_CHECK(count >= 1 && count <= (is_prefill ? 1 : row.num_tokens)) << count << " tokens of row " << i << " of step " << plan.number;
  for (int64_t j = 0; j < count; ++j) {
    const int32_t token = result.tokens[i * static_cast<size_t>(result.stride) + static_cast<size_t>(j)];
    seq.tokens.push_back(token);
    ++stats_.num_output_tokens;
    if (!is_prefill) seq.num_cached = cached_before + j + 1;
    SequenceEvent event;
    event.id = seq.id;
    event.user = seq.spec.user;
    event.token = token;
    event.row = static_cast<int32_t>(i);
    event.token_in_row = static_cast<int32_t>(j);
    event.num_output = seq.output_len();
    if (!seq.has_reported_first) event.cached_tokens = seq.cached_tokens;
    seq.has_reported_first = true;
    const FinishReason reason = CheckStop(seq, token, event.is_stop_token);
    if (reason == FinishReason::kNone) {
      events_.push_back(std::move(event));
      continue;
    }
    // Blocks of the accepted tokens are complete; later positions may hold rejected or wasted ones.
    PublishBlocks(seq, seq.num_cached);
    Finish(seq, reason, &event);
    return;
  }
  DI_CHECK(seq.num_cached == seq.length() - 1) << "sequence " << seq.id << " has " << seq.num_cached << " cached of " << seq.length();
  if (!is_prefill) PublishBlocks(seq, seq.length() - options_.num_drafts - 1);
}

FinishReason Scheduler::CheckStop(const Sequence& seq, int32_t token, bool& is_stop_token) const {
  const auto contains = [token](const std::vector<int32_t>& ids) { return std::find(ids.begin(), ids.end(), token) != ids.end(); };
  if ((!seq.spec.ignore_eos && contains(options_.end_token_ids)) || contains(seq.spec.stop_token_ids)) {
    is_stop_token = true;
    return FinishReason::kStop;
  }
  if (seq.length() > options_.max_model_len || seq.output_len() >= seq.spec.max_tokens) return FinishReason::kLength;
  return FinishReason::kNone;
}

void Scheduler::ForkChildren(Sequence& parent) {
  int32_t snapshot = 0;
  std::vector<uint64_t> ids;
  ids.swap(parent.spec.fork_ids);
  for (const uint64_t id : ids) {
    unborn_forks_.erase(id);
    auto owned = std::make_unique<Sequence>();
    Sequence& child = *owned;
    child.spec = parent.spec;
    child.spec.id = child.id = id;
    child.spec.needs_all_rows = false;  // the parent's are the same
    child.tokens.assign(parent.tokens.begin(), parent.tokens.begin() + parent.prompt_len);
    child.prompt_len = parent.prompt_len;
    child.cache_mode = parent.cache_mode;
    child.decoder_floor = parent.decoder_floor;
    child.keys = parent.keys;
    child.waiting_since_ns = clock_.NowNs();
    sequences_.emplace(id, std::move(owned));
    ++stats_.num_forked;
    if (snapshot == 0 && (snapshot = slots_.Allocate()) != 0) {
      SlotOp op;
      op.kind = SlotOp::Kind::kCopyState;
      op.from = parent.state_slot;
      op.to = snapshot;
      // The sibling forwards the last prompt token itself, to sample with its own seed.
      op.count = parent.prompt_len - 1;
      pending_ops_.push_back(op);
    } else if (snapshot != 0) {
      slots_.Pin(snapshot);
    }
    if (snapshot == 0) {
      Enqueue(child);
      continue;
    }
    child.snapshot_slot = snapshot;
    child.num_cached = parent.prompt_len - 1;
    child.valid_start = parent.valid_start;
    child.write_floor = parent.prompt_len;
    child.cached_tokens = parent.cached_tokens;
    child.num_published = parent.num_published;
    child.table = parent.table;
    for (const int32_t block : child.table) blocks_.Pin(block);
    child.status = SequenceStatus::kPrompted;
    prompted_.push_back(&child);
  }
}

// ---- ends -------------------------------------------------------------------------------------------------------------------

bool Scheduler::Abort(uint64_t id, FinishReason reason) {
  if (const auto unborn = unborn_forks_.find(id); unborn != unborn_forks_.end()) {
    Sequence& parent = *unborn->second;
    parent.spec.fork_ids.erase(std::find(parent.spec.fork_ids.begin(), parent.spec.fork_ids.end(), id));
    unborn_forks_.erase(unborn);
    SequenceEvent event;
    event.id = id;
    event.user = parent.spec.user;
    event.finish_reason = reason;
    events_.push_back(std::move(event));
    ++stats_.num_finished;
    ++stats_.num_aborted;
    return true;
  }
  const auto it = sequences_.find(id);
  if (it == sequences_.end() || it->second->is_finished()) return false;
  ++stats_.num_aborted;
  Finish(*it->second, reason);
  SweepRunning();
  return true;
}

void Scheduler::Finish(Sequence& seq, FinishReason reason, SequenceEvent* event) {
  DI_CHECK(!seq.is_finished()) << "sequence " << seq.id << " ends twice";
  if (seq.is_queued) Dequeue(seq);
  if (seq.status == SequenceStatus::kPrompted) prompted_.erase(std::find(prompted_.begin(), prompted_.end(), &seq));
  seq.status = SequenceStatus::kFinished;
  seq.finish_reason = reason;
  has_finished_running_ = true;
  ++stats_.num_finished;
  SequenceEvent no_token;
  if (event == nullptr) {
    no_token.id = seq.id;
    no_token.user = seq.spec.user;
    no_token.num_output = seq.output_len();
    event = &no_token;
  }
  event->finish_reason = reason;
  events_.push_back(std::move(*event));
  // Siblings that do not exist yet end with it.
  while (!seq.spec.fork_ids.empty()) {
    const uint64_t id = seq.spec.fork_ids.front();
    Abort(id, reason);
    --stats_.num_aborted;
  }
  // Steps in flight hold rows of it: its blocks and slot stay until they have been processed.
  if (seq.steps_in_flight == 0) Collect(seq);
}

void Scheduler::Collect(Sequence& seq) {
  ReleaseCaches(seq);
  const auto it = sequences_.find(seq.id);
  DI_CHECK(it != sequences_.end()) << "sequence " << seq.id << " is collected twice";
  graveyard_.push_back(std::move(it->second));
  sequences_.erase(it);
}

void Scheduler::SweepRunning() {
  if (!has_finished_running_) return;
  has_finished_running_ = false;
  running_.erase(std::remove_if(running_.begin(), running_.end(), [](const Sequence* seq) { return seq->is_finished(); }),
                 running_.end());
  graveyard_.clear();
}

void Scheduler::TakeEvents(std::vector<SequenceEvent>& events) {
  events.insert(events.end(), std::make_move_iterator(events_.begin()), std::make_move_iterator(events_.end()));
  events_.clear();
}

void Scheduler::CheckInvariants() const {
  std::vector<int> block_refs(static_cast<size_t>(blocks_.num_usable()) + 1), slot_refs(static_cast<size_t>(slots_.num_usable()) + 1);
  std::vector<const Sequence*> slot_owner(slot_refs.size());
  for (const auto& [id, owned] : sequences_) {
    const Sequence& seq = *owned;
    for (const int32_t block : seq.table) ++block_refs[static_cast<size_t>(block)];
    if (seq.state_slot != 0) ++slot_refs[static_cast<size_t>(seq.state_slot)];
    if (seq.snapshot_slot != 0) ++slot_refs[static_cast<size_t>(seq.snapshot_slot)];
    DI_CHECK(seq.state_slot == 0 || seq.snapshot_slot == 0) << "sequence " << id << " has two slots";
    DI_CHECK(seq.table.empty() == (seq.state_slot == 0 && seq.snapshot_slot == 0)) << "sequence " << id << " has half its caches";
    DI_CHECK(seq.is_queued == (waiting_.count(owned.get()) != 0)) << "sequence " << id << " is lost";
    DI_CHECK(seq.is_finished() || seq.num_cached < seq.length()) << "sequence " << id << " has nothing left to compute";
    const int64_t newest = seq.num_published * kTokensPerBlock;
    DI_CHECK(newest <= std::max(seq.num_cached, seq.write_floor)) << "sequence " << id << " published too much";
    // Blocks with a key are complete: nobody writes behind that point.
    for (size_t i = static_cast<size_t>(seq.num_published); i < seq.table.size(); ++i)
      DI_CHECK(!blocks_.is_keyed(seq.table[i])) << "sequence " << id << " may write block " << seq.table[i] << ", which has a key";
  }
  for (size_t id = 1; id < block_refs.size(); ++id)
    DI_CHECK(blocks_.ref_count(static_cast<int32_t>(id)) == block_refs[id])
        << "block " << id << " has " << blocks_.ref_count(static_cast<int32_t>(id)) << " owners, found " << block_refs[id];
  for (size_t id = 1; id < slot_refs.size(); ++id)
    DI_CHECK(slots_.ref_count(static_cast<int32_t>(id)) == slot_refs[id])
        << "slot " << id << " has " << slots_.ref_count(static_cast<int32_t>(id)) << " owners, found " << slot_refs[id];
  int64_t keyed = 0;
  for (size_t id = 1; id < block_refs.size(); ++id) keyed += blocks_.is_keyed(static_cast<int32_t>(id)) ? 1 : 0;
  DI_CHECK(keyed == cache_.num_blocks()) << keyed << " keyed blocks, " << cache_.num_blocks() << " in the cache";
  DI_CHECK(cache_.num_pending_records() == num_saves_in_flight_) << "STATE records are lost";
  int64_t num_live = static_cast<int64_t>(unborn_forks_.size());
  for (const auto& [id, owned] : sequences_) num_live += owned->is_finished() ? 0 : 1;
  DI_CHECK(stats_.num_added == stats_.num_finished + num_live) << "a sequence is lost or ended twice";
}

}  // namespace deepinfer::engine
