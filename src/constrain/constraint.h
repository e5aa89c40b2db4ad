// SPDX-License-Identifier: Apache-2.0
//
// Constraint: where one request stands between "free text" and "grammar". Before the trigger everything is allowed; a bound
// token forces the trigger's tokens; then the grammar decides; after a stop id everything is free again (requests that
// ignore the end token). One thread at a time. Once aborted it stays aborted: Accept and Fill return the same error.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "constrain/grammar.h"
#include "core/clock.h"
#include "core/status.h"

namespace deepinfer::constrain {

// The finish reason of a request whose constraint failed.
inline constexpr std::string_view kConstraintFailed = "xgrammar runtime errors or timeout";

// Processor time of the calling thread: what matching costs, however busy the machine is.
const Clock& ThreadCpuClock();

struct ConstraintOptions {
  int num_drafts = 0;                 // rollback is possible over num_drafts + 2 tokens
  int64_t step_budget_ns = 50'000'000;     // accept + fill of one request in one step
  int64_t total_budget_ns = 2'000'000'000;  // and over its life
  const Clock* clock = &ThreadCpuClock();
};

class Constraint {
 public:
  // spec.invalid and a grammar that cannot make a matcher give an aborted constraint.
  Constraint(GrammarSpec spec, std::shared_ptr<const CompiledGrammar> grammar, const ConstraintOptions& options);
  ~Constraint();
  Constraint(const Constraint&) = delete;
  Constraint& operator=(const Constraint&) = delete;

  // Starts the time budget of a step; call it before the first Accept or Fill of a step.
  void BeginStep() { step_ns_ = 0; }

  // False: not allowed here, nothing changed.
  Result<bool> Accept(int32_t token_id);
  // Whether Fill would forbid anything: false while the trigger is pending and the bound has not fired, and once finished.
  bool constrained() const { return is_bound_fired() || !is_trigger_pending(); }
  // Writes the row of the next token. False: all ones. A row that allows nothing aborts the constraint; behind a draft it
  // does not (the row is all zeros, true): the draft may be rejected.
  Result<bool> Fill(std::span<uint32_t> mask, bool is_behind_draft = false);
  // Takes back the last n accepted tokens. Beyond num_drafts + 2 an error, which aborts.
  Status Rollback(int n);

  // Tokens (output so far) into a fresh constraint, without a time budget per step: after preemption or hand-over.
  Status Replay(std::span<const int32_t> output_ids);
  std::unique_ptr<Constraint> Fork() const;   // same state
  std::unique_ptr<Constraint> Fresh() const;  // same configuration, at the start

  // The only possible continuation, at most max tokens; empty when there is a choice or the grammar is not active.
  std::vector<int32_t> ForcedTokens(int max);

  // The first message stays.
  void Abort(std::string message);
  bool is_aborted() const { return !aborted_.empty(); }
  const std::string& abort_message() const { return aborted_; }

  bool is_trigger_pending() const { return progress_ < spec_.trigger_token_ids.size(); }
  bool is_bound_fired() const { return tokens_after_bound_ >= 0; }
  bool is_finished() const { return tokens_after_eos_ >= 0; }  // a stop id was accepted
  int64_t tokens_in_grammar() const { return tokens_in_grammar_; }
  const GrammarSpec& spec() const { return spec_; }

 private:
  // What Rollback puts back: everything a token can change besides the matcher.
  struct Undo {
    bool is_grammar_token = false;
    bool is_after_eos = false;
    size_t progress = 0;
    int64_t tokens_after_bound = -1;
    int64_t tokens_after_eos = -1;
  };
  class Timer;
  Status AbortedStatus() const;
  Status CheckBudget();
  Undo& PushUndo();

  GrammarSpec spec_;
  std::shared_ptr<const CompiledGrammar> grammar_;
  ConstraintOptions options_;
  std::unique_ptr<GrammarMatcher> matcher_;
  std::vector<int> failure_;  // KMP failure function of the trigger
  size_t progress_ = 0;
  int64_t tokens_after_bound_ = -1;
  int64_t tokens_in_grammar_ = 0;
  int64_t tokens_after_eos_ = -1;
  std::vector<Undo> history_;  // ring of the last num_drafts + 2 accepted tokens
  size_t history_end_ = 0;     // where the next one goes
  size_t history_size_ = 0;
  int64_t step_ns_ = 0;
  int64_t total_ns_ = 0;
  bool is_replaying_ = false;
  std::string aborted_;
};

}  // namespace deepinfer::constrain
