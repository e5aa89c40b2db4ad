// SPDX-License-Identifier: Apache-2.0
//
// Scheduler, second part: which blocks, slots and STATE records a sequence holds, and what the prefix cache learns.
#include "engine/scheduler.h"

#include <algorithm>

#include "core/check.h"
#include "core/integers.h"

namespace deepinfer::engine {

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
  // Growing lists belong here, not into decode steps.
  seq.tokens.reserve(seq.tokens.size() + static_cast<size_t>(std::clamp<int64_t>(seq.spec.max_tokens - seq.output_len(), 0, 4096)));
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
  stats_.num_bound_tokens += seq.length();
  if (seq.cache_mode != CacheMode::kOff && !NeedsAllRows(seq)) stats_.num_lookup_tokens += seq.length();
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
  seq.num_drafts = 0;
  seq.rates.clear();
  seq.previous_rates.clear();
  seq.num_decodes_planned = seq.num_decodes_processed = 0;
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
