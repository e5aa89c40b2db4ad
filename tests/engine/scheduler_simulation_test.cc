// SPDX-License-Identifier: Apache-2.0
//
// Scheduler, pools and prefix cache against thousands of random requests on the checking fake model, with aborts, forks,
// priorities, shared prefixes and far too little memory. Steps run asynchronously: step N+1 is planned before step N's
// tokens are processed.
#include <deque>
#include <map>
#include <random>
#include <set>

#include <gtest/gtest.h>

#include "engine/batch_buckets.h"
#include "engine/scheduler.h"
#include "fake_step_model.h"

namespace deepinfer::engine {
namespace {

constexpr int kVocab = 24;
constexpr int32_t kEnd = 3;

struct SimulationOptions {
  SchedulerOptions scheduler;
  int num_requests = 1000;
  uint64_t seed = 1;
  int64_t max_prompt = 600;
  int64_t max_output = 80;
  bool is_async = true;
  bool with_forks = true;
  bool with_aborts = true;
  DecodeCostModel costs;  // of varlen_verify
};

struct Outcome {
  std::vector<int32_t> tokens;
  FinishReason reason = FinishReason::kNone;
};

class Simulation {
 public:
  explicit Simulation(SimulationOptions options)
      : o_(std::move(options)),
        rng_(o_.seed),
        model_(kVocab, o_.scheduler.max_model_len, o_.scheduler.num_blocks, o_.scheduler.num_state_slots(),
               o_.scheduler.prefix_cache.num_state_records),
        executor_(model_, sampler_, o_.scheduler.num_state_slots(), clock_, {o_.scheduler.num_drafts, {}}),
        scheduler_(o_.scheduler, clock_) {
    EXPECT_TRUE(o_.scheduler.Validate().ok()) << o_.scheduler.Validate().message();
    scheduler_.SetDecodeCosts(o_.costs);
  }

  void Run() {
    int added = 0;
    while (added < o_.num_requests || scheduler_.has_work() || !flight_.empty()) {
      for (int burst = added < o_.num_requests ? Uniform(0, 3) - 1 : 0; burst > 0; --burst, ++added) AddRequest();
      if (o_.with_aborts && Uniform(0, 9) == 0) AbortSomething();
      StepOnce();
      clock_.AdvanceMs(Uniform(1, 30));
      ASSERT_LT(++num_iterations_, 40 * int64_t{o_.num_requests} + 20000) << "no progress: " << scheduler_.num_waiting() << " wait, "
                                                                    << scheduler_.num_running() << " run";
      if (num_iterations_ % 16 == 0) scheduler_.CheckInvariants();
    }
    CheckDrained();
  }

  const SchedulerStats& stats() const { return scheduler_.stats(); }
  const std::map<uint64_t, Outcome>& outcomes() const { return outcomes_; }
  const std::vector<uint64_t>& plan_hashes() const { return plan_hashes_; }
  const FakeStepModel& model() const { return model_; }
  int64_t longest_wait_steps() const { return longest_wait_steps_; }

 private:
  struct Flight {
    std::unique_ptr<StepPlan> plan;
    StepResult result;
  };

  int Uniform(int low, int high) { return std::uniform_int_distribution<int>(low, high)(rng_); }

  void AddRequest() {
    SequenceSpec spec;
    spec.id = next_id_++;
    spec.arrival_ns = clock_.NowNs();
    // Prompts share prefixes of a few documents.
    const int document = Uniform(0, 3);
    const int64_t shared = Uniform(0, 2) == 0 ? 0 : Uniform(0, static_cast<int>(o_.max_prompt) - 1);
    const int64_t length = std::min<int64_t>(shared + Uniform(1, 140), o_.max_prompt);
    for (int64_t i = 0; i < length; ++i)
      spec.tokens.push_back(i < shared ? static_cast<int32_t>((document + 1) * (i + 7) * 31 % 23) : Uniform(0, kVocab - 1));
    spec.max_tokens = Uniform(1, static_cast<int>(o_.max_output));
    spec.priority = Uniform(0, 5) == 0 ? Uniform(0, 2) : 1;
    const int mode = Uniform(0, 5);
    if (mode == 0) spec.cache_mode = CacheMode::kOff;
    if (mode == 1) spec.cache_mode = CacheMode::kReplay;
    if (Uniform(0, 9) == 0) spec.chunk_checkpoints = {length / 3, length / 2};
    if (o_.with_forks && Uniform(0, 11) == 0)
      for (int i = Uniform(1, 6); i > 0; --i) spec.fork_ids.push_back(next_id_++);
    const auto expected = ExpectedTokens(spec.tokens, kVocab, kEnd, spec.max_tokens, o_.scheduler.max_model_len);
    for (uint64_t id = spec.id; id < next_id_; ++id) {
      expected_[id] = expected;
      added_at_step_[id] = num_steps_;
      live_.insert(id);
    }
    scheduler_.Add(std::move(spec));
  }

