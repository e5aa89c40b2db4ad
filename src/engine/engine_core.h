// SPDX-License-Identifier: Apache-2.0
//
// EngineCore: many requests on one model, from token ids to tokens. Three threads: the scheduler thread plans steps and
// reads results, the compute thread executes plans in order (it plays the device), the output thread hands tokens to their
// requests. Step N+1 is planned and queued while step N runs.
//
// Submit, Cancel and the request's own methods may be called from any thread.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "constrain/compile_service.h"
#include "core/clock.h"
#include "core/status.h"
#include "deepinfer/output.h"
#include "deepinfer/sampling_params.h"
#include "engine/batch_sampler.h"
#include "engine/engine_stats.h"
#include "engine/output_queue.h"
#include "engine/request_probe.h"
#include "engine/scheduler.h"
#include "engine/step_executor.h"
#include "engine/step_model.h"
#include "engine/step_sample.h"
#include "engine/step_timing.h"

namespace deepinfer::engine {

struct EngineCoreOptions {
  SchedulerOptions scheduler;
  bool is_async = true;            // plan a decode step while the one before runs
  int64_t max_requests = 4096;     // sequences admitted and not ended; more are refused
  bool allow_prompt_logprobs = true;  // false where prompt rows are dropped (decoder replay)
  int32_t end_token_id = -1;       // end of sentence: what first_n_token_no_eos bans
  BatchSampler::Options sampling;  // its num_drafts is the scheduler's
  std::shared_ptr<constrain::CompileService> grammars;  // of so_args; null: requests that have them are refused
  DecodeCostModel decode_costs;    // for scheduler.varlen_verify; without a curve all drafts are verified
  std::vector<float> confidence_temperatures;  // of the draft head: none, one, or one for each draft
  const Clock* clock = &Clock::Steady();
  // Called by the scheduler thread after each step. Null: not measured.
  std::function<void(const StepTiming&)> on_step;
  int64_t logging_interval_steps = 0;  // statistics lines: at step 0 and every so many steps; 0 = none
  StatsOptions stats;
};

// A step that is older than this while there is work means that the engine hangs.
inline constexpr int64_t kUnhealthyStepNs = 60'000'000'000;

struct EngineRequest {
  std::vector<int32_t> prompt_ids;
  SamplingParams params;
  std::shared_ptr<const std::vector<uint32_t>> allowed_mask;  // one bit per id; null = all tokens may be sampled
  std::optional<CacheMode> cache_mode;
  Key256 cache_root;
  std::vector<int64_t> chunk_checkpoints;  // ascending prompt lengths at which a prefill chunk has to end
  std::shared_ptr<RequestProbe> probe;     // may be null
};

struct CoreOutput {
  int sample = 0;  // of params.n
  TokenOutput token;  // token_id -1: none, the request ended without one
  bool is_stop_token = false;
  bool begins_step = false;  // the first token of the step that it comes from
  FinishReason finish_reason = FinishReason::kNone;  // set in the last output of a sample
  int64_t cached_tokens = -1;          // with a sample's first token
  std::vector<float> prompt_logprobs;  // with the first token of sample 0, if asked for
};

// Called on the output thread for every output, in order. What it throws ends the request with "abort".
using CoreCallback = std::function<StreamAction(const CoreOutput&)>;

class EngineCore;

// A request in the engine. Outputs go to the callback, or wait here if there is none.
class RequestHandle {
 public:
  // Waits for the next output; false when all samples have ended and everything was taken.
  bool Next(CoreOutput& output) { return outputs_.Next(output); }
  // Waits until every sample has ended and its outputs were delivered.
  void Wait() { outputs_.Wait(); }
  bool is_done() const { return outputs_.is_done(); }
  // Ends all samples that still run. Each gets one last output with `reason`.
  void Cancel(FinishReason reason = FinishReason::kAbort);
  void CancelSample(int sample, FinishReason reason = FinishReason::kAbort);
  uint64_t seed() const { return request_.seed; }
  int num_samples() const { return request_.params.n; }

