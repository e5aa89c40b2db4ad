// SPDX-License-Identifier: Apache-2.0
//
// Scheduler, third part: results of steps, forks, and how sequences end.
#include "engine/scheduler.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>

#include "core/check.h"

namespace deepinfer::engine {

namespace {

constexpr size_t kNumPrefillSamples = 9;  // of the median that sizes chunks

}  // namespace

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
  if (plan.kind == StepKind::kDecode && options_.varlen_verify && result.forward_ns > 0) {
    int64_t num_rows = static_cast<int64_t>(plan.rows.size());
    for (const int32_t count : result.num_verified) num_rows += count;
    costs_.Add(num_rows, static_cast<int64_t>(plan.rows.size()), static_cast<double>(result.forward_ns) * 1e-6,
               static_cast<double>(result.sample_ns) * 1e-6, static_cast<double>(result.draft_ns) * 1e-6);
  }
  if (plan.kind == StepKind::kDecode) {
    stats_.forward_ns += result.forward_ns;
    stats_.sample_ns += result.sample_ns;
    stats_.draft_ns += result.draft_ns;
    stats_.num_lookup_verified += result.num_lookup_verified;
    stats_.num_lookup_accepted += result.num_lookup_accepted;
  }
  if (plan.num_drafts > 0 && options_.varlen_verify) {
    step_rates_.assign(static_cast<size_t>(plan.num_drafts), 0.0);
    int64_t num_rows = 0;
    for (size_t i = 0; i < plan.rows.size(); ++i) {
      const float* const confidences = result.confidences.data() + i * static_cast<size_t>(result.stride - 1);
      if (std::isnan(confidences[0])) continue;
      ++num_rows;
      double rate = 1.0;
      for (size_t j = 0; j < step_rates_.size(); ++j) step_rates_[j] += rate *= static_cast<double>(confidences[j]);
    }
    for (double& rate : step_rates_) rate /= static_cast<double>(std::max<int64_t>(num_rows, 1));
    if (num_rows > 0) mean_rates_.Add(step_rates_, plan.num_probe_rows > 0);
  }
  stats_.confidence_error += result.confidence_error;
  for (size_t i = 0; i < plan.rows.size(); ++i) ProcessRow(plan, result, i);
  for (const StateSave& save : plan.saves) ProcessSave(plan, save);
  for (const StepRow& row : plan.rows) {
    Sequence& seq = *row.sequence;
    --seq.steps_in_flight;
    if (seq.is_finished() && seq.steps_in_flight == 0) Collect(seq);
  }
  SweepRunning();
}

void DraftStats::Add(size_t position, bool is_reached, bool is_accepted, float confidence) {
  const size_t at = std::min(position, kPositions - 1);
  if (std::isnan(confidence)) return;  // not the head's
  ++num_verified[at];
  if (!is_reached) return;
  ++num_reached[at];
  num_accepted[at] += is_accepted ? 1 : 0;
  Bin& bin = by_confidence[std::min(static_cast<size_t>(confidence * static_cast<float>(kBins)), kBins - 1)];
  ++bin.count;
  bin.num_accepted += is_accepted ? 1 : 0;
  bin.confidence += static_cast<double>(confidence);
}

void Scheduler::ProcessRow(const StepPlan& plan, const StepResult& result, size_t i) {
  const StepRow& row = plan.rows[i];
  Sequence& seq = *row.sequence;
  // Preempted or ended while the step was in flight.
  if (row.generation != seq.generation || seq.is_finished()) return;
  if (seq.total_inflight == seq.last_inflight) seq.last_inflight = 0;
  seq.total_inflight = seq.last_inflight;
  const bool is_prefill = plan.kind == StepKind::kPrefill;
  if (result.outcome[i] == RowOutcome::kConstraintFailed) {
    // As 0.1.0 does it: one more token, id 0, which nobody chose.
    seq.tokens.push_back(0);
    ++stats_.num_output_tokens;
    SequenceEvent event;
    event.id = seq.id;
    event.user = seq.spec.user;
    event.token = 0;
    event.row = static_cast<int32_t>(i);
    event.num_output = seq.output_len();
    if (!seq.has_reported_first) event.cached_tokens = seq.cached_tokens;
    seq.has_reported_first = true;
    Finish(seq, FinishReason::kStructuredOutputFailed, &event);
    return;
  }
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
  DI_CHECK(count >= 1 && count <= (is_prefill ? 1 : options_.num_drafts + 1)) << count << " tokens of row " << i << " of step " << plan.number;
  if (plan.Drafts(i) && !std::isnan(result.confidences[i * static_cast<size_t>(result.stride - 1)])) {
    seq.previous_rates.swap(seq.rates);
    seq.rates.clear();
    float rate = 1.0f;
    for (int j = 0; j < plan.num_drafts; ++j) {
      rate *= result.confidences[i * static_cast<size_t>(result.stride - 1) + static_cast<size_t>(j)];
      seq.rates.push_back(rate);
    }
  } else {
    seq.rates.clear();
    seq.previous_rates.clear();
  }
  if (!is_prefill) {
    ++seq.num_decodes_processed;
    ++stats_.num_decode_rows;
    for (int32_t j = 0; j < result.num_verified[i]; ++j)
      stats_.drafts.Add(static_cast<size_t>(j), j < count, j + 1 < count, result.verified_confidences[i * static_cast<size_t>(result.stride - 1) + static_cast<size_t>(j)]);
  }
  stats_.num_verified_drafts += result.num_verified[i];
  stats_.num_accepted_drafts += count - 1;
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

}  // namespace deepinfer::engine
