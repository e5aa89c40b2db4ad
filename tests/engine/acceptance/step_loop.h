// SPDX-License-Identifier: Apache-2.0
//
// StepLoop: scheduler and executor on one thread, for tests that need what the engine's interface does not have (checkpoints)
// or have to look at every plan. Greedy. A decode step is planned before the one before is processed if `is_async`.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "engine/fake_step_model.h"
#include "engine/scheduler.h"
#include "engine/step_executor.h"

namespace deepinfer::engine {

class StepLoop {
 public:
  StepLoop(StepModel& model, SchedulerOptions options, bool is_async)
      : is_async_(is_async), executor_(model, sampler_, options.num_state_slots(), clock_), scheduler_(options, clock_) {
    EXPECT_TRUE(options.Validate().ok()) << options.Validate().message();
  }

  void Add(std::vector<int32_t> prompt, int64_t max_tokens, std::vector<int64_t> checkpoints = {}) {
    SequenceSpec spec;
    spec.id = next_id_++;
    spec.tokens = std::move(prompt);
    spec.max_tokens = max_tokens;
    spec.ignore_eos = true;
    spec.chunk_checkpoints = std::move(checkpoints);
    spec.arrival_ns = clock_.NowNs();
    tokens_[spec.id];
    scheduler_.Add(std::move(spec));
  }

  // One step planned and executed; false if there is nothing to do.
  bool StepOnce() {
    clock_.AdvanceMs(1);
    auto flight = std::make_unique<Flight>();
    const StepKind kind = scheduler_.Schedule(flight->plan);
    if (kind != StepKind::kNone) {
      if (on_plan) on_plan(flight->plan);
      executor_.Run(flight->plan, flight->result);
      flights_.push_back(std::move(flight));
    }
    const size_t num_open = kind == StepKind::kDecode && is_async_ ? 1 : 0;
    while (flights_.size() > num_open) {
      scheduler_.Process(flights_.front()->plan, flights_.front()->result);
      flights_.pop_front();
    }
    std::vector<SequenceEvent> events;
    scheduler_.TakeEvents(events);
    for (const SequenceEvent& event : events) {
      if (event.token >= 0) tokens_[event.id].push_back(event.token);
      EXPECT_TRUE(event.finish_reason == FinishReason::kNone || event.finish_reason == FinishReason::kLength);
    }
    return scheduler_.has_work() || !flights_.empty();
  }
  void Run() {
    while (StepOnce()) {
    }
    scheduler_.CheckInvariants();
    EXPECT_EQ(scheduler_.blocks().num_used(), 0);
    EXPECT_EQ(scheduler_.slots().num_used(), 0);
  }

  // Output by sequence; ids count from 1 in the order of Add.
  const std::map<uint64_t, std::vector<int32_t>>& tokens() const { return tokens_; }
  Scheduler& scheduler() { return scheduler_; }
  std::function<void(const StepPlan&)> on_plan;

 private:
  struct Flight {
    StepPlan plan;
    StepResult result;
  };
  const bool is_async_;
  FakeClock clock_;
  ArgMaxSampler sampler_;
  StepExecutor executor_;
  Scheduler scheduler_;
  std::deque<std::unique_ptr<Flight>> flights_;
  std::map<uint64_t, std::vector<int32_t>> tokens_;
  uint64_t next_id_ = 1;
};

}  // namespace deepinfer::engine
