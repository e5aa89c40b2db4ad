// SPDX-License-Identifier: Apache-2.0
#include "constrain/constraint.h"

#include <time.h>

#include <algorithm>
#include <limits>
#include <utility>

#include <fmt/format.h>

namespace deepinfer::constrain {
namespace {

// Asking for processor time is a system call, which takes as long as filling a row. Between two calls that are close the
// thread has run all the time: then the wall clock tells as much.
class ThreadCpuClockImpl : public Clock {
 public:
  int64_t NowNs() const override {
    struct Anchor {
      int64_t wall_ns = std::numeric_limits<int64_t>::min() / 2;
      int64_t cpu_ns = 0;
      int64_t last_ns = 0;  // never goes back
    };
    thread_local Anchor anchor;
    const int64_t wall_ns = Clock::Steady().NowNs();
    if (wall_ns - anchor.wall_ns > kCloseNs) {
      timespec now{};
      clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
      anchor.cpu_ns = int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
      anchor.wall_ns = wall_ns;
    }
    anchor.last_ns = std::max(anchor.last_ns, anchor.cpu_ns + (wall_ns - anchor.wall_ns));
    return anchor.last_ns;
  }

 private:
  static constexpr int64_t kCloseNs = 200'000;
};

bool IsEmptyRow(std::span<const uint32_t> mask, int vocab_size) {
  const size_t full_words = static_cast<size_t>(vocab_size) / 32;
  uint32_t seen = 0;
  for (size_t i = 0; i < full_words; ++i) seen |= mask[i];
  if (const int rest = vocab_size % 32; rest != 0) seen |= mask[full_words] & ((1u << rest) - 1);
  return seen == 0;
}

}  // namespace

const Clock& ThreadCpuClock() {
  static const ThreadCpuClockImpl clock;
  return clock;
}

// Adds what passes while it lives to the budgets.
class Constraint::Timer {
 public:
  explicit Timer(Constraint* owner) : owner_(owner), start_ns_(owner->options_.clock->NowNs()) {}
  ~Timer() {
    const int64_t ns = owner_->options_.clock->NowNs() - start_ns_;
    owner_->step_ns_ += ns;
    owner_->total_ns_ += ns;
  }
  Timer(const Timer&) = delete;
  Timer& operator=(const Timer&) = delete;