  void AbortSomething() {
    const uint64_t id = static_cast<uint64_t>(Uniform(0, static_cast<int>(next_id_)));
    const bool was_live = live_.count(id) != 0;
    EXPECT_EQ(scheduler_.Abort(id), was_live) << id;
    EXPECT_FALSE(scheduler_.Abort(id));
    TakeEvents();
    if (was_live) {
      EXPECT_EQ(outcomes_[id].reason, FinishReason::kAbort);
    }
  }

  void StepOnce() {
    auto flight = std::make_unique<Flight>();
    flight->plan = std::make_unique<StepPlan>();
    const StepKind kind = scheduler_.Schedule(*flight->plan);
    if (kind != StepKind::kNone) {
      ++num_steps_;
      CheckPlan(*flight->plan);
      executor_.Run(*flight->plan, flight->result);
      flight->result.duration_ns = flight->plan->num_tokens * 100'000;
      flight_.push_back(std::move(flight));
    }
    // A decode step stays open while the next one is planned.
    const size_t open = kind == StepKind::kDecode && o_.is_async ? 1 : 0;
    while (flight_.size() > open) {
      scheduler_.Process(*flight_.front()->plan, flight_.front()->result);
      flight_.pop_front();
      TakeEvents();
    }
  }

  void CheckPlan(const StepPlan& plan) {
    int64_t tokens = 0;
    std::set<int32_t> slots;
    for (const StepRow& row : plan.rows) {
      tokens += row.num_tokens;
      EXPECT_TRUE(slots.insert(row.state_slot).second) << "two rows write one slot";
      if (plan.kind == StepKind::kDecode) {
        EXPECT_LE(row.num_tokens, 1 + o_.scheduler.num_drafts);
        EXPECT_LE(row.num_ids, 1);
      } else {
        EXPECT_EQ(row.num_ids, row.num_tokens);
      }
      // Nobody writes a block that has another owner or a key.
      const Sequence& seq = *row.sequence;
      for (int64_t p = std::max(row.start, row.write_floor); p < row.start + row.num_tokens; ++p) {
        const int32_t block = seq.table.at(static_cast<size_t>(p / kTokensPerBlock));
        ASSERT_EQ(scheduler_.blocks().ref_count(block), 1) << "block " << block << " is shared and written";
        ASSERT_FALSE(scheduler_.blocks().is_keyed(block));
      }
      if (plan.kind == StepKind::kPrefill && !seen_.count(seq.id)) {
        seen_.insert(seq.id);
        longest_wait_steps_ = std::max(longest_wait_steps_, num_steps_ - added_at_step_[seq.id]);
      }
    }
    EXPECT_EQ(tokens, plan.num_tokens);
    EXPECT_LE(tokens, o_.scheduler.max_num_batched_tokens);
    EXPECT_LE(static_cast<int>(plan.rows.size()), o_.scheduler.max_num_seqs);
    EXPECT_LE(scheduler_.num_running(), o_.scheduler.max_num_seqs);
    uint64_t hash = static_cast<uint64_t>(plan.kind);
    for (const StepRow& row : plan.rows) {
      hash = HashToken(hash, static_cast<int32_t>(row.sequence_id));
      hash = HashToken(hash, static_cast<int32_t>(row.start));
      hash = HashToken(hash, row.state_slot);
    }
    for (const SlotOp& op : plan.ops) hash = HashToken(HashToken(hash, static_cast<int32_t>(op.kind)), op.from * 1000 + op.to);
    for (const int32_t block : plan.blocks) hash = HashToken(hash, block);
    plan_hashes_.push_back(hash);
  }

