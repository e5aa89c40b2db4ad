// SPDX-License-Identifier: Apache-2.0
//
// Each rule of the scheduler by itself (engine.md 6, 7, 10 and 24.1 of the specification), without a model.
#include "engine/scheduler.h"

#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/step_vote.h"

namespace deepinfer::engine {
namespace {

using ::testing::ElementsAre;

constexpr int32_t kEnd = 1;
constexpr int32_t kVocab = 100;
constexpr int32_t kPad = kVocab + 1, kImage = kVocab + 2;

SchedulerOptions Options() {
  SchedulerOptions o;
  o.max_model_len = 1024;
  o.max_num_batched_tokens = 512;
  o.max_num_seqs = 8;
  o.num_blocks = 65;
  o.end_token_ids = {kEnd};
  o.vocab_size = kVocab;
  o.alternation.max_wait_ns = 0;
  return o;
}

// Drives a scheduler with made-up tokens, synchronously unless told otherwise.
struct Driver {
  explicit Driver(SchedulerOptions options = Options()) : scheduler(Checked(std::move(options)), clock) { clock.AdvanceMs(1); }
  static SchedulerOptions Checked(SchedulerOptions options) {
    const Status status = options.Validate();
    EXPECT_TRUE(status.ok()) << status.message();
    return options;
  }

  SequenceSpec Spec(int64_t length, int64_t max_tokens = 16) {
    SequenceSpec spec;
    spec.id = next_id++;
    spec.tokens.assign(static_cast<size_t>(length), 5);
    spec.max_tokens = max_tokens;
    spec.arrival_ns = clock.NowNs();
    return spec;
  }
  uint64_t Add(int64_t length, int64_t max_tokens = 16, int priority = 0) {
    SequenceSpec spec = Spec(length, max_tokens);
    spec.priority = priority;
    const uint64_t id = spec.id;
    scheduler.Add(std::move(spec));
    return id;
  }
  StepKind Plan() { return scheduler.Schedule(plan); }
  void Finish(int32_t token = 7, int64_t duration_ms = 0) { Process(plan, token, duration_ms); }
  void Process(const StepPlan& p, int32_t token = 7, int64_t duration_ms = 0) {
    StepResult result;
    result.Reset(p.rows.size(), 1);
    for (size_t i = 0; i < p.rows.size(); ++i) {
      result.tokens[i] = token;
      result.num_tokens[i] = 1;
    }
    result.duration_ns = duration_ms * 1'000'000;
    scheduler.Process(p, result);
    scheduler.TakeEvents(events);
    scheduler.CheckInvariants();
  }
  StepKind Step(int32_t token = 7) {
    const StepKind kind = Plan();
    if (kind != StepKind::kNone) Finish(token);
    scheduler.TakeEvents(events);
    return kind;
  }
  void Drain(int limit = 10000) {
    while (scheduler.has_work() && limit-- > 0) Step();
    scheduler.TakeEvents(events);
    EXPECT_FALSE(scheduler.has_work());
    EXPECT_EQ(scheduler.blocks().num_used(), 0);
    EXPECT_EQ(scheduler.slots().num_used(), 0);
  }
  std::vector<uint64_t> Rows() const {
    std::vector<uint64_t> ids;
    for (const StepRow& row : plan.rows) ids.push_back(row.sequence_id);
    return ids;
  }
  FinishReason ReasonOf(uint64_t id) const {
    FinishReason reason = FinishReason::kNone;
    for (const SequenceEvent& event : events)
      if (event.id == id && event.finish_reason != FinishReason::kNone) reason = event.finish_reason;
    return reason;
  }
  int64_t TokensOf(uint64_t id) const {
    int64_t count = 0;
    for (const SequenceEvent& event : events) count += event.id == id && event.token >= 0 ? 1 : 0;
    return count;
  }

