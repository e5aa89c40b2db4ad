// SPDX-License-Identifier: Apache-2.0
#include "engine/step_executor.h"

#include <algorithm>

#include "core/check.h"
#include "core/log.h"

namespace deepinfer::engine {

StepExecutor::StepExecutor(StepModel& model, RowSampler& sampler, int64_t num_slots, const Clock& clock)
    : model_(model), sampler_(sampler), clock_(clock), last_tokens_(static_cast<size_t>(num_slots), 0) {}

void StepExecutor::Run(const StepPlan& plan, StepResult& result) {
  const int64_t begin_ns = clock_.NowNs();
  result.Reset(plan.rows.size(), 1);
  RunOps(plan);
  if (const Status status = RunRows(plan, result); !status.ok()) {
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
        break;
      case SlotOp::Kind::kLoadState: model_.LoadState(op.from, op.to); break;
      case SlotOp::Kind::kCopyState:
        model_.CopyState(op.from, op.to, op.count);
        sampler_.Begin(op.to);
        break;
      case SlotOp::Kind::kCopyBlock: model_.CopyBlock(op.from, op.to); break;
      case SlotOp::Kind::kTable: model_.SetBlocks(op.to, op.first, part(plan.blocks)); break;
    }
  }
}

// Rows run to their next STATE save in each pass; without saves there is one pass.
Status StepExecutor::RunRows(const StepPlan& plan, StepResult& result) {
  const size_t num_rows = plan.rows.size();
  done_.assign(num_rows, 0);
  size_t num_left = num_rows;
  while (num_left > 0) {
    chunks_.clear();
    chunk_rows_.clear();
    size_t save = 0;
    for (size_t i = 0; i < num_rows; ++i) {
      const StepRow& row = plan.rows[i];
      while (save < plan.saves.size() && plan.saves[save].row < static_cast<int32_t>(i)) ++save;
      if (done_[i] == row.num_tokens) continue;
      int32_t end = row.num_tokens;
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
      if (row.num_ids > 0) {
        chunk.ids = plan.IdsOf(row).subspan(static_cast<size_t>(done_[i]), static_cast<size_t>(end - done_[i]));
      } else {
        chunk.ids = {&last_tokens_[static_cast<size_t>(row.state_slot)], 1};
      }
      const bool samples = end == row.num_tokens && (plan.kind == StepKind::kDecode || row.is_last_chunk);
      chunk.logits = plan.kind == StepKind::kPrefill && row.needs_all_rows ? LogitRows::kAll
                     : samples                                             ? LogitRows::kLast
                                                                           : LogitRows::kNone;
      chunk_rows_.push_back(static_cast<int32_t>(i));
    }
    DI_ASSIGN_OR_RETURN(const std::span<const float> logits, model_.Forward(chunks_));
    const size_t width = static_cast<size_t>(model_.vocab_size());
    size_t offset = 0;
    ready_.clear();
    for (size_t c = 0; c < chunks_.size(); ++c) {
      const size_t i = static_cast<size_t>(chunk_rows_[c]);
      const StepRow& row = plan.rows[i];
      const SlotChunk& chunk = chunks_[c];
      done_[i] += static_cast<int32_t>(chunk.ids.size());
      if (done_[i] == row.num_tokens) --num_left;
      if (chunk.logits == LogitRows::kNone) continue;
      LogitsOfRow& ready = ready_.emplace_back();
      ready.row = static_cast<int32_t>(i);
      const size_t count = chunk.logits == LogitRows::kAll ? chunk.ids.size() : 1;
      ready.first_position = row.start + done_[i] - static_cast<int64_t>(count);
      ready.samples = done_[i] == row.num_tokens && (plan.kind == StepKind::kDecode || row.is_last_chunk);
      ready.logits = logits.subspan(offset, count * width);
      offset += count * width;
    }
    if (!ready_.empty()) sampler_.Sample(plan, ready_, result);
    for (const LogitsOfRow& ready : ready_) {
      const size_t i = static_cast<size_t>(ready.row);
      const int32_t count = result.num_tokens[i];
      // A failed row is fed some token: its request has ended, later rows of it are void.
      if (ready.samples)
        last_tokens_[static_cast<size_t>(plan.rows[i].state_slot)] =
            count > 0 ? result.tokens[i * static_cast<size_t>(result.stride) + static_cast<size_t>(count - 1)] : 0;
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

}  // namespace deepinfer::engine