  void TakeEvents() {
    std::vector<SequenceEvent> events;
    scheduler_.TakeEvents(events);
    for (const SequenceEvent& event : events) {
      Outcome& outcome = outcomes_[event.id];
      ASSERT_EQ(outcome.reason, FinishReason::kNone) << "sequence " << event.id << " goes on after its end";
      if (event.token >= 0) {
        outcome.tokens.push_back(event.token);
        EXPECT_EQ(event.num_output, static_cast<int64_t>(outcome.tokens.size()));
        EXPECT_EQ(event.cached_tokens >= 0, outcome.tokens.size() == 1);
      }
      outcome.reason = event.finish_reason;
      if (outcome.reason == FinishReason::kNone) continue;
      EXPECT_EQ(live_.erase(event.id), 1u);
      const std::vector<int32_t>& expected = expected_[event.id];
      if (outcome.reason == FinishReason::kStop || outcome.reason == FinishReason::kLength) {
        ASSERT_EQ(outcome.tokens, expected) << "sequence " << event.id;
        EXPECT_EQ(outcome.reason == FinishReason::kStop, expected.back() == kEnd);
      } else {
        ASSERT_LE(outcome.tokens.size(), expected.size());
        ASSERT_TRUE(std::equal(outcome.tokens.begin(), outcome.tokens.end(), expected.begin())) << "sequence " << event.id;
      }
    }
  }

  void CheckDrained() {
    scheduler_.CheckInvariants();
    EXPECT_TRUE(live_.empty());
    EXPECT_EQ(outcomes_.size(), expected_.size());
    EXPECT_EQ(scheduler_.blocks().num_used(), 0);
    EXPECT_EQ(scheduler_.slots().num_used(), 0);
    EXPECT_EQ(scheduler_.prefix_cache().num_pending_records(), 0);
    EXPECT_EQ(scheduler_.num_waiting() + scheduler_.num_running() + scheduler_.num_prompted(), 0);
    EXPECT_EQ(stats().num_added, static_cast<int64_t>(expected_.size()));
    EXPECT_EQ(stats().num_finished, stats().num_added);
    int64_t tokens = 0;
    for (const auto& [id, outcome] : outcomes_) tokens += static_cast<int64_t>(outcome.tokens.size());
    EXPECT_EQ(stats().num_output_tokens, tokens);
  }

