// SPDX-License-Identifier: Apache-2.0
#include "engine/step_executor.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "core/check.h"
#include "core/log.h"

namespace deepinfer::engine {

StepExecutor::StepExecutor(StepModel& model, RowSampler& sampler, int64_t num_slots, const Clock& clock, DraftOptions drafts)
    : model_(model),
      sampler_(sampler),
      clock_(clock),
      draft_options_(std::move(drafts)),
      last_tokens_(static_cast<size_t>(num_slots), 0),
      drafts_(static_cast<size_t>(num_slots * draft_options_.num_drafts), -1),
      confidences_(drafts_.size(), 0.0f) {
  if (draft_options_.uses_lookup && draft_options_.num_drafts > 0) lookup_.emplace(num_slots);
  is_lookup_.assign(static_cast<size_t>(num_slots), 0);
  DI_CHECK(draft_options_.num_drafts <= model_.max_drafts()) << draft_options_.num_drafts << " drafts, the head makes " << model_.max_drafts();
}

void StepExecutor::Run(const StepPlan& plan, StepResult& result) {
  const int64_t begin_ns = clock_.NowNs();
  result.Reset(plan.rows.size(), 1 + draft_options_.num_drafts);
  RunOps(plan);
  sampler_.Prepare(plan);
  Status status = RunRows(plan, result);
  if (status.ok() && (plan.num_drafts > 0 || lookup_)) status = RunDrafts(plan, result);
  if (status.ok()) sampler_.EndStep(plan, result, drafts_, draft_options_.num_drafts);
  if (!status.ok()) {
    DI_LOG(error, "step {} of {} rows failed: {}", plan.number, plan.rows.size(), status.message());
    std::fill(result.num_tokens.begin(), result.num_tokens.end(), 0);
    std::fill(result.outcome.begin(), result.outcome.end(), RowOutcome::kInternalError);
  }
  result.duration_ns = clock_.NowNs() - begin_ns;
}

void StepExecutor::RunOps(const StepPlan& plan) {
  for (const SlotOp& op : plan.ops) {
    const auto part = [&](const std::vector<int32_t>& values) {
      return std::span<const int32_t>(values).subspan(static_cast<size_t>(op.begin), static_cast<size_t>(op.count));
    };
    switch (op.kind) {
      case SlotOp::Kind::kBind:
        model_.Bind(op.to, part(plan.ids), op.valid_start, op.decoder_floor);
        sampler_.Begin(op.to);
        std::ranges::fill(DraftsOf(op.to), -1);
        is_lookup_[static_cast<size_t>(op.to)] = 0;
        if (lookup_) lookup_->Bind(op.to, part(plan.ids));
        break;
      case SlotOp::Kind::kLoadState: model_.LoadState(op.from, op.to); break;
      case SlotOp::Kind::kCopyState:
        model_.CopyState(op.from, op.to, op.count);
        sampler_.Begin(op.to);
        std::ranges::fill(DraftsOf(op.to), -1);
        is_lookup_[static_cast<size_t>(op.to)] = 0;
        if (lookup_) lookup_->Copy(op.from, op.to, op.count);
        break;
      case SlotOp::Kind::kCopyBlock: model_.CopyBlock(op.from, op.to); break;
      case SlotOp::Kind::kTable: model_.SetBlocks(op.to, op.first, part(plan.blocks)); break;
    }
  }
}

// Rows run to their next STATE save in each pass; without saves there is one pass.
Status StepExecutor::RunRows(const StepPlan& plan, StepResult& result) {
  const size_t num_rows = plan.rows.size();
  ChooseLengths(plan);
  if (draft_options_.num_drafts > 0) model_.PauseDrafts(plan.num_drafts == 0 || plan.num_probe_rows > 0);
  done_.assign(num_rows, 0);
  row_ids_.resize(num_rows * static_cast<size_t>(1 + draft_options_.num_drafts));
  size_t num_left = num_rows;
  while (num_left > 0) {
    chunks_.clear();
    chunk_rows_.clear();
    size_t save = 0;
    for (size_t i = 0; i < num_rows; ++i) {
      const StepRow& row = plan.rows[i];
      while (save < plan.saves.size() && plan.saves[save].row < static_cast<int32_t>(i)) ++save;
      if (done_[i] == lengths_[i]) continue;
      int32_t end = lengths_[i];
      for (size_t s = save; s < plan.saves.size() && plan.saves[s].row == static_cast<int32_t>(i); ++s) {
        const auto at = static_cast<int32_t>(plan.saves[s].position - row.start);
        if (at > done_[i]) {
          end = std::min(end, at);
          break;
        }
      }
      SlotChunk& chunk = chunks_.emplace_back();
      chunk.slot = row.state_slot;
      chunk.write_floor = row.write_floor;
      if (plan.kind == StepKind::kPrefill) {
        chunk.ids = plan.IdsOf(row).subspan(static_cast<size_t>(done_[i]), static_cast<size_t>(end - done_[i]));
      } else {
        const std::span<int32_t> ids =
            std::span(row_ids_).subspan(i * static_cast<size_t>(1 + draft_options_.num_drafts), static_cast<size_t>(lengths_[i]));
        ids[0] = row.num_ids > 0 ? plan.IdsOf(row)[0] : last_tokens_[static_cast<size_t>(row.state_slot)];
        for (size_t j = 1; j < ids.size(); ++j) ids[j] = std::max(DraftsOf(row.state_slot)[j - 1], 0);
        chunk.ids = ids;
      }
      const bool samples = end == lengths_[i] && (plan.kind == StepKind::kDecode || row.is_last_chunk);
      const bool needs_all = plan.kind == StepKind::kDecode ? lengths_[i] > 1 : row.needs_all_rows;
      chunk.logits = needs_all ? LogitRows::kAll : samples ? LogitRows::kLast : LogitRows::kNone;
      if (samples && !row.needs_all_rows && model_.finds_best()) chunk.greedy = sampler_.GreedyOf(plan, row);
      chunk_rows_.push_back(static_cast<int32_t>(i));
    }
    const int64_t forward_begin_ns = clock_.NowNs();
    DI_ASSIGN_OR_RETURN(const std::span<const float> logits, model_.Forward(chunks_));
    const int64_t forward_end_ns = clock_.NowNs();
    result.forward_ns += forward_end_ns - forward_begin_ns;
    const size_t width = static_cast<size_t>(model_.vocab_size());
    size_t offset = 0;
    ready_.clear();
    for (size_t c = 0; c < chunks_.size(); ++c) {
      const size_t i = static_cast<size_t>(chunk_rows_[c]);
      const StepRow& row = plan.rows[i];
      const SlotChunk& chunk = chunks_[c];
      done_[i] += static_cast<int32_t>(chunk.ids.size());
      if (lookup_) lookup_->Append(row.state_slot, chunk.ids);
      if (done_[i] == lengths_[i]) --num_left;
      if (chunk.logits == LogitRows::kNone) continue;
      LogitsOfRow& ready = ready_.emplace_back();
      ready.row = static_cast<int32_t>(i);
      const size_t count = chunk.logits == LogitRows::kAll ? chunk.ids.size() : 1;
      ready.first_position = model_.length(row.state_slot) - static_cast<int64_t>(count);
      if (plan.kind == StepKind::kDecode && count > 1) {
        ready.drafts = DraftsOf(row.state_slot).first(count - 1);
        ready.confidences = ConfidencesOf(row.state_slot).first(count - 1);
        result.num_verified[i] = static_cast<int32_t>(count) - 1;
        const auto confidences = result.verified_confidences.begin() + static_cast<std::ptrdiff_t>(i * static_cast<size_t>(result.stride - 1));
        std::ranges::copy(ready.confidences, confidences);
        if (is_lookup_[static_cast<size_t>(row.state_slot)] != 0) std::fill_n(confidences, count - 1, std::numeric_limits<float>::quiet_NaN());
      }
      ready.samples = done_[i] == lengths_[i] && (plan.kind == StepKind::kDecode || row.is_last_chunk);
      ready.logits = logits.subspan(offset, count * width);
      if (chunk.greedy.is_greedy && !model_.bests().empty()) ready.bests = model_.bests().subspan(offset / width, count);
      offset += count * width;
    }
    if (!ready_.empty()) sampler_.Sample(plan, ready_, result);
    result.sample_ns += clock_.NowNs() - forward_end_ns;
    for (const LogitsOfRow& ready : ready_) {
      if (!ready.samples) continue;
      const size_t i = static_cast<size_t>(ready.row);
      const int32_t count = result.num_tokens[i], slot = plan.rows[i].state_slot;
      // A failed row is fed some token: its request has ended, later rows of it are void.
      last_tokens_[static_cast<size_t>(slot)] =
          count > 0 ? result.tokens[i * static_cast<size_t>(result.stride) + static_cast<size_t>(count - 1)] : 0;
      if (plan.kind != StepKind::kDecode) continue;
      const int64_t kept = ready.first_position + std::max(count, 1);
      if (kept < model_.length(slot)) model_.Truncate(slot, kept);
      // Used up, whatever became of them.
      std::ranges::fill(DraftsOf(slot), -1);
      if (!lookup_) continue;
      lookup_->Truncate(slot, kept);
      if (is_lookup_[static_cast<size_t>(slot)] != 0) {
        const int verified = static_cast<int>(ready.drafts.size());
        lookup_->Report(slot, verified, std::max(count - 1, 0));
        result.num_lookup_verified += verified;
        result.num_lookup_accepted += std::max(count - 1, 0);
        is_lookup_[static_cast<size_t>(slot)] = 0;
      } else {
        lookup_->Forget(slot);
      }
    }
    for (const StateSave& s : plan.saves) {
      const StepRow& row = plan.rows[static_cast<size_t>(s.row)];
      if (row.start + done_[static_cast<size_t>(s.row)] != s.position) continue;
      // A row that ran in an earlier pass was saved there.
      if (std::find(chunk_rows_.begin(), chunk_rows_.end(), s.row) != chunk_rows_.end()) model_.SaveState(row.state_slot, s.record);
    }
  }
  return Status::Ok();
}

float StepExecutor::Confidence(float logit, int draft) const {
  const std::vector<float>& all = draft_options_.temperatures;
  const float temperature = all.empty() ? 1.0f : all[all.size() == 1 ? 0 : static_cast<size_t>(draft)];
  return 1.0f / (1.0f + std::exp(-std::clamp(logit / std::max(temperature, 1e-5f), -60.0f, 60.0f)));
}

void StepExecutor::ChooseLengths(const StepPlan& plan) {
  lengths_.clear();
  int64_t num_tokens = 0;
  for (const StepRow& row : plan.rows) {
    lengths_.push_back(row.num_tokens);
    num_tokens += row.num_tokens;
  }
  if (plan.kind != StepKind::kDecode) return;
  // Drafts from repeated text were made where they are worth their rows, whatever the host has planned for the head's.
  const auto is_lookup = [&](const StepRow& row) { return is_lookup_[static_cast<size_t>(row.state_slot)] != 0; };
  const auto set_lookup_lengths = [&] {
    for (size_t i = 0; i < plan.rows.size(); ++i) {
      if (!is_lookup(plan.rows[i])) continue;
      const std::span<const int32_t> drafts = DraftsOf(plan.rows[i].state_slot);
      const auto count = static_cast<int>(std::ranges::find(drafts, -1) - drafts.begin());
      lengths_[i] = 1 + sampler_.NumUsefulDrafts(plan.rows[i], count);
    }
  };
  if (!plan.redistributes) {
    // No row for a draft that its sequence's grammar is known to refuse.
    for (size_t i = 0; i < plan.rows.size(); ++i) lengths_[i] = 1 + sampler_.NumUsefulDrafts(plan.rows[i], lengths_[i] - 1);
    set_lookup_lengths();
    return;
  }
  // The host knew the drafts of the step before last only. The number of rows stays.
  const size_t n = static_cast<size_t>(draft_options_.num_drafts);
  rates_.assign(plan.rows.size() * n, 0.0f);
  verify_candidates_.clear();
  for (size_t i = 0; i < plan.rows.size(); ++i) {
    const StepRow& row = plan.rows[i];
    size_t count = 0;
    const auto most = static_cast<size_t>(sampler_.NumUsefulDrafts(row, draft_options_.num_drafts));
    float rate = row.previous_row >= 0 ? 1.0f : 0.0f;
    if (is_lookup(row)) num_tokens -= row.num_tokens - 1;
    for (; !is_lookup(row) && count < most && DraftsOf(row.state_slot)[count] >= 0; ++count) {
      rate *= ConfidencesOf(row.state_slot)[count];
      rates_[i * n + count] = rate;
    }
    const std::span<const float> rates = std::span<const float>(rates_).subspan(i * n, count);
    verify_candidates_.push_back({rates, rates});
  }
  verify_planner_.DistributeRows(verify_candidates_, num_tokens, lengths_);
  set_lookup_lengths();
}

bool StepExecutor::LookUp(const StepPlan& plan, size_t i) {
  if (!lookup_ || plan.lookup_min_rate > 1) return false;
  const int32_t slot = plan.rows[i].state_slot;
  const std::span<int32_t> drafts = DraftsOf(slot);
  const float acceptance = lookup_->acceptance(slot);
  size_t wanted = 0;
  float expected = 0;
  for (float rate = acceptance; wanted < drafts.size() && rate >= plan.lookup_min_rate; rate *= acceptance, ++wanted) expected += rate;
  if (wanted == 0 || (plan.Drafts(i) && expected < plan.head_tokens)) return false;
  const size_t count = lookup_->Propose(slot, last_tokens_[static_cast<size_t>(slot)], drafts.first(wanted));
  std::fill(drafts.begin() + static_cast<std::ptrdiff_t>(count), drafts.end(), -1);
  if (count == 0) return false;
  std::ranges::fill(ConfidencesOf(slot), acceptance);
  sampler_.NoteCertainDrafts(plan.rows[i], drafts.first(count));
  is_lookup_[static_cast<size_t>(slot)] = 1;
  return true;
}

Status StepExecutor::RunDrafts(const StepPlan& plan, StepResult& result) {
  draft_rows_.clear();
  slot_drafts_.clear();
  for (size_t i = 0; i < plan.rows.size(); ++i) {
    const StepRow& row = plan.rows[i];
    if (result.num_tokens[i] < 1 || (plan.kind == StepKind::kPrefill && !row.is_last_chunk)) continue;
    if (LookUp(plan, i) || !plan.Drafts(i)) continue;
    draft_rows_.push_back({static_cast<int32_t>(i), model_.length(row.state_slot) + 1, {}});
    slot_drafts_.push_back({row.state_slot, last_tokens_[static_cast<size_t>(row.state_slot)]});
  }
  if (draft_rows_.empty()) return Status::Ok();

  // Hands every position's logits to the sampler and keeps what it draws in the slots.
  class Chooser : public model::DraftChooser {
   public:
    Chooser(StepExecutor& executor, const StepPlan& plan) : executor_(executor), plan_(plan) {}
    void Choose(int position, float* logits, int64_t stride, std::span<int32_t> tokens) override {
      std::vector<DraftOfRow>& rows = executor_.draft_rows_;
      for (size_t i = 0; i < rows.size(); ++i)
        rows[i].drafts = executor_.DraftsOf(executor_.slot_drafts_[i].slot).first(static_cast<size_t>(position));
      executor_.sampler_.SampleDrafts(plan_, rows, logits, stride, tokens);
      for (size_t i = 0; i < rows.size(); ++i)
        executor_.DraftsOf(executor_.slot_drafts_[i].slot)[static_cast<size_t>(position)] = tokens[i];
    }

    bool TakesBest(std::vector<const std::vector<uint32_t>*>& masks) const override {
      for (const DraftOfRow& draft : executor_.draft_rows_) {
        const GreedyRow greedy = executor_.sampler_.GreedyOf(plan_, plan_.rows[static_cast<size_t>(draft.row)]);
        if (!greedy.is_greedy) return false;
        masks.push_back(greedy.mask);
      }
      return true;
    }

   private:
    StepExecutor& executor_;
    const StepPlan& plan_;
  } chooser(*this, plan);
  const size_t n = static_cast<size_t>(plan.num_drafts);
  draft_tokens_.resize(draft_rows_.size() * n);
  draft_confidences_.resize(draft_rows_.size() * n);
  const int64_t begin_ns = clock_.NowNs();
  DI_RETURN_IF_ERROR(model_.Draft(slot_drafts_, plan.num_drafts, chooser, draft_tokens_, draft_confidences_));
  result.draft_ns = clock_.NowNs() - begin_ns;
  for (size_t d = 0; d < draft_rows_.size(); ++d) {
    // The chooser need not have been asked.
    std::copy_n(draft_tokens_.begin() + static_cast<std::ptrdiff_t>(d * n), n, DraftsOf(slot_drafts_[d].slot).begin());
    const size_t i = static_cast<size_t>(draft_rows_[d].row), stride = static_cast<size_t>(result.stride);
    bool is_stopped = false;
    for (int32_t t = 0; t < result.num_tokens[i]; ++t)
      is_stopped |= sampler_.IsStopToken(plan.rows[i], result.tokens[i * stride + static_cast<size_t>(t)]);
    const std::span<float> confidences = ConfidencesOf(plan.rows[i].state_slot);
    for (size_t j = 0; j < n; ++j) {
      confidences[j] = is_stopped ? 0.0f : Confidence(draft_confidences_[d * n + j], static_cast<int>(j));
      result.confidences[i * (stride - 1) + j] = confidences[j];
    }
  }
  return Status::Ok();
}

}  // namespace deepinfer::engine