  FakeClock clock;
  Scheduler scheduler;
  StepPlan plan;
  std::vector<SequenceEvent> events;
  uint64_t next_id = 1;
};

// ---- step types ---------------------------------------------------------------------------------------------------------

TEST(Scheduler, AStepIsAllPrefillOrAllDecode) {
  Driver d;
  d.Add(100);
  d.Add(50);
  EXPECT_EQ(d.Plan(), StepKind::kPrefill);
  EXPECT_THAT(d.Rows(), ElementsAre(1, 2));
  d.Finish();
  d.Add(70);
  EXPECT_EQ(d.Plan(), StepKind::kDecode);  // at least one decode step after each prefill step
  EXPECT_THAT(d.Rows(), ElementsAre(1, 2));
  d.Finish();
  EXPECT_EQ(d.Plan(), StepKind::kPrefill);
  EXPECT_THAT(d.Rows(), ElementsAre(3));
  d.Finish();
  d.Drain();
}

TEST(Scheduler, LongPromptsAreChunkedBetweenDecodeSteps) {
  Driver d;
  d.Add(10, 100);
  d.Step();
  d.Add(1000);
  std::vector<std::pair<StepKind, int64_t>> steps;
  for (int i = 0; i < 4; ++i) {
    const StepKind kind = d.Plan();
    steps.emplace_back(kind, d.plan.num_tokens);
    d.Finish();
  }
  EXPECT_THAT(steps, ElementsAre(std::pair(StepKind::kDecode, 1), std::pair(StepKind::kPrefill, 512), std::pair(StepKind::kDecode, 1),
                                 std::pair(StepKind::kPrefill, 488)));
  d.Drain();
}

TEST(Scheduler, OnePartialPromptPerStepGoesOnFirst) {
  Driver d;
  d.Add(300);
  d.Add(400);
  d.Add(20);
  d.Plan();
  EXPECT_THAT(d.Rows(), ElementsAre(1, 2));
  EXPECT_EQ(d.plan.rows[1].num_tokens, 212);
  EXPECT_FALSE(d.plan.rows[1].is_last_chunk);
  d.Finish();
  EXPECT_EQ(d.Step(), StepKind::kDecode);
  d.Plan();
  EXPECT_THAT(d.Rows(), ElementsAre(2, 3));
  EXPECT_EQ(d.plan.rows[0].start, 212);
  d.Finish();
  d.Drain();
}

TEST(Scheduler, WithoutChunkingPromptsWaitForARoomyStep) {
  SchedulerOptions o = Options();
  o.chunked_prefill = false;
  o.max_num_batched_tokens = 1024;
  Driver d(o);
  d.Add(800);
  d.Add(500);
  d.Plan();
  EXPECT_THAT(d.Rows(), ElementsAre(1));
  d.Finish();
  d.Drain();
}

TEST(Scheduler, SumOfLengthsAndLookaheadLimitAStep) {
  SchedulerOptions o = Options();
  o.max_sum_prefill_len = 1100;
  Driver d(o);
  d.Add(900, 1);
  d.Step();  // a chunk
  d.Add(300, 1);
  d.Plan();
  EXPECT_THAT(d.Rows(), ElementsAre(1));  // 900 + 300 is too much, although only 388 tokens are left
  d.Finish();
  d.Drain();

  o = Options();
  o.lookahead_tokens = 100;
  Driver e(o);
  e.Add(450, 1);
  e.Add(900, 1);
  e.Plan();
  EXPECT_THAT(e.Rows(), ElementsAre(1));  // 62 tokens are less than a chunk that shares a step
  e.Finish();
  e.Drain();
}

TEST(Scheduler, CheckpointsEndChunks) {
  Driver d;
  SequenceSpec spec = d.Spec(400);
  spec.chunk_checkpoints = {100, 256};
  d.scheduler.Add(std::move(spec));
  std::vector<int64_t> sizes;
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(d.Plan(), StepKind::kPrefill);
    sizes.push_back(d.plan.num_tokens);
    d.Finish();
  }
  EXPECT_THAT(sizes, ElementsAre(100, 156, 144));
  d.Drain();
}

TEST(StepVote, AdaptiveRule) {
  AlternationOptions o;
  o.max_num_seqs = 16;
  const auto ask = [&](int64_t decode_step, bool wants, int64_t running, int64_t free, int64_t wait_ms) {
    const StepVote vote{wants, running, free, wait_ms * 1'000'000};
    return ShouldPrefill(o, decode_step, {&vote, 1});
  };
  EXPECT_FALSE(ask(0, false, 0, 16, 0));
  EXPECT_TRUE(ask(0, true, 0, 16, 0));      // nothing runs
  EXPECT_FALSE(ask(0, true, 4, 12, 1000));  // a decode step comes first
  EXPECT_TRUE(ask(1, true, 14, 2, 0));      // an eighth of the places is free
  EXPECT_FALSE(ask(1, true, 15, 1, 50));
  EXPECT_TRUE(ask(1, true, 15, 1, 51));     // or somebody waits for long
}

TEST(StepVote, FixedPoints) {
  AlternationOptions o;
  o.attempt_interval = 70;
  const StepVote yes{true, 1, 1, 0}, no{false, 1, 1, 0};
  const StepVote all[] = {yes, yes}, any[] = {yes, no}, none[] = {no, no};
  EXPECT_TRUE(ShouldPrefill(o, 0, all));
  EXPECT_TRUE(ShouldPrefill(o, 140, all));
  EXPECT_FALSE(ShouldPrefill(o, 69, all));
  EXPECT_FALSE(ShouldPrefill(o, 70, any));
  EXPECT_TRUE(ShouldPrefill(o, 100, any));
  EXPECT_FALSE(ShouldPrefill(o, 0, any));  // 0 is no ANY point
  EXPECT_TRUE(ShouldPrefill(o, 700, any)); // both: ANY
  EXPECT_FALSE(ShouldPrefill(o, 700, none));
}

// Ranks that decide together from their votes: none waits too long, the group never stands still.
void SimulateRanks(bool fixed_points, uint64_t seed) {
  SchedulerOptions o = Options();
  o.max_num_seqs = 4;
  o.num_blocks = 17;
  o.alternation.attempt_interval = fixed_points ? 70 : 0;
  std::vector<std::unique_ptr<Driver>> ranks;
  for (int r = 0; r < 4; ++r) ranks.push_back(std::make_unique<Driver>(o));
  std::mt19937_64 rng(seed);
  int64_t decode_step = 0, idle_decodes = 0, longest_wait = 0;
  bool previous_was_prefill = false;
  std::vector<int64_t> wait(4, 0);
  std::vector<bool> has_partial(4);
  int64_t num_full = 0, num_partial_above = 0;  // what a rule without a way out would stand still at
  constexpr int kSteps = 100000;
  bool any_work = true;
  for (int step = 0; step < kSteps || any_work; ++step) {
    ASSERT_LT(step, kSteps + 3000) << "the rest never ends";
    // Rank 0 is busy, rank 3 rarely has work.
    for (size_t r = 0; r < 4 && step < kSteps; ++r)
      if (rng() % (20 + 300 * r) == 0 && ranks[r]->scheduler.num_sequences() < 12)
        ranks[r]->Add(static_cast<int64_t>(1 + rng() % (rng() % 2 == 0 ? 1000 : 60)), static_cast<int64_t>(1 + rng() % 60));
    std::vector<StepVote> votes;
    bool any_running = false;
    any_work = false;
    for (size_t r = 0; r < 4; ++r) {
      const Scheduler& s = ranks[r]->scheduler;
      votes.push_back(ranks[r]->scheduler.Vote());
      any_running |= votes.back().num_running > 0;
      any_work |= s.has_work();
      num_full += s.num_running() == o.max_num_seqs && s.num_waiting() > 0 ? 1 : 0;
      num_partial_above += has_partial[r] && s.blocks().num_used() * 10 > s.blocks().num_usable() * 9 ? 1 : 0;
    }
    bool is_prefill = ShouldPrefill(ranks[0]->scheduler.options().alternation, decode_step, votes);
    ASSERT_FALSE(is_prefill && any_running && !fixed_points && previous_was_prefill) << "a decode step is missing";
    if (is_prefill) {
      bool has_rows = false;
      std::vector<bool> planned(4);
      for (size_t r = 0; r < 4; ++r) {
        planned[r] = votes[r].wants_prefill && ranks[r]->scheduler.PlanPrefill(ranks[r]->plan);
        has_rows |= planned[r];
      }
      is_prefill = has_rows;
      for (size_t r = 0; r < 4 && has_rows; ++r) {
        if (planned[r]) {
          has_partial[r] = !ranks[r]->plan.rows.back().is_last_chunk;
          ranks[r]->Finish();
        } else {
          ranks[r]->scheduler.SkipPrefill();
        }
      }
    }
    bool has_rows = is_prefill;
    if (!is_prefill) {
      for (auto& rank : ranks) {
        if (rank->scheduler.PlanDecode(rank->plan)) {
          rank->Finish(static_cast<int32_t>(2 + rng() % 50));
          has_rows = true;
        }
      }
    }
    decode_step = is_prefill ? 0 : decode_step + 1;
    previous_was_prefill = is_prefill;
    for (size_t r = 0; r < 4; ++r) {
      ASSERT_EQ(ranks[r]->scheduler.decode_step(), decode_step);
      ranks[r]->events.clear();
      wait[r] = votes[r].wants_prefill && !is_prefill ? wait[r] + 1 : 0;
      longest_wait = std::max(longest_wait, wait[r]);
    }
    idle_decodes = any_work && !has_rows ? idle_decodes + 1 : 0;
    ASSERT_LE(idle_decodes, 100) << "the group stands still";
  }
  EXPECT_LE(longest_wait, 100);
  EXPECT_GT(num_full, 100);
  EXPECT_GT(num_partial_above, 100);
  for (auto& rank : ranks) {
    EXPECT_GT(rank->scheduler.stats().num_finished, 10);
    EXPECT_EQ(rank->scheduler.stats().num_finished, rank->scheduler.stats().num_added);
    EXPECT_EQ(rank->scheduler.blocks().num_used(), 0);
  }
}

TEST(StepVote, FourRanksFixedPoints) {
  for (uint64_t seed = 0; seed < 2; ++seed) SimulateRanks(true, seed);
}
TEST(StepVote, FourRanksAdaptive) {
  for (uint64_t seed = 0; seed < 2; ++seed) SimulateRanks(false, seed);
}

// ---- decode gap ---------------------------------------------------------------------------------------------------------

TEST(Scheduler, ChunksAreSizedForTheDecodeGap) {
  Driver d;
  d.Add(512, 200);
  d.Plan();
  d.Finish(7, 512);  // one millisecond a token
  EXPECT_EQ(d.scheduler.DecodeGapTokens(), 200);
  d.Add(1000);
  EXPECT_EQ(d.Step(), StepKind::kDecode);
  d.Plan();
  EXPECT_EQ(d.plan.num_tokens, 200);
  d.Finish(7, 2000);
  for (int i = 0; i < 6; ++i) {
    if (d.Plan() == StepKind::kPrefill) {
      EXPECT_GE(d.plan.num_tokens, 128);
      d.Finish(7, d.plan.num_tokens);
    } else {
      d.Finish();
    }
  }
  d.Drain();
}

TEST(Scheduler, MedianOfTheLastNinePrefillStepsAndTheFloorOf128) {
  SchedulerOptions o = Options();
  o.max_decode_gap_ms = 100;
  Driver d(o);
  for (int i = 0; i < 9; ++i) {
    d.Add(100, 1);
    d.Plan();
    d.Finish(7, i < 4 ? 1000 : 50);
  }
  EXPECT_EQ(d.scheduler.DecodeGapTokens(), 200);
  for (int i = 0; i < 5; ++i) {
    d.Add(100, 1);
    d.Plan();
    d.Finish(7, 1000);  // 10 ms a token: 10 tokens would last 100 ms
  }
  EXPECT_EQ(d.scheduler.DecodeGapTokens(), 128);
  d.Add(500, 1);
  d.Plan();
  EXPECT_EQ(d.plan.num_tokens, 500);  // nothing decodes, so nobody waits
  d.Finish();
  d.Drain();
}

// ---- images -------------------------------------------------------------------------------------------------------------

std::vector<int32_t> WithImages(std::mt19937_64& rng, int64_t length, int max_run) {
  std::vector<int32_t> tokens;
  while (static_cast<int64_t>(tokens.size()) < length) {
    for (uint64_t i = rng() % 200; i > 0; --i) tokens.push_back(5);
    tokens.push_back(kImage);
    for (uint64_t i = rng() % static_cast<uint64_t>(max_run); i > 0; --i) tokens.push_back(kPad);
    tokens.push_back(6);
  }
  return tokens;
}

TEST(Scheduler, ImageRunsAreNeverCut) {
  std::mt19937_64 rng(3);
  int num_enlarged = 0, num_shortened = 0;
  for (int round = 0; round < 60; ++round) {
    SchedulerOptions o = Options();
    o.max_model_len = 4096;
    o.max_num_batched_tokens = 128 + static_cast<int64_t>(rng() % 200);
    o.num_blocks = 200;
    Driver d(o);
    const int max_run = round % 3 == 0 ? 500 : 100;  // also runs longer than the budget
    for (int i = 0; i < 3; ++i) {
      SequenceSpec spec = d.Spec(1);
      spec.tokens = WithImages(rng, 600, max_run);
      d.scheduler.Add(std::move(spec));
    }
    int limit = 1000;
    while (d.scheduler.has_work() && --limit > 0) {
      if (d.Plan() == StepKind::kNone) continue;
      for (const StepRow& row : d.plan.rows) {
        const int64_t end = row.start + row.num_tokens;
        const std::vector<int32_t>& tokens = row.sequence->tokens;
        EXPECT_FALSE(IsInsideImage(tokens, end, ImageTokens::ForVocab(kVocab))) << end;
        // A chunk that ends early ends in front of the run that did not fit.
        if (d.plan.kind == StepKind::kPrefill && !row.is_last_chunk && d.plan.num_tokens < o.max_num_batched_tokens) {
          EXPECT_EQ(tokens[static_cast<size_t>(end)], kImage);
          ++num_shortened;
        }
      }
      if (d.plan.num_tokens > o.max_num_batched_tokens) {
        // Longer than the budget is only one run alone in an empty batch.
        ASSERT_EQ(d.plan.rows.size(), 1u);
        const StepRow& row = d.plan.rows[0];
        const std::vector<int32_t>& tokens = row.sequence->tokens;
        EXPECT_EQ(tokens[static_cast<size_t>(row.start)], kImage);
        for (int64_t p = row.start + 1; p < row.start + row.num_tokens; ++p) ASSERT_EQ(tokens[static_cast<size_t>(p)], kPad) << p;
        ++num_enlarged;
      }
      d.Finish();
    }
    EXPECT_GT(limit, 0);
  }
  EXPECT_GT(num_enlarged, 20);
  EXPECT_GT(num_shortened, 100);
}

TEST(Scheduler, UnschedulableHeadIsPassedOverForASecond) {
  Driver d;
  SequenceSpec spec = d.Spec(10);
  spec.is_schedulable = false;
  d.scheduler.Add(std::move(spec));
  d.Add(20, 1);
  d.Plan();
  EXPECT_THAT(d.Rows(), ElementsAre(2));
  d.Finish();
  d.clock.AdvanceMs(1001);
  d.Add(30, 1);
  EXPECT_EQ(d.Plan(), StepKind::kNone);
  d.scheduler.SetSchedulable(1, true);
  d.Plan();
  EXPECT_THAT(d.Rows(), ElementsAre(1, 3));
  d.Finish();
  d.Drain();
}

// ---- order --------------------------------------------------------------------------------------------------------------

TEST(Scheduler, EqualPrioritiesAreFirstComeFirstServed) {
  SchedulerOptions o = Options();
  o.max_num_seqs = 1;
  Driver d(o);
  for (int i = 0; i < 6; ++i) {
    d.Add(10 * (6 - i), 2);
    d.clock.AdvanceMs(1);
  }
  d.Drain();
  std::vector<uint64_t> finished;
  for (const SequenceEvent& event : d.events)
    if (event.finish_reason != FinishReason::kNone) finished.push_back(event.id);
  EXPECT_THAT(finished, ElementsAre(1, 2, 3, 4, 5, 6));
}

TEST(Scheduler, SmallerPriorityGoesFirst) {
  Driver d;
  d.Add(10, 4, 2);
  d.Add(10, 4, 0);
  d.Add(10, 4, 1);
  d.Plan();
  EXPECT_THAT(d.Rows(), ElementsAre(2, 3, 1));
  d.Finish();
  d.Drain();
}

TEST(Scheduler, StarvedRequestsAreServedBeforeEveryPriority) {
  SchedulerOptions o = Options();
  o.max_num_seqs = 1;
  Driver d(o);
  const uint64_t poor = d.Add(10, 2, 2);
  d.Add(10, 2, 0);
  int64_t steps = 0;
  while (d.ReasonOf(poor) == FinishReason::kNone && ++steps < 1000) {
    // Something more urgent is always there.
    if (d.scheduler.num_waiting() < 2) d.Add(10, 2, 0);
    d.Step();
    d.clock.AdvanceMs(500);
  }
  EXPECT_GE(steps, 60);
  EXPECT_LE(steps, 66);
  d.Drain();
}

TEST(Scheduler, BatchIsOrderedByLengthThenArrival) {
  Driver d;
  d.Add(50);
  d.Add(100);
  d.Add(50);
  d.Add(100);
  d.Step();
  EXPECT_EQ(d.Plan(), StepKind::kDecode);
  EXPECT_THAT(d.Rows(), ElementsAre(2, 4, 1, 3));
  d.Finish();
  d.Drain();
}

TEST(Scheduler, PrefillWaitsAboveTheWatermark) {
  SchedulerOptions o = Options();
  o.num_blocks = 11;
  o.max_num_seqs = 20;
  o.max_num_batched_tokens = 2048;
  for (const int num : {9, 10}) {
    Driver d(o);
    for (int i = 0; i < num; ++i) d.Add(100, 5);
    d.Step();
    d.Step();
    EXPECT_EQ(d.scheduler.num_running(), num);
    d.Add(10);
    EXPECT_EQ(d.scheduler.Vote().wants_prefill, num == 9) << "9 of 10 blocks are not above 0.9";
    d.Drain();
  }
}

// ---- ends ---------------------------------------------------------------------------------------------------------------

TEST(Scheduler, StopChecksInOrder) {
  Driver d;
  const uint64_t eos = d.Add(10);
  d.Step(kEnd);
  EXPECT_EQ(d.ReasonOf(eos), FinishReason::kStop);
  EXPECT_TRUE(d.events.back().is_stop_token);

  SequenceSpec ignoring = d.Spec(10, 3);
  ignoring.ignore_eos = true;
  const uint64_t length = ignoring.id;
  d.scheduler.Add(std::move(ignoring));
  for (int i = 0; i < 3; ++i) d.Step(kEnd);
  EXPECT_EQ(d.ReasonOf(length), FinishReason::kLength);
  EXPECT_EQ(d.TokensOf(length), 3);

  SequenceSpec stops = d.Spec(10);
  stops.stop_token_ids = {9};
  const uint64_t stop = stops.id;
  d.scheduler.Add(std::move(stops));
  d.Step(8);
  d.Step(9);
  EXPECT_EQ(d.ReasonOf(stop), FinishReason::kStop);

  // The last token may lie one behind the context: it is never forwarded.
  const uint64_t full = d.Add(1024, 100);
  for (int i = 0; i < 4; ++i) d.Step();
  EXPECT_EQ(d.ReasonOf(full), FinishReason::kLength);
  EXPECT_EQ(d.TokensOf(full), 1);
  d.Drain();
}

TEST(Scheduler, TooLongPromptsEndWithoutRunning) {
  SchedulerOptions o = Options();
  o.num_blocks = 5;
  Driver d(o);
  const uint64_t longer = d.Add(1025), never = d.Add(600), fits = d.Add(512, 1);
  d.Drain();
  EXPECT_EQ(d.ReasonOf(longer), FinishReason::kPromptLengthExceeded);
  EXPECT_EQ(d.ReasonOf(never), FinishReason::kPromptLengthExceeded);
  EXPECT_EQ(d.ReasonOf(fits), FinishReason::kLength);
  EXPECT_EQ(d.TokensOf(longer) + d.TokensOf(never), 0);
}

TEST(Scheduler, AbortWaitingRunningInFlightFinished) {
  Driver d;
  const uint64_t waiting = d.Add(600), running = d.Add(10);
  EXPECT_TRUE(d.scheduler.Abort(waiting));
  EXPECT_FALSE(d.scheduler.Abort(waiting));
  EXPECT_FALSE(d.scheduler.Abort(999));
  d.Step();
  EXPECT_TRUE(d.scheduler.Abort(running));
  EXPECT_EQ(d.scheduler.blocks().num_used(), 0);

  // In flight: the event comes at once, the caches go when the step has been processed, its token is dropped.
  const uint64_t flying = d.Add(600);
  d.Plan();
  EXPECT_TRUE(d.scheduler.Abort(flying));
  EXPECT_GT(d.scheduler.blocks().num_used(), 0);
  d.scheduler.TakeEvents(d.events);
  EXPECT_EQ(d.ReasonOf(flying), FinishReason::kAbort);
  d.Finish();
  EXPECT_EQ(d.scheduler.blocks().num_used(), 0);
  EXPECT_FALSE(d.scheduler.Abort(flying));
  EXPECT_EQ(d.TokensOf(flying), 0);
  d.Drain();
  EXPECT_EQ(d.scheduler.stats().num_aborted, 3);
}

TEST(Scheduler, OneFailedRowEndsOneRequest) {
  Driver d;
  d.Add(10);
  d.Add(20);
  d.Plan();
  StepResult result;
  result.Reset(2, 1);
  result.tokens = {7, 7};
  result.num_tokens = {1, 0};
  result.outcome[1] = RowOutcome::kInvalidLogits;
  d.scheduler.Process(d.plan, result);
  d.scheduler.TakeEvents(d.events);
  EXPECT_EQ(d.ReasonOf(2), FinishReason::kInvalidLogits);
  EXPECT_EQ(d.ReasonOf(1), FinishReason::kNone);
  EXPECT_EQ(d.scheduler.num_running(), 1);
  d.Drain();
}

// ---- asynchronous steps -------------------------------------------------------------------------------------------------

TEST(Scheduler, RowsFeedForwardWhileAStepIsInFlight) {
  Driver d;
  d.Add(127, 10);
  d.Step();
  StepPlan first, second;
  EXPECT_EQ(d.scheduler.Schedule(first), StepKind::kDecode);
  ASSERT_EQ(first.rows.size(), 1u);
  EXPECT_EQ(first.rows[0].num_ids, 1);
  EXPECT_EQ(first.rows[0].previous_row, -1);
  EXPECT_EQ(first.rows[0].start, 127);
  EXPECT_EQ(d.scheduler.Schedule(second), StepKind::kDecode);
  EXPECT_EQ(second.rows[0].num_ids, 0);
  EXPECT_EQ(second.rows[0].previous_row, 0);
  EXPECT_EQ(second.rows[0].start, 128);
  EXPECT_EQ(second.rows[0].sequence->table.size(), 2u);  // the block of the token that nobody has seen yet
  d.Process(first);
  d.Process(second);
  d.Drain();
}

TEST(Scheduler, NoStepForASequenceThatIsCertainToEnd) {
  Driver d;
  d.Add(10, 2);
  d.Step();
  StepPlan last, none;
  EXPECT_EQ(d.scheduler.Schedule(last), StepKind::kDecode);
  EXPECT_EQ(d.scheduler.Schedule(none), StepKind::kNone);
  d.Process(last);
  EXPECT_EQ(d.ReasonOf(1), FinishReason::kLength);
  d.Drain();
}

TEST(Scheduler, RowsAfterTheEndAreVoidAndKeepTheirBlocksUntilProcessed) {
  Driver d;
  d.Add(10);
  d.Step();
  StepPlan first, second;
  d.scheduler.Schedule(first);
  d.scheduler.Schedule(second);
  d.Process(first, kEnd);
  EXPECT_EQ(d.ReasonOf(1), FinishReason::kStop);
  EXPECT_EQ(d.scheduler.blocks().num_used(), 1);
  d.Process(second);
  EXPECT_EQ(d.scheduler.blocks().num_used(), 0);
  EXPECT_EQ(d.TokensOf(1), 2);
}

// ---- preemption ---------------------------------------------------------------------------------------------------------

TEST(Scheduler, LongestOutputOfTheLeastUrgentIsPreempted) {
  SchedulerOptions o = Options();
  o.num_blocks = 4;
  Driver d(o);
  d.Add(120, 100, 0);
  d.Step();
  d.Step();
  d.Step();
  d.Add(120, 100, 0);
  d.Add(120, 100, 0);
  d.Step();
  d.Step();
  ASSERT_EQ(d.scheduler.num_running(), 3);
  // All three reach their second block; the first has the longest output.
  while (d.scheduler.num_running() == 3) d.Step();
  EXPECT_EQ(d.scheduler.stats().num_preempted, 1);
  EXPECT_EQ(d.scheduler.num_waiting(), 1);
  EXPECT_TRUE(d.scheduler.Abort(2));
  EXPECT_TRUE(d.scheduler.Abort(3));
  d.Plan();
  ASSERT_THAT(d.Rows(), ElementsAre(1));
  EXPECT_EQ(d.plan.kind, StepKind::kPrefill);
  EXPECT_GT(d.plan.rows[0].num_tokens, 120);  // prompt and output so far
  d.Finish();
  while (d.scheduler.has_work()) d.Step();
  EXPECT_EQ(d.TokensOf(1), 100);
  d.Drain();
}

TEST(Scheduler, PriorityDecidesTheVictim) {
  SchedulerOptions o = Options();
  o.num_blocks = 4;
  Driver d(o);
  d.Add(126, 50, 0);
  d.Add(126, 50, 2);
  d.Add(126, 50, 1);
  d.Step();
  while (d.scheduler.stats().num_preempted == 0) d.Step();
  EXPECT_TRUE(d.scheduler.Abort(1));
  EXPECT_TRUE(d.scheduler.Abort(3));
  EXPECT_EQ(d.scheduler.num_waiting(), 1);
  d.Drain();
  EXPECT_EQ(d.TokensOf(2), 50);
}

TEST(Scheduler, PartialPromptsGiveWayBeforeRunningSequences) {
  SchedulerOptions o = Options();
  o.num_blocks = 9;
  Driver d(o);
  d.Add(127, 20);
  d.Step();
  d.Add(128 * 7);
  EXPECT_EQ(d.Step(), StepKind::kDecode);
  EXPECT_EQ(d.Step(), StepKind::kPrefill);  // 512 of 896 tokens; all 8 blocks are taken
  EXPECT_EQ(d.scheduler.blocks().num_free(), 0);
  EXPECT_EQ(d.Step(), StepKind::kDecode);   // needs a block
  EXPECT_EQ(d.scheduler.stats().num_freed_partials, 1);
  EXPECT_EQ(d.scheduler.stats().num_preempted, 0);
  d.Drain();
  EXPECT_EQ(d.TokensOf(2), 16);
}

TEST(Scheduler, PreemptedRequestsCanBeStopped) {
  SchedulerOptions o = Options();
  o.num_blocks = 3;
  o.stop_preempted = true;
  Driver d(o);
  d.Add(127, 50);
  d.Add(127, 50);
  d.Drain();
  EXPECT_EQ(d.ReasonOf(1) == FinishReason::kInsufficientResource, d.ReasonOf(2) != FinishReason::kInsufficientResource);
}

TEST(Scheduler, ASequenceThatOutgrowsTheWholeCacheEnds) {
  SchedulerOptions o = Options();
  o.num_blocks = 3;
  Driver d(o);
  d.Add(250, 500);
  d.Drain();
  EXPECT_EQ(d.ReasonOf(1), FinishReason::kInsufficientResource);
  EXPECT_EQ(d.TokensOf(1), 7);
}

// ---- forks --------------------------------------------------------------------------------------------------------------

TEST(Scheduler, ForksShareThePromptAndCopyTheTailWhenTheyWrite) {
  SchedulerOptions o = Options();
  o.max_num_seqs = 16;
  Driver d(o);
  SequenceSpec spec = d.Spec(300, 4);
  spec.fork_ids = {2, 3, 4};
  d.scheduler.Add(std::move(spec));
  d.Step();
  EXPECT_EQ(d.scheduler.num_prompted(), 3);
  EXPECT_EQ(d.scheduler.blocks().num_used(), 3);
  d.Plan();
  EXPECT_EQ(d.plan.rows.size(), 4u);
  // The parent writes position 300 into a copy; the siblings compute position 299 again and write nothing.
  EXPECT_EQ(d.scheduler.stats().num_block_copies, 1);
  for (const StepRow& row : d.plan.rows) {
    const bool is_parent = row.sequence_id == 1;
    EXPECT_EQ(row.start, is_parent ? 300 : 299);
    EXPECT_EQ(row.write_floor, is_parent ? 0 : 300);
  }
  d.Finish();
  d.Step();
  EXPECT_EQ(d.scheduler.blocks().num_used(), 2 + 4);
  d.Drain();
  for (uint64_t id = 1; id <= 4; ++id) EXPECT_EQ(d.TokensOf(id), 4) << id;
}

TEST(Scheduler, ForksWithoutASlotAreComputedAgain) {
  SchedulerOptions o = Options();
  o.max_num_seqs = 1;
  o.state_slots_ratio = 1.0;
  Driver d(o);
  SequenceSpec spec = d.Spec(300, 4);
  spec.fork_ids = {2, 3};
  d.scheduler.Add(std::move(spec));
  d.Drain();
  EXPECT_EQ(d.scheduler.stats().num_prefill_tokens, 900);
  for (uint64_t id = 1; id <= 3; ++id) EXPECT_EQ(d.ReasonOf(id), FinishReason::kLength) << id;
}

TEST(Scheduler, UnbornForksCanBeAbortedAndEndWithTheirParent) {
  Driver d;
  SequenceSpec spec = d.Spec(600, 4);
  spec.fork_ids = {2, 3};
  d.scheduler.Add(std::move(spec));
  d.Step();
  EXPECT_TRUE(d.scheduler.Abort(3));
  EXPECT_FALSE(d.scheduler.Abort(3));
  EXPECT_TRUE(d.scheduler.Abort(1));
  d.Drain();
  EXPECT_EQ(d.ReasonOf(2), FinishReason::kAbort);
  EXPECT_EQ(d.ReasonOf(3), FinishReason::kAbort);
  EXPECT_EQ(d.scheduler.stats().num_finished, 3);
}

// ---- prefix cache -------------------------------------------------------------------------------------------------------

TEST(Scheduler, ReplayComputesTheWindowAgainWithoutWriting) {
  SchedulerOptions o = Options();
  o.cache_mode = CacheMode::kReplay;
  Driver d(o);
  d.Add(700, 1);
  d.Drain();
  d.Add(500, 1);
  d.Plan();
  ASSERT_EQ(d.plan.rows.size(), 1u);
  EXPECT_EQ(d.plan.rows[0].start, 256);
  EXPECT_EQ(d.plan.rows[0].write_floor, 384);
  EXPECT_EQ(d.plan.rows[0].num_tokens, 500 - 256);
  EXPECT_EQ(d.plan.ops[0].kind, SlotOp::Kind::kBind);
  EXPECT_EQ(d.plan.ops[0].valid_start, 256);
  EXPECT_EQ(d.plan.ops[0].count, 256);
  d.Finish();
  EXPECT_EQ(d.events.back().cached_tokens, 384);
  d.Drain();
}

TEST(Scheduler, ExactStartsAtTheStateRecord) {
  SchedulerOptions o = Options();
  o.cache_mode = CacheMode::kExact;
  o.decoder_keep = 140;
  o.prefix_cache.state_every_blocks = 1;
  o.prefix_cache.num_state_records = 20;
  Driver d(o);
  d.Add(700, 1);
  d.Plan();
  EXPECT_EQ(d.plan.saves.size(), 4u);  // of the first 512 tokens
  d.Finish();
  d.Drain();
  d.Add(700, 1);
  d.Plan();
  EXPECT_EQ(d.plan.rows[0].start, 512);  // floor((700 - 140) / 128) * 128
  EXPECT_EQ(d.plan.rows[0].write_floor, 512);
  ASSERT_GE(d.plan.ops.size(), 2u);
  EXPECT_EQ(d.plan.ops[0].valid_start, 0);
  EXPECT_EQ(d.plan.ops[0].decoder_floor, 560);
  EXPECT_EQ(d.plan.ops[1].kind, SlotOp::Kind::kLoadState);
  d.Finish();
  d.Drain();
}

TEST(Scheduler, PromptsWithLogprobsAreComputedWhole) {
  SchedulerOptions o = Options();
  o.cache_mode = CacheMode::kReplay;
  Driver d(o);
  d.Add(500, 1);
  d.Drain();
  SequenceSpec spec = d.Spec(500, 1);
  spec.needs_all_rows = true;
  d.scheduler.Add(std::move(spec));
  d.Plan();
  EXPECT_EQ(d.plan.rows[0].start, 0);
  EXPECT_TRUE(d.plan.rows[0].needs_all_rows);
  d.Finish();
  d.Drain();
}

TEST(Scheduler, DecodedBlocksArePublishedBehindTheCommittedLength) {
  SchedulerOptions o = Options();
  o.cache_mode = CacheMode::kReplay;
  Driver d(o);
  d.Add(250, 20);
  d.Step();
  EXPECT_EQ(d.scheduler.prefix_cache().num_blocks(), 1);
  for (int i = 0; i < 5; ++i) d.Step();  // positions up to 254 computed
  EXPECT_EQ(d.scheduler.prefix_cache().num_blocks(), 1);
  d.Step();
  EXPECT_EQ(d.scheduler.prefix_cache().num_blocks(), 2);
  d.Drain();
}

TEST(Scheduler, StatesOfVoidRowsAreNotKept) {
  SchedulerOptions o = Options();
  o.cache_mode = CacheMode::kExact;
  o.decoder_keep = 140;
  o.prefix_cache.num_state_records = 4;
  for (const int32_t token : {7, kEnd}) {
    Driver d(o);
    d.Add(126, 10);
    d.Step();
    StepPlan first, second;
    d.scheduler.Schedule(first);
    d.scheduler.Schedule(second);  // ends at position 128
    ASSERT_EQ(second.saves.size(), 1u);
    EXPECT_EQ(second.saves[0].position, 128);
    d.Process(first, token);
    d.Process(second);
    EXPECT_EQ(d.scheduler.prefix_cache().num_records(), token == kEnd ? 0 : 1);
    EXPECT_EQ(d.scheduler.prefix_cache().num_pending_records(), 0);
    d.Drain();
  }
}

TEST(Scheduler, DecodingKeepsTheNewestStateAndThoseOnTheGrid) {
  SchedulerOptions o = Options();
  o.cache_mode = CacheMode::kExact;
  o.decoder_keep = 140;
  o.prefix_cache.state_every_blocks = 3;
  o.prefix_cache.num_state_records = 10;
  Driver d(o);
  d.Add(100, 700);
  for (int64_t length = 101; length < 700; ++length) d.Step();
  d.Step();
  // Boundaries at 128 .. 640: 384 is on the grid, 640 the newest.
  EXPECT_EQ(d.scheduler.prefix_cache().num_records(), 2);
  d.Drain();
}

TEST(CacheModes, BatchInvariantEnginesNeverReplayAndExactNeedsDecoderReplay) {
  SchedulerOptions o;
  EXPECT_EQ(ResolveCacheMode(CacheMode::kReplay, o), CacheMode::kReplay);
  EXPECT_EQ(ResolveCacheMode(CacheMode::kExact, o), CacheMode::kOff);  // decoder replay is off
  o.decoder_keep = 140;
  EXPECT_EQ(ResolveCacheMode(CacheMode::kExact, o), CacheMode::kExact);
  o.is_batch_invariant = true;
  EXPECT_EQ(ResolveCacheMode(CacheMode::kReplay, o), CacheMode::kOff);
  o.prefix_cache.num_state_records = 4;
  EXPECT_EQ(ResolveCacheMode(CacheMode::kReplay, o), CacheMode::kExact);
  EXPECT_EQ(ResolveCacheMode(CacheMode::kOff, o), CacheMode::kOff);
}

// ---- options ------------------------------------------------------------------------------------------------------------

TEST(SchedulerOptions, NameTheBadField) {
  const auto field_of = [](auto change) {
    SchedulerOptions o = Options();
    change(o);
    return o.Validate().field();
  };
  EXPECT_EQ(field_of([](SchedulerOptions&) {}), "");
  EXPECT_EQ(field_of([](SchedulerOptions& o) { o.max_num_batched_tokens = 100; }), "max_num_batched_tokens");
  EXPECT_EQ(field_of([](SchedulerOptions& o) { o.max_num_seqs = 513; }), "max_num_batched_tokens");
  EXPECT_EQ(field_of([](SchedulerOptions& o) { o.chunked_prefill = false; }), "max_num_batched_tokens");
  EXPECT_EQ(field_of([](SchedulerOptions& o) { o.max_sum_prefill_len = 10; }), "max_sum_prefill_len");
  EXPECT_EQ(field_of([](SchedulerOptions& o) { o.num_drafts = 43; }), "num_drafts");
  EXPECT_EQ(field_of([](SchedulerOptions& o) { o.state_slots_ratio = 0.5; }), "state_slots_ratio");
  EXPECT_EQ(field_of([](SchedulerOptions& o) { o.prefix_cache.replay_tokens = 127; }), "kv.replay_tokens");
}

TEST(SchedulerOptions, StateSlotsHaveAReserveAndANullSlot) {
  SchedulerOptions o;
  o.max_num_seqs = 256;
  EXPECT_EQ(o.num_state_slots(), 308);
  o.max_num_seqs = 1;
  EXPECT_EQ(o.num_state_slots(), 2);
}

}  // namespace
}  // namespace deepinfer::engine