  SimulationOptions o_;
  std::mt19937_64 rng_;
  FakeClock clock_;
  ArgMaxSampler sampler_;
  FakeStepModel model_;
  StepExecutor executor_;
  Scheduler scheduler_;
  std::deque<std::unique_ptr<Flight>> flight_;
  uint64_t next_id_ = 1;
  int64_t num_iterations_ = 0, num_steps_ = 0, longest_wait_steps_ = 0;
  std::map<uint64_t, std::vector<int32_t>> expected_;
  std::map<uint64_t, Outcome> outcomes_;
  std::map<uint64_t, int64_t> added_at_step_;
  std::set<uint64_t> live_, seen_;
  std::vector<uint64_t> plan_hashes_;
};

SimulationOptions Crowded(uint64_t seed) {
  SimulationOptions o;
  o.seed = seed;
  o.scheduler.max_model_len = 640;
  o.scheduler.max_num_batched_tokens = 256;
  o.scheduler.max_num_seqs = 12;
  o.scheduler.num_blocks = 24;  // two or three long requests fill it
  o.scheduler.end_token_ids = {kEnd};
  o.scheduler.decoder_keep = 140;
  o.scheduler.cache_mode = CacheMode::kExact;
  o.scheduler.prefix_cache.state_every_blocks = 1;
  o.scheduler.prefix_cache.num_state_records = 12;
  return o;
}

class SchedulerSimulation : public ::testing::TestWithParam<int> {};

TEST_P(SchedulerSimulation, CrowdedCacheExactMode) {
  Simulation simulation(Crowded(static_cast<uint64_t>(GetParam())));
  simulation.Run();
  const SchedulerStats& stats = simulation.stats();
  EXPECT_GT(stats.num_preempted, 10);
  EXPECT_GT(stats.num_cached_tokens, 1000);
  EXPECT_GT(stats.num_forked, 50);
  EXPECT_GT(stats.num_aborted, 50);
  EXPECT_GT(stats.num_block_copies, 0);
  EXPECT_GT(simulation.model().num_loads, 10);
}

TEST_P(SchedulerSimulation, CrowdedCacheReplayMode) {
  SimulationOptions o = Crowded(100 + static_cast<uint64_t>(GetParam()));
  o.scheduler.cache_mode = CacheMode::kReplay;
  o.scheduler.prefix_cache.num_state_records = 0;
  Simulation simulation(o);
  simulation.Run();
  EXPECT_GT(simulation.stats().num_replayed_tokens, 1000);
  EXPECT_EQ(simulation.model().num_loads, 0);
}

TEST_P(SchedulerSimulation, FixedAttemptIntervalsAndNoPressure) {
  SimulationOptions o = Crowded(200 + static_cast<uint64_t>(GetParam()));
  o.scheduler.alternation.attempt_interval = 7;
  o.scheduler.alternation.any_attempt_interval = 10;
  o.scheduler.num_blocks = 200;
  Simulation simulation(o);
  simulation.Run();
  EXPECT_EQ(simulation.stats().num_preempted, 0);
}

TEST_P(SchedulerSimulation, SynchronousAndStoppingPreempted) {
  SimulationOptions o = Crowded(300 + static_cast<uint64_t>(GetParam()));
  o.is_async = false;
  o.scheduler.stop_preempted = true;
  o.num_requests = 500;
  Simulation simulation(o);
  simulation.Run();
  int stopped = 0;
  for (const auto& [id, outcome] : simulation.outcomes()) stopped += outcome.reason == FinishReason::kInsufficientResource ? 1 : 0;
  EXPECT_EQ(stopped, simulation.stats().num_preempted);
}

TEST_P(SchedulerSimulation, Drafts) {
  for (const int num_drafts : {1, 5}) {
    for (const CacheMode mode : {CacheMode::kExact, CacheMode::kReplay}) {
      SimulationOptions o = Crowded(400 + static_cast<uint64_t>(GetParam()));
      o.scheduler.num_drafts = num_drafts;
      o.scheduler.cache_mode = mode;
      o.is_async = GetParam() != 3;
      Simulation simulation(o);
      simulation.Run();
      const SchedulerStats& stats = simulation.stats();
      EXPECT_GT(stats.num_preempted, 3);
      EXPECT_GT(simulation.model().num_draft_rows, 1000);
      // Of drafts right with probability 3/4 and independent of each other: 3/4 of one, 0.46 of five in a row.
      const double accepted = static_cast<double>(stats.num_accepted_drafts) / static_cast<double>(stats.num_verified_drafts);
      EXPECT_NEAR(accepted, num_drafts == 1 ? 0.75 : 0.46, 0.1);
    }
  }
}

TEST_P(SchedulerSimulation, DraftLengthsByCost) {
  // Rows that cost nothing, rows that cost as much as a step, and something between with a draft pass that costs too.
  struct Case {
    double per_row_ms, draft_ms;
    double least_verified, most_verified;  // drafts per decode row
    bool pauses;
  };
  for (const Case& c : {Case{0.0, 0.0, 3.5, 5.0, false}, Case{0.2, 0.2, 0.5, 4.0, false}, Case{3.0, 3.0, 0.0, 0.5, true}}) {
    SCOPED_TRACE(c.per_row_ms);
    SimulationOptions o = Crowded(500 + static_cast<uint64_t>(GetParam()));
    o.scheduler.num_drafts = 5;
    o.scheduler.varlen_verify = true;
    o.is_async = GetParam() != 2;
    const int64_t most = o.scheduler.max_num_seqs * 6;
    o.costs = DecodeCostModel(CostCurve({{1, 1.0 + c.per_row_ms}, {most, 1.0 + c.per_row_ms * static_cast<double>(most)}}),
                              CostCurve({{1, c.draft_ms + 1e-9}}), BatchBuckets(most, 8));
    Simulation simulation(o);
    simulation.Run();
    const SchedulerStats& stats = simulation.stats();
    const double verified = static_cast<double>(stats.num_verified_drafts) / static_cast<double>(stats.num_decode_rows);
    EXPECT_GE(verified, c.least_verified);
    EXPECT_LE(verified, c.most_verified);
    EXPECT_EQ(stats.num_draftless_steps > 0, c.pauses) << stats.num_draftless_steps;
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, SchedulerSimulation, ::testing::Values(1, 2, 3));

TEST(SchedulerDeterminism, SameTraceSamePlans) {
  Simulation a(Crowded(7)), b(Crowded(7));
  a.Run();
  b.Run();
  EXPECT_EQ(a.plan_hashes(), b.plan_hashes());
  EXPECT_GT(a.plan_hashes().size(), 1000u);
}

}  // namespace
}  // namespace deepinfer::engine
