// SPDX-License-Identifier: Apache-2.0
//
// GrammarMasks: the constraints of the sequences that have one, by state slot, and the mask rows of their next step. The
// compute thread says what a step emitted (Continue) and hands the work out (Launch); mask threads follow the grammars and
// fill the rows while the next forward pass runs; Wait comes before sampling. Without constrained sequences there are no
// threads and no work. The compute thread calls everything.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "constrain/constraint.h"
#include "constrain/grammar.h"
#include "core/clock.h"

namespace deepinfer::engine {

// The grammar of a request, shared by its samples; complete before the request is scheduled.
struct RequestGrammar {
  constrain::GrammarSpec spec;  // its text is gone: it may be long, and `compiled` is made of it
  uint64_t hash = 0;            // of the text and its options, for the log
  std::shared_ptr<const constrain::CompiledGrammar> compiled;
};

// so_status of the specification.
enum class GrammarStatus : int8_t { kDead = -1, kNotStarted = 0, kStarting = 1, kActive = 2 };

struct GrammarMaskOptions {
  int num_drafts = 0;
  // Of accepting and filling, by sequence: of one step, and of its life. What takes longer ends the request.
  int64_t step_budget_ns = 50'000'000;
  int64_t total_budget_ns = 2'000'000'000;
  // Null: the time that the thread computed, so that a busy machine ends no request.
  const Clock* clock = nullptr;
  int max_threads = 8;
};

class GrammarMasks {
 public:
  GrammarMasks(int vocab_size, int64_t num_slots, GrammarMaskOptions options);
  ~GrammarMasks();
  GrammarMasks(const GrammarMasks&) = delete;
  GrammarMasks& operator=(const GrammarMasks&) = delete;

  // The slot gets another sequence.
  void Begin(int32_t slot) { slots_[static_cast<size_t>(slot)] = nullptr; }
  int num_sequences() const;
  bool has(int32_t slot) const { return slots_[static_cast<size_t>(slot)] != nullptr; }
  // The slot's sequence is about to sample for the first time here; `outputs`: what it emitted elsewhere (preemption).
  void Start(int32_t slot, const std::shared_ptr<const RequestGrammar>& grammar, uint64_t sequence_id, std::span<const int32_t> outputs);
  // A step emitted `tokens`; the next one verifies the first ones of `drafts` (-1: none from there on), or none.
  void Continue(int32_t slot, std::span<const int32_t> tokens, std::span<const int32_t> drafts);
  // Hands out what Start and Continue have collected.
  void Launch();
  // Drafts in front of which the grammar is known to stand, of `count`; `count` while that is not known.
  int NumUsefulDrafts(int32_t slot, int count) const;
  // Until all rows are there; helps.
  void Wait();

  // After Wait, of a slot that has a constraint:
  GrammarStatus status(int32_t slot) const { return At(slot).status; }
  // Why the sequence cannot go on; empty = it can.
  const std::string& failure(int32_t slot) const { return At(slot).failure; }
  // Drafts of the step that the grammar allows, one after the other.
  int num_legal(int32_t slot) const { return At(slot).num_legal; }
  // Behind the first `row` drafts, row <= num_legal. Empty: every token is allowed.
  std::span<const uint32_t> Mask(int32_t slot, int row) const;
  // Ends the sequence's constraint for the reason that failure() gives, or else for this one, and says so in the log. May be
  // called for several slots at once.
  void Fail(int32_t slot, std::string message);

  int num_threads() const { return static_cast<int>(threads_.size()); }

 private:
  struct Sequence {
    std::weak_ptr<const RequestGrammar> request;  // gone: the request has ended and nobody holds it
    uint64_t hash = 0;
    constrain::GrammarSpec spec;
    std::shared_ptr<const constrain::CompiledGrammar> compiled;
    uint64_t id = 0;
    std::unique_ptr<constrain::Constraint> constraint;
    std::vector<int32_t> replay;  // to accept before anything else
    std::vector<int32_t> tokens, drafts;
    std::vector<uint32_t> masks;  // [num_drafts + 1, words]
    std::vector<uint8_t> is_masked;
    int num_legal = 0;
    GrammarStatus status = GrammarStatus::kNotStarted;
    std::string failure;
    bool is_reported = false;
    std::atomic<bool> is_ready{false};
  };

  const Sequence& At(int32_t slot) const { return *slots_[static_cast<size_t>(slot)]; }
  void DropEnded();
  void Compute(Sequence& sequence) const;
  Status Advance(Sequence& sequence) const;
  Status FillRow(Sequence& sequence, int row) const;
  void Work();
  // Takes one sequence and computes it; false: there is none. `lock` is held before and after.
  bool TakeOne(std::unique_lock<std::mutex>& lock);

  const int vocab_size_;
  const size_t num_words_;
  const GrammarMaskOptions options_;
  std::vector<std::shared_ptr<Sequence>> slots_;
  std::vector<std::shared_ptr<Sequence>> collected_;
  uint32_t num_launches_ = 0;
  bool is_running_ = false;  // something was launched and not waited for

  std::mutex mutex_;
  std::condition_variable has_work_, is_done_;
  std::vector<std::shared_ptr<Sequence>> queue_;  // GUARDED_BY(mutex_)
  size_t num_taken_ = 0;                          // GUARDED_BY(mutex_) of queue_
  size_t num_computed_ = 0;                       // GUARDED_BY(mutex_)
  bool stops_ = false;                            // GUARDED_BY(mutex_)
  std::vector<std::thread> threads_;
};

}  // namespace deepinfer::engine