 private:
  friend class EngineCore;
  SampledRequest request_;
  CoreCallback callback_;
  EngineCore* core_ = nullptr;
  // Scheduler thread.
  std::vector<float> prompt_logprobs_;
  int64_t deadline_ns_ = 0;  // 0 = none
  int num_running_ = 0;      // samples that have not ended
  // Output thread: what the callback asked for, by sample; kNone = go on.
  std::vector<FinishReason> stopped_;
  RequestTimes times_;  // output thread; kept with statistics only

  OutputQueue<CoreOutput> outputs_;
};

class EngineCore {
 public:
  // `model` outlives the core and is used by its compute thread only.
  static Result<std::unique_ptr<EngineCore>> Create(StepModel& model, EngineCoreOptions options);
  // Aborts what runs, delivers the last outputs, stops the threads.
  ~EngineCore();
  EngineCore(const EngineCore&) = delete;
  EngineCore& operator=(const EngineCore&) = delete;

  // Errors: kInvalidArgument (prompt, parameters), kResourceExhausted (prompt too long, too many requests), kUnavailable
  // (draining), kUnimplemented (so_args without a compiler for them).
  Result<std::shared_ptr<RequestHandle>> Submit(EngineRequest request, CoreCallback callback = {});
  // Admits nothing any more and waits until everything has ended and all caches are free.
  void Drain();
  // Whether a decode step is planned while the one before runs (EngineCoreOptions::is_async), from the next step on.
  void SetAsync(bool is_async) { is_async_.store(is_async, std::memory_order_relaxed); }
  // Drafts of a step at most, up to SchedulerOptions::num_drafts, and whether their number follows their cost. Waits until
  // nothing runs; for measurements.
  void SetDrafting(int num_drafts, bool varlen_verify);
  // Waits until nothing is admitted, queued or in flight: the model is not used until the next Submit.
  void WaitIdle();

  struct Snapshot {
    SchedulerStats stats;
    int64_t num_waiting = 0, num_running = 0, num_live = 0;
    int64_t num_used_blocks = 0, num_used_slots = 0, num_cached_blocks = 0;
    int64_t num_steps = 0;
    int64_t last_step_ns = 0;  // when the newest step was processed; 0 = there was none
  };
  // Of the scheduler's state between two steps.
  Snapshot Stats();

  struct Health {
    bool has_work = false;
    double last_step_age_s = 0;  // since the newest step, or since the work that waits for one came; 0 without work
    bool is_healthy() const { return last_step_age_s <= 1e-9 * kUnhealthyStepNs; }
  };
  // Never waits for a step.
  Health GetHealth();
  const EngineCoreOptions& options() const { return options_; }

 private:
  friend class RequestHandle;
  struct Flight {
    StepPlan plan;
    StepResult result;
    StepTiming timing;
    StepSample sample;     // filled with statistics only
    bool is_done = false;  // GUARDED_BY(compute_mutex_)
  };
  struct Command {
    std::shared_ptr<RequestHandle> add;
    std::optional<CacheMode> cache_mode;
    Key256 cache_root;
    std::vector<int64_t> chunk_checkpoints;
    std::shared_ptr<RequestProbe> probe;
    std::shared_ptr<constrain::CompileTicket> grammar;  // of a request with so_args
    std::string grammar_error;  // its so_args are wrong
    std::optional<std::pair<int, bool>> drafting;  // if `add` is null: SetDrafting
    uint64_t abort_id = 0;  // else
    FinishReason reason = FinishReason::kNone;
  };
  // What the compile service holds of a core that may be gone by then.
  struct Waker {
    std::mutex mutex;
    EngineCore* core = nullptr;  // GUARDED_BY(mutex)
  };
  struct Delivery {
    std::shared_ptr<RequestHandle> request;
    CoreOutput output;
  };

