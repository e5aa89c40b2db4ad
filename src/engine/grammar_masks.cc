// SPDX-License-Identifier: Apache-2.0
#include "engine/grammar_masks.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "core/log.h"

namespace deepinfer::engine {
namespace {

// From here on one thread is not enough.
constexpr size_t kSequencesPerThread = 16;
constexpr uint32_t kLaunchesPerSweep = 256;

}  // namespace

GrammarMasks::GrammarMasks(int vocab_size, int64_t num_slots, GrammarMaskOptions options)
    : vocab_size_(vocab_size),
      num_words_(static_cast<size_t>(constrain::MaskWords(vocab_size))),
      options_(options),
      slots_(static_cast<size_t>(num_slots)) {}

GrammarMasks::~GrammarMasks() {
  {
    std::lock_guard lock(mutex_);
    stops_ = true;
  }
  has_work_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

// ---- compute thread -------------------------------------------------------------------------------------------------------

int GrammarMasks::num_sequences() const {
  return static_cast<int>(std::count_if(slots_.begin(), slots_.end(), [](const auto& sequence) { return sequence != nullptr; }));
}

// Nobody tells when a sequence ends; without this its grammar would stay in memory until the slot is used again.
void GrammarMasks::DropEnded() {
  for (std::shared_ptr<Sequence>& sequence : slots_) {
    if (sequence != nullptr && sequence->request.expired()) sequence = nullptr;
  }
}

void GrammarMasks::Start(int32_t slot, const std::shared_ptr<const RequestGrammar>& grammar, uint64_t sequence_id,
                         std::span<const int32_t> outputs) {
  auto sequence = std::make_shared<Sequence>();
  const size_t num_rows = static_cast<size_t>(options_.num_drafts) + 1;
  sequence->request = grammar;
  sequence->hash = grammar->hash;
  sequence->spec = grammar->spec;
  sequence->compiled = grammar->compiled;
  sequence->id = sequence_id;
  sequence->replay.assign(outputs.begin(), outputs.end());
  sequence->tokens.reserve(num_rows);
  sequence->drafts.reserve(num_rows);
  sequence->masks.resize(num_rows * num_words_);
  sequence->is_masked.resize(num_rows);
  sequence->status = GrammarStatus::kStarting;
  slots_[static_cast<size_t>(slot)] = sequence;
  collected_.push_back(std::move(sequence));
}

void GrammarMasks::Continue(int32_t slot, std::span<const int32_t> tokens, std::span<const int32_t> drafts) {
  const std::shared_ptr<Sequence>& sequence = slots_[static_cast<size_t>(slot)];
  if (!sequence->failure.empty()) return;
  sequence->tokens.assign(tokens.begin(), tokens.end());
  sequence->drafts.assign(drafts.begin(), drafts.end());
  sequence->is_ready.store(false, std::memory_order_relaxed);
  collected_.push_back(sequence);
}

void GrammarMasks::Launch() {
  if (++num_launches_ % kLaunchesPerSweep == 0 && !threads_.empty()) DropEnded();
  if (collected_.empty()) return;
  const size_t most = std::clamp<size_t>(std::thread::hardware_concurrency() / 2, 1, static_cast<size_t>(std::max(options_.max_threads, 1)));
  const size_t wanted = std::min(most, collected_.size() / (kSequencesPerThread + 1) + 1);
  while (threads_.size() < wanted) threads_.emplace_back([this] { Work(); });
  {
    std::lock_guard lock(mutex_);
    if (num_computed_ == queue_.size()) {
      queue_.swap(collected_);
      num_taken_ = num_computed_ = 0;
    } else {
      queue_.insert(queue_.end(), collected_.begin(), collected_.end());
    }
  }
  collected_.clear();
  is_running_ = true;
  if (wanted > 1) {
    has_work_.notify_all();
  } else {
    has_work_.notify_one();
  }
}

int GrammarMasks::NumUsefulDrafts(int32_t slot, int count) const {
  const std::shared_ptr<Sequence>& sequence = slots_[static_cast<size_t>(slot)];
  if (sequence == nullptr || !sequence->is_ready.load(std::memory_order_acquire)) return count;
  return std::min(count, sequence->failure.empty() ? sequence->num_legal : 0);
}

void GrammarMasks::Wait() {
  if (!is_running_) return;
  std::unique_lock lock(mutex_);
  while (TakeOne(lock)) {
  }
  is_done_.wait(lock, [&] { return num_computed_ == queue_.size(); });
  queue_.clear();
  num_taken_ = num_computed_ = 0;
  is_running_ = false;
}

std::span<const uint32_t> GrammarMasks::Mask(int32_t slot, int row) const {
  const Sequence& sequence = At(slot);
  if (sequence.is_masked[static_cast<size_t>(row)] == 0) return {};
  return std::span<const uint32_t>(sequence.masks).subspan(static_cast<size_t>(row) * num_words_, num_words_);
}

void GrammarMasks::Fail(int32_t slot, std::string message) {
  Sequence& sequence = *slots_[static_cast<size_t>(slot)];
  if (sequence.failure.empty()) sequence.failure = std::move(message);
  sequence.status = GrammarStatus::kDead;
  if (std::exchange(sequence.is_reported, true)) return;
  // The text of a grammar is the client's; its hash is enough to find it again.
  DI_LOG(warn, "sequence {} ends, its structured output cannot go on behind {} tokens of grammar {:016x}: {}", sequence.id,
         sequence.constraint != nullptr ? sequence.constraint->tokens_in_grammar() : 0, sequence.hash,
         sequence.failure);
}

// ---- mask threads ---------------------------------------------------------------------------------------------------------

void GrammarMasks::Work() {
  std::unique_lock lock(mutex_);
  for (;;) {
    has_work_.wait(lock, [&] { return stops_ || num_taken_ < queue_.size(); });
    if (stops_) return;
    while (!stops_ && TakeOne(lock)) {
    }
  }
}

bool GrammarMasks::TakeOne(std::unique_lock<std::mutex>& lock) {
  if (num_taken_ == queue_.size()) return false;
  const std::shared_ptr<Sequence> sequence = queue_[num_taken_++];
  lock.unlock();
  Compute(*sequence);
  lock.lock();
  if (++num_computed_ == queue_.size()) is_done_.notify_one();
  return true;
}

void GrammarMasks::Compute(Sequence& sequence) const {
  if (sequence.failure.empty()) {
    if (const Status status = Advance(sequence); !status.ok()) {
      // Logged by sampling, if the request still wants to know.
      sequence.failure = status.message();
      sequence.status = GrammarStatus::kDead;
      sequence.num_legal = 0;
    }
  }
  sequence.is_ready.store(true, std::memory_order_release);
}

Status GrammarMasks::FillRow(Sequence& sequence, int row) const {
  const auto at = static_cast<size_t>(row);
  sequence.is_masked[at] = 0;
  if (!sequence.constraint->constrained()) return Status::Ok();
  // Behind a draft a dead end kills nobody: the draft may be rejected.
  DI_ASSIGN_OR_RETURN(const bool is_masked,
                      sequence.constraint->Fill(std::span(sequence.masks).subspan(at * num_words_, num_words_), row > 0));
  sequence.is_masked[at] = is_masked ? 1 : 0;
  return Status::Ok();
}

Status GrammarMasks::Advance(Sequence& sequence) const {
  sequence.num_legal = 0;
  if (sequence.constraint == nullptr) {
    constrain::ConstraintOptions options;
    options.num_drafts = options_.num_drafts;
    options.step_budget_ns = options_.step_budget_ns;
    options.total_budget_ns = options_.total_budget_ns;
    if (options_.clock != nullptr) options.clock = options_.clock;
    sequence.constraint = std::make_unique<constrain::Constraint>(sequence.spec, sequence.compiled, options);
    DI_RETURN_IF_ERROR(sequence.constraint->Replay(sequence.replay));
    sequence.replay = {};
  }
  constrain::Constraint& constraint = *sequence.constraint;
  constraint.BeginStep();
  for (const int32_t token : sequence.tokens) {
    DI_ASSIGN_OR_RETURN(const bool is_accepted, constraint.Accept(token));
    if (!is_accepted) return Internal(fmt::format("the grammar rejects token {}, which was generated", token));
  }
  sequence.tokens.clear();
  sequence.status = GrammarStatus::kActive;
  DI_RETURN_IF_ERROR(FillRow(sequence, 0));
  for (const int32_t draft : sequence.drafts) {
    if (draft < 0) break;
    DI_ASSIGN_OR_RETURN(const bool is_accepted, constraint.Accept(draft));
    if (!is_accepted) break;
    ++sequence.num_legal;
    DI_RETURN_IF_ERROR(FillRow(sequence, sequence.num_legal));
  }
  if (sequence.num_legal > 0) DI_RETURN_IF_ERROR(constraint.Rollback(sequence.num_legal));
  return Status::Ok();
}

}  // namespace deepinfer::engine