 private:
  Constraint* owner_;
  int64_t start_ns_;
};

Constraint::Constraint(GrammarSpec spec, std::shared_ptr<const CompiledGrammar> grammar, const ConstraintOptions& options)
    : spec_(std::move(spec)), grammar_(std::move(grammar)), options_(options) {
  history_.resize(static_cast<size_t>(std::max(options_.num_drafts, 0)) + 2);
  if (!spec_.invalid.empty()) {
    Abort(spec_.invalid);
    return;
  }
  if (grammar_ == nullptr) {
    Abort("there is no compiled grammar");
    return;
  }
  Result<std::unique_ptr<GrammarMatcher>> matcher = grammar_->NewMatcher();
  if (!matcher.ok()) {
    Abort(matcher.status().message());
    return;
  }
  matcher_ = std::move(matcher).value();
  const std::vector<int32_t>& trigger = spec_.trigger_token_ids;
  failure_.assign(trigger.size(), 0);
  for (size_t i = 1; i < trigger.size(); ++i) {
    int length = failure_[i - 1];
    while (length > 0 && trigger[i] != trigger[static_cast<size_t>(length)]) length = failure_[static_cast<size_t>(length) - 1];
    if (trigger[i] == trigger[static_cast<size_t>(length)]) ++length;
    failure_[i] = length;
  }
}

Constraint::~Constraint() = default;

void Constraint::Abort(std::string message) {
  if (is_aborted()) return;
  aborted_ = message.empty() ? std::string(kConstraintFailed) : std::move(message);
}

Status Constraint::AbortedStatus() const { return Internal(aborted_); }

Status Constraint::CheckBudget() {
  if (!is_replaying_ && step_ns_ > options_.step_budget_ns) {
    Abort(fmt::format("{}: matching took {:.1f} ms in one step, the limit is {:.1f} ms; simplify nested repetitions",
                      kConstraintFailed, static_cast<double>(step_ns_) * 1e-6,
                      static_cast<double>(options_.step_budget_ns) * 1e-6));
  } else if (total_ns_ > options_.total_budget_ns) {
    Abort(fmt::format("{}: matching took {:.2f} s, the limit is {:.2f} s; simplify nested repetitions", kConstraintFailed,
                      static_cast<double>(total_ns_) * 1e-9, static_cast<double>(options_.total_budget_ns) * 1e-9));
  }
  return is_aborted() ? AbortedStatus() : Status::Ok();
}

Constraint::Undo& Constraint::PushUndo() {
  Undo& undo = history_[history_end_];
  undo = {false, false, progress_, tokens_after_bound_, tokens_after_eos_};
  history_end_ = (history_end_ + 1) % history_.size();
  history_size_ = std::min(history_size_ + 1, history_.size());
  return undo;
}

Result<bool> Constraint::Accept(int32_t token_id) {
  if (is_aborted()) return AbortedStatus();
  if (is_trigger_pending()) {
    const std::vector<int32_t>& trigger = spec_.trigger_token_ids;
    if (is_bound_fired()) {
      if (token_id != trigger[progress_]) return false;
      PushUndo();
      ++progress_;
      ++tokens_after_bound_;
      return true;
    }
    PushUndo();
    while (progress_ > 0 && token_id != trigger[progress_]) progress_ = static_cast<size_t>(failure_[progress_ - 1]);
    if (token_id == trigger[progress_]) ++progress_;
    if (token_id == spec_.bound_token_id) tokens_after_bound_ = 0;
    return true;
  }
  if (is_finished()) {
    PushUndo().is_after_eos = true;
    ++tokens_after_eos_;
    return true;
  }
  bool accepted = false;
  {
    Timer timer(this);
    const Result<bool> result = matcher_->Accept(token_id);
    if (!result.ok()) {
      Abort(result.status().message());
      return AbortedStatus();
    }
    accepted = *result;
  }
  if (accepted) {
    PushUndo().is_grammar_token = true;
    ++tokens_in_grammar_;
    if (is_bound_fired()) ++tokens_after_bound_;
    const auto stop_ids = grammar_->stop_ids();
    if (std::find(stop_ids.begin(), stop_ids.end(), token_id) != stop_ids.end()) tokens_after_eos_ = 0;
  }
  DI_RETURN_IF_ERROR(CheckBudget());
  return accepted;
}

Result<bool> Constraint::Fill(std::span<uint32_t> mask, bool is_behind_draft) {
  if (is_aborted()) return AbortedStatus();
  const size_t words = static_cast<size_t>(MaskWords(grammar_->vocab_size()));
  if (mask.size() < words) return Internal(fmt::format("a mask row has {} words, it needs {}", mask.size(), words));
  mask = mask.first(words);
  if (is_trigger_pending() && is_bound_fired()) {
    const int32_t forced = spec_.trigger_token_ids[progress_];
    std::fill(mask.begin(), mask.end(), 0u);
    if (forced >= grammar_->vocab_size()) {
      Abort(fmt::format("so_args.trigger_token_ids has {}, the vocabulary has {} tokens", forced, grammar_->vocab_size()));
      return AbortedStatus();
    }
    mask[static_cast<size_t>(forced) >> 5] = 1u << (forced & 31);
    return true;
  }
  if (is_trigger_pending() || is_finished()) {
    std::fill(mask.begin(), mask.end(), ~0u);
    return false;
  }
  bool is_constrained = false;
  {
    Timer timer(this);
    const Result<bool> result = matcher_->Fill(mask);
    if (!result.ok()) {
      Abort(result.status().message());
      return AbortedStatus();
    }
    is_constrained = *result;
  }
  if (is_constrained && !is_behind_draft && IsEmptyRow(mask, grammar_->vocab_size())) {
    Abort(fmt::format("{}: the grammar allows no token here", kConstraintFailed));
    return AbortedStatus();
  }
  DI_RETURN_IF_ERROR(CheckBudget());
  return is_constrained;
}

Status Constraint::Rollback(int n) {
  if (is_aborted()) return AbortedStatus();
  if (n < 0 || static_cast<size_t>(n) > history_size_) {
    Abort(fmt::format("{}: rollback of {} tokens, the history has {}", kConstraintFailed, n, history_size_));
    return AbortedStatus();
  }
  int num_grammar_tokens = 0;
  for (int i = 0; i < n; ++i) {
    history_end_ = (history_end_ + history_.size() - 1) % history_.size();
    --history_size_;
    const Undo& undo = history_[history_end_];
    if (undo.is_grammar_token) ++num_grammar_tokens;
    progress_ = undo.progress;
    tokens_after_bound_ = undo.tokens_after_bound;
    tokens_after_eos_ = undo.tokens_after_eos;
  }
  if (num_grammar_tokens == 0) return Status::Ok();
  tokens_in_grammar_ -= num_grammar_tokens;
  Timer timer(this);
  if (Status status = matcher_->Rollback(num_grammar_tokens); !status.ok()) {
    Abort(status.message());
    return AbortedStatus();
  }
  return Status::Ok();
}

Status Constraint::Replay(std::span<const int32_t> output_ids) {
  is_replaying_ = true;
  for (size_t i = 0; i < output_ids.size() && !is_aborted(); ++i) {
    const Result<bool> accepted = Accept(output_ids[i]);
    if (accepted.ok() && !*accepted) {
      Abort(fmt::format("SO replay failed: token {} (idx {}/{}) rejected during matcher state restore", output_ids[i], i,
                        output_ids.size()));
    }
  }
  is_replaying_ = false;
  step_ns_ = 0;
  return is_aborted() ? AbortedStatus() : Status::Ok();
}

std::unique_ptr<Constraint> Constraint::Fork() const {
  std::unique_ptr<Constraint> out = Fresh();
  if (is_aborted()) {
    out->aborted_ = aborted_;
    return out;
  }
  out->matcher_ = matcher_->Fork();
  out->progress_ = progress_;
  out->tokens_after_bound_ = tokens_after_bound_;
  out->tokens_in_grammar_ = tokens_in_grammar_;
  out->tokens_after_eos_ = tokens_after_eos_;
  out->history_ = history_;
  out->history_end_ = history_end_;
  out->history_size_ = history_size_;
  out->step_ns_ = step_ns_;
  out->total_ns_ = total_ns_;
  return out;
}

std::unique_ptr<Constraint> Constraint::Fresh() const { return std::make_unique<Constraint>(spec_, grammar_, options_); }

std::vector<int32_t> Constraint::ForcedTokens(int max) {
  if (is_aborted() || is_finished() || max <= 0) return {};
  if (is_trigger_pending()) {
    if (!is_bound_fired()) return {};
    const std::vector<int32_t>& trigger = spec_.trigger_token_ids;
    const size_t count = std::min(trigger.size() - progress_, static_cast<size_t>(max));
    const auto first = trigger.begin() + static_cast<std::ptrdiff_t>(progress_);
    return std::vector<int32_t>(first, first + static_cast<std::ptrdiff_t>(count));
  }
  Timer timer(this);
  return matcher_->ForcedTokens(max);
}

}  // namespace deepinfer::constrain