  EngineCore(StepModel& model, EngineCoreOptions options);
  void ScheduleLoop();
  void ComputeLoop();
  void OutputLoop();

  Status CheckAdmission(int num_samples) const;  // inbox_mutex_ is held
  void TakeCommands(bool wait);
  void Register(const Command& command);
  void Admit(Command& command);
  // Requests with so_args stay outside the scheduler until their grammar is there.
  void AdmitCompiled();
  void FailUncompiled(const Command& command, const std::string& message);
  void EndUnscheduled(uint64_t id, FinishReason reason);
  void AbortNow(uint64_t id, FinishReason reason);
  void OnSampleEnd(RequestHandle& handle);
  void CheckDeadlines();
  void Launch(Flight& flight);
  void ProcessOldest();
  void Dispatch(Flight* flight);
  void Abort(uint64_t id, FinishReason reason);
  void Deliver(Delivery& delivery, int64_t now_ns);
  void PublishSnapshot();
  // Statistics: what the step tells, and handing samples to the output thread.
  void AddSample(StepSample& sample);
  void FlushSamples();

  StepModel& model_;
  EngineCoreOptions options_;
  std::atomic<bool> is_async_;
  const Clock& clock_;
  BatchSampler sampler_;
  StepExecutor executor_;

  // Scheduler thread.
  Scheduler scheduler_;
  std::vector<std::unique_ptr<Flight>> idle_flights_;
  std::deque<std::unique_ptr<Flight>> flights_;
  std::vector<SequenceEvent> events_;
  std::unordered_map<uint64_t, std::shared_ptr<RequestHandle>> requests_;  // by sequence id
  std::map<std::pair<int64_t, uint64_t>, int> deadlines_;  // (when, first sequence id) -> number of samples
  std::vector<Command> taken_;
  std::vector<Command> compiling_;
  int64_t num_steps_ = 0;
  int64_t last_step_ns_ = 0;
  std::vector<StepSample> samples_;  // not handed over yet
  StepSample last_sample_;

  std::mutex inbox_mutex_;
  std::condition_variable inbox_changed_;
  std::vector<Command> inbox_;  // GUARDED_BY(inbox_mutex_)
  uint64_t next_id_ = 1;        // GUARDED_BY(inbox_mutex_)
  int64_t num_live_ = 0;        // GUARDED_BY(inbox_mutex_) samples admitted and not ended
  bool has_grammar_ = false;    // GUARDED_BY(inbox_mutex_) a compilation has ended
  bool is_draining_ = false;    // GUARDED_BY(inbox_mutex_)
  bool is_stopping_ = false;    // GUARDED_BY(inbox_mutex_)
  bool is_idle_ = true;         // GUARDED_BY(inbox_mutex_) no sequence and no step in flight
  std::condition_variable drained_;
  Snapshot snapshot_;           // GUARDED_BY(inbox_mutex_)
  int64_t busy_since_ns_ = 0;   // GUARDED_BY(inbox_mutex_) when is_idle_ ended

  std::mutex compute_mutex_;
  std::condition_variable compute_changed_, step_done_;
  std::deque<Flight*> compute_queue_;  // GUARDED_BY(compute_mutex_)
  bool compute_stops_ = false;         // GUARDED_BY(compute_mutex_)

  std::mutex output_mutex_;
  std::condition_variable output_changed_;
  std::vector<Delivery> output_queue_;  // GUARDED_BY(output_mutex_)
  std::vector<StepSample> sample_queue_;  // GUARDED_BY(output_mutex_)
  bool output_stops_ = false;           // GUARDED_BY(output_mutex_)

  const std::shared_ptr<Waker> waker_ = std::make_shared<Waker>();

  std::unique_ptr<EngineStats> stats_;  // output thread; null without lines and metrics

  std::thread compute_thread_, output_thread_, schedule_thread_;
};

}  // namespace deepinfer::engine
