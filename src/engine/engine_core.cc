// SPDX-License-Identifier: Apache-2.0
#include "engine/engine_core.h"

#include <algorithm>
#include <chrono>
#include <random>
#include <utility>

#include <fmt/format.h>

#include "constrain/structured_output.h"
#include "core/check.h"
#include "core/log.h"
#include "engine/generator.h"
#include "sampling/params.h"

namespace deepinfer::engine {
namespace {

// Logits of all prompt rows are computed in chunks of at most this size.
constexpr int64_t kMaxPromptLogitBytes = int64_t{64} << 20;
// How long the scheduler thread sleeps when it has work that cannot run now.
constexpr auto kBlockedWait = std::chrono::milliseconds(5);
constexpr size_t kNumFlights = 3;

uint64_t RandomSeed() {
  std::random_device device;
  return (uint64_t{device()} << 32) | device();
}

}  // namespace

// ---- requests -------------------------------------------------------------------------------------------------------------

void RequestHandle::Cancel(FinishReason reason) {
  for (int i = 0; i < request_.params.n; ++i) CancelSample(i, reason);
}

void RequestHandle::CancelSample(int sample, FinishReason reason) {
  if (sample < 0 || sample >= request_.params.n) return;
  // While a sample is open the core lives: it delivers all last outputs before it goes.
  outputs_.IfOpen([&] { core_->Abort(request_.first_id + static_cast<uint64_t>(sample), reason); });
}

// ---- life -----------------------------------------------------------------------------------------------------------------

Result<std::unique_ptr<EngineCore>> EngineCore::Create(StepModel& model, EngineCoreOptions options) {
  SchedulerOptions& s = options.scheduler;
  s.max_model_len = std::min(s.max_model_len, model.max_model_len());
  s.vocab_size = model.vocab_size();
  if (s.max_all_logits_rows == 0)
    s.max_all_logits_rows =
        std::max<int64_t>(kMaxPromptLogitBytes / (int64_t{model.vocab_size()} * static_cast<int64_t>(sizeof(float))), 1);
  if (options.max_requests < 1)
    return InvalidArgument(fmt::format("max_requests is {} but must be at least 1", options.max_requests), "max_requests");
  DI_RETURN_IF_ERROR(s.Validate());
  if (s.num_drafts > model.max_drafts())
    return InvalidArgument(fmt::format("num_drafts is {} but the model's draft head makes {} at most", s.num_drafts, model.max_drafts()), "num_drafts");
  const size_t num_temperatures = options.confidence_temperatures.size();
  if (num_temperatures > 1 && num_temperatures != static_cast<size_t>(s.num_drafts))
    return InvalidArgument(fmt::format("{} confidence temperatures are given but there are {} drafts", num_temperatures, s.num_drafts),
                           "confidence_temperatures");
  options.sampling.num_drafts = s.num_drafts;
  return std::unique_ptr<EngineCore>(new EngineCore(model, std::move(options)));
}

EngineCore::EngineCore(StepModel& model, EngineCoreOptions options)
    : model_(model),
      options_(std::move(options)),
      is_async_(options_.is_async),
      clock_(*options_.clock),
      sampler_(model_, options_.scheduler.num_state_slots(), options_.sampling),
      executor_(model_, sampler_, options_.scheduler.num_state_slots(), clock_,
                {options_.scheduler.num_drafts, options_.confidence_temperatures, options_.scheduler.prompt_lookup}),
      scheduler_(options_.scheduler, clock_) {
  scheduler_.SetDecodeCosts(std::move(options_.decode_costs));
  if (options_.logging_interval_steps > 0 || options_.stats.registry != nullptr)
    stats_ = std::make_unique<EngineStats>(options_.logging_interval_steps, options_.stats, options_.scheduler);
  waker_->core = this;
  for (size_t i = 0; i < kNumFlights; ++i) idle_flights_.push_back(std::make_unique<Flight>());
  compute_thread_ = std::thread([this] { ComputeLoop(); });
  output_thread_ = std::thread([this] { OutputLoop(); });
  schedule_thread_ = std::thread([this] { ScheduleLoop(); });
}

EngineCore::~EngineCore() {
  {
    std::lock_guard lock(waker_->mutex);
    waker_->core = nullptr;
  }
  {
    std::lock_guard lock(inbox_mutex_);
    is_draining_ = is_stopping_ = true;
  }
  inbox_changed_.notify_all();
  schedule_thread_.join();
  {
    std::lock_guard lock(compute_mutex_);
    compute_stops_ = true;
  }
  compute_changed_.notify_all();
  compute_thread_.join();
  {
    std::lock_guard lock(output_mutex_);
    output_stops_ = true;
  }
  output_changed_.notify_all();
  output_thread_.join();
}

void EngineCore::Drain() {
  std::unique_lock lock(inbox_mutex_);
  is_draining_ = true;
  drained_.wait(lock, [&] { return num_live_ == 0 && is_idle_; });
}

void EngineCore::WaitIdle() {
  std::unique_lock lock(inbox_mutex_);
  drained_.wait(lock, [&] { return num_live_ == 0 && is_idle_; });
}

void EngineCore::SetDrafting(int num_drafts, bool varlen_verify) {
  WaitIdle();
  Command command;
  command.drafting = {std::clamp(num_drafts, 0, options_.scheduler.num_drafts), varlen_verify};
  {
    std::lock_guard lock(inbox_mutex_);
    inbox_.push_back(std::move(command));
  }
  inbox_changed_.notify_one();
}

EngineCore::Snapshot EngineCore::Stats() {
  std::lock_guard lock(inbox_mutex_);
  Snapshot snapshot = snapshot_;
  snapshot.num_live = num_live_;
  return snapshot;
}

EngineCore::Health EngineCore::GetHealth() {
  const int64_t now_ns = clock_.NowNs();
  std::lock_guard lock(inbox_mutex_);
  Health health;
  health.has_work = !is_idle_;
  if (health.has_work) health.last_step_age_s = 1e-9 * static_cast<double>(now_ns - std::max(snapshot_.last_step_ns, busy_since_ns_));
  return health;
}

// ---- submission -----------------------------------------------------------------------------------------------------------

Status EngineCore::CheckAdmission(int num_samples) const {
  if (is_draining_) return Unavailable("the engine is shutting down");
  if (num_live_ + num_samples > options_.max_requests)
    return ResourceExhausted(
        fmt::format("{} requests are running or waiting, at most {} are admitted; try again later", num_live_, options_.max_requests));
  return Status::Ok();
}

Result<std::shared_ptr<RequestHandle>> EngineCore::Submit(EngineRequest request, CoreCallback callback) {
  if (request.prompt_ids.empty()) return InvalidArgument("the prompt is empty; give at least one token", kPromptField);
  const int vocab_size = model_.vocab_size();
  for (size_t i = 0; i < request.prompt_ids.size(); ++i) {
    const int32_t id = request.prompt_ids[i];
    if (id < 0 || id >= vocab_size)
      return InvalidArgument(fmt::format("prompt token {} has id {} but ids are 0..{}", i, id, vocab_size - 1), kPromptTokensField);
  }
  const int64_t length = static_cast<int64_t>(request.prompt_ids.size()), limit = options_.scheduler.prompt_limit();
  if (length > limit)
    return Status(StatusCode::kResourceExhausted,
                  fmt::format("the prompt has {} tokens but at most {} fit; shorten it or start with a larger max_model_len", length, limit),
                  kPromptLengthField);
  DI_RETURN_IF_ERROR(sampling::ValidateSamplingParams(request.params, vocab_size));

  auto handle = std::make_shared<RequestHandle>();
  handle->core_ = this;
  handle->callback_ = std::move(callback);
  SampledRequest& r = handle->request_;
  r.params = EffectiveParams(std::move(request.params), options_.allow_prompt_logprobs);
  r.prompt_ids = std::move(request.prompt_ids);
  r.allowed_mask = std::move(request.allowed_mask);
  r.seed = r.params.seq_seed             ? *r.params.seq_seed
           : r.params.random_seed != 0 ? r.params.random_seed
           : r.params.is_greedy()      ? 0
                                         : RandomSeed();
  r.first_bans = {options_.end_token_id};
  r.end_bans = r.params.stop_token_ids;
  r.end_bans.insert(r.end_bans.end(), options_.scheduler.end_token_ids.begin(), options_.scheduler.end_token_ids.end());
  if (r.params.timeout_s) handle->deadline_ns_ = clock_.NowNs() + static_cast<int64_t>(std::min(*r.params.timeout_s, 1e9) * 1e9);
  const int n = r.params.n;
  handle->num_running_ = n;
  handle->outputs_.Open(n);
  handle->stopped_.assign(static_cast<size_t>(n), FinishReason::kNone);
  const int64_t now_ns = clock_.NowNs();
  if (stats_ != nullptr) {
    RequestTimes& times = handle->times_;
    times.submit_ns = now_ns;
    times.num_prompt = length;
    times.num_open = n;
    times.samples.resize(static_cast<size_t>(n));
  }

  Command command;
  command.add = handle;
  command.cache_mode = request.cache_mode;
  command.cache_root = request.cache_root;
  command.chunk_checkpoints = std::move(request.chunk_checkpoints);
  command.probe = std::move(request.probe);
  if (r.params.so_args) {
    if (options_.grammars == nullptr) return constrain::NoStructuredOutput();
    {
      // Nothing is compiled for requests that are turned away.
      std::lock_guard lock(inbox_mutex_);
      DI_RETURN_IF_ERROR(CheckAdmission(n));
    }
    r.grammar = std::make_shared<RequestGrammar>();
    r.grammar->spec = constrain::GrammarSpecOf(*r.params.so_args);
    command.grammar_error = r.grammar->spec.invalid;
    if (command.grammar_error.empty()) {
      command.grammar = options_.grammars->Submit(r.grammar->spec, [waker = waker_] {
        std::lock_guard lock(waker->mutex);
        if (waker->core == nullptr) return;
        {
          std::lock_guard inbox_lock(waker->core->inbox_mutex_);
          waker->core->has_grammar_ = true;
        }
        waker->core->inbox_changed_.notify_one();
      });
    }
    r.grammar->hash = constrain::GrammarHash(r.grammar->spec);
    r.grammar->spec.text = {};
    r.params.so_args->schema = {};
  }
  {
    std::lock_guard lock(inbox_mutex_);
    DI_RETURN_IF_ERROR(CheckAdmission(n));
    num_live_ += n;
    if (is_idle_) busy_since_ns_ = now_ns;
    is_idle_ = false;
    r.first_id = next_id_;
    next_id_ += static_cast<uint64_t>(n);
    inbox_.push_back(std::move(command));
  }
  inbox_changed_.notify_one();
  return handle;
}

void EngineCore::Abort(uint64_t id, FinishReason reason) {
  Command command;
  command.abort_id = id;
  command.reason = reason;
  {
    std::lock_guard lock(inbox_mutex_);
    inbox_.push_back(std::move(command));
  }
  inbox_changed_.notify_one();
}

// ---- scheduler thread -----------------------------------------------------------------------------------------------------

void EngineCore::TakeCommands(bool wait) {
  taken_.clear();
  {
    std::unique_lock lock(inbox_mutex_);
    if (wait) {
      const auto ready = [&] { return !inbox_.empty() || has_grammar_ || is_stopping_; };
      if (scheduler_.has_work() || !compiling_.empty()) {
        inbox_changed_.wait_for(lock, kBlockedWait, ready);
      } else {
        inbox_changed_.wait(lock, ready);
      }
    }
    taken_.swap(inbox_);
    has_grammar_ = false;
  }
  for (Command& command : taken_) {
    if (command.drafting) {
      scheduler_.SetDrafting(command.drafting->first, command.drafting->second);
      continue;
    }
    if (command.add == nullptr) {
      AbortNow(command.abort_id, command.reason);
      continue;
    }
    Register(command);
    if (!command.grammar_error.empty()) {
      FailUncompiled(command, command.grammar_error);
    } else if (command.grammar != nullptr) {
      compiling_.push_back(std::move(command));
    } else {
      Admit(command);
    }
  }
  if (!compiling_.empty()) AdmitCompiled();
}

void EngineCore::Register(const Command& command) {
  RequestHandle& handle = *command.add;
  const SampledRequest& r = handle.request_;
  for (int i = 0; i < r.params.n; ++i) requests_.emplace(r.first_id + static_cast<uint64_t>(i), command.add);
  if (handle.deadline_ns_ != 0) deadlines_[{handle.deadline_ns_, r.first_id}] = r.params.n;
}

void EngineCore::AdmitCompiled() {
  const auto is_settled = [this](Command& command) {
    if (!requests_.contains(command.add->request_.first_id)) return true;  // ended meanwhile
    if (!command.grammar->is_done()) return false;
    const auto& compiled = command.grammar->result();
    if (compiled.ok()) {
      command.add->request_.grammar->compiled = compiled.value();
      Admit(command);
    } else {
      FailUncompiled(command, compiled.status().message());
    }
    return true;
  };
  compiling_.erase(std::remove_if(compiling_.begin(), compiling_.end(), is_settled), compiling_.end());
}

void EngineCore::FailUncompiled(const Command& command, const std::string& message) {
  const SampledRequest& r = command.add->request_;
  DI_LOG(warn, "request {} ends, its structured output cannot be compiled: {}", r.first_id, message);
  for (int i = 0; i < r.params.n; ++i) EndUnscheduled(r.first_id + static_cast<uint64_t>(i), FinishReason::kStructuredOutputFailed);
}

// The last output of a sample that the scheduler never saw.
void EngineCore::EndUnscheduled(uint64_t id, FinishReason reason) {
  const auto it = requests_.find(id);
  if (it == requests_.end()) return;
  RequestHandle& handle = *it->second;
  {
    std::lock_guard lock(output_mutex_);
    Delivery& delivery = output_queue_.emplace_back();
    delivery.request = it->second;
    delivery.output.sample = static_cast<int>(id - handle.request_.first_id);
    delivery.output.finish_reason = reason;
    if (reason == FinishReason::kStructuredOutputFailed) {
      delivery.output.token.token_id = 0;
      delivery.output.token.num_output_tokens = 1;
    }
  }
  output_changed_.notify_one();
  OnSampleEnd(handle);
  requests_.erase(it);
  std::lock_guard lock(inbox_mutex_);
  --num_live_;
}

void EngineCore::AbortNow(uint64_t id, FinishReason reason) {
  const auto is_of = [&](const Command& command) {
    const SampledRequest& r = command.add->request_;
    return r.first_id <= id && id < r.first_id + static_cast<uint64_t>(r.params.n);
  };
  const auto it = std::find_if(compiling_.begin(), compiling_.end(), is_of);
  if (it == compiling_.end()) {
    scheduler_.Abort(id, reason);
    return;
  }
  const SampledRequest& r = it->add->request_;
  // The others begin where the first one is.
  const uint64_t count = id == r.first_id ? static_cast<uint64_t>(r.params.n) : 1;
  for (uint64_t i = 0; i < count; ++i) EndUnscheduled(id + i, reason);
}

void EngineCore::OnSampleEnd(RequestHandle& handle) {
  if (--handle.num_running_ == 0 && handle.deadline_ns_ != 0) deadlines_.erase({handle.deadline_ns_, handle.request_.first_id});
}

void EngineCore::Admit(Command& command) {
  RequestHandle& handle = *command.add;
  const SampledRequest& r = handle.request_;
  DI_CHECK(r.params.so_args.has_value() == (r.grammar != nullptr && r.grammar->compiled != nullptr)) << "request without its grammar";
  SequenceSpec spec;
  spec.id = r.first_id;
  spec.tokens = r.prompt_ids;
  spec.priority = r.params.priority;
  spec.arrival_ns = clock_.NowNs();
  spec.max_tokens = r.params.max_tokens;
  spec.ignore_eos = r.params.ignore_eos;
  spec.stop_token_ids = r.params.stop_token_ids;
  spec.cache_mode = command.cache_mode;
  spec.cache_root = command.cache_root;
  spec.chunk_checkpoints = std::move(command.chunk_checkpoints);
  spec.probe = std::move(command.probe);
  spec.needs_all_rows = r.params.prompt_logprobs && r.prompt_ids.size() > 1;
  for (int i = 1; i < r.params.n; ++i) {
    // Without samples that were cancelled while the grammar was compiled.
    const uint64_t id = r.first_id + static_cast<uint64_t>(i);
    if (requests_.contains(id)) spec.fork_ids.push_back(id);
  }
  // The rows carry the sampler's view; the whole handle is kept alive with it.
  spec.user = std::shared_ptr<void>(command.add, const_cast<SampledRequest*>(&r));
  if (spec.needs_all_rows) handle.prompt_logprobs_.assign(r.prompt_ids.size() - 1, kLogprobFloor);
  scheduler_.Add(std::move(spec));
}

void EngineCore::CheckDeadlines() {
  if (deadlines_.empty()) return;
  const int64_t now_ns = clock_.NowNs();
  while (!deadlines_.empty() && deadlines_.begin()->first.first <= now_ns) {
    const auto [key, num_samples] = *deadlines_.begin();
    deadlines_.erase(deadlines_.begin());
    for (int i = 0; i < num_samples; ++i) AbortNow(key.second + static_cast<uint64_t>(i), FinishReason::kTimeout);
  }
}

void EngineCore::ScheduleLoop() {
  bool is_blocked = true;
  for (;;) {
    TakeCommands(is_blocked);
    bool stops = false;
    {
      std::lock_guard lock(inbox_mutex_);
      stops = is_stopping_;
    }
    if (stops && flights_.empty()) break;
    CheckDeadlines();
    Dispatch(nullptr);
    StepKind kind = StepKind::kNone;
    if (!stops) {
      std::unique_ptr<Flight> flight = std::move(idle_flights_.back());
      idle_flights_.pop_back();
      flight->timing.schedule_begin_ns = clock_.NowNs();
      kind = scheduler_.Schedule(flight->plan);
      if (kind != StepKind::kNone) {
        Launch(*flight);
        flights_.push_back(std::move(flight));
      } else {
        idle_flights_.push_back(std::move(flight));
      }
    }
    const size_t num_open = kind == StepKind::kDecode && is_async_.load(std::memory_order_relaxed) ? 1 : 0;
    is_blocked = kind == StepKind::kNone && flights_.empty();
    while (flights_.size() > num_open) ProcessOldest();
    PublishSnapshot();
    if (is_blocked) FlushSamples();
  }
  // What still waits or runs ends here; nothing is submitted any more.
  TakeCommands(false);
  std::vector<uint64_t> ids;
  for (const auto& [id, request] : requests_) ids.push_back(id);
  std::sort(ids.begin(), ids.end());
  for (const uint64_t id : ids) AbortNow(id, FinishReason::kAbort);
  compiling_.clear();
  Dispatch(nullptr);
  FlushSamples();
  scheduler_.CheckInvariants();
  DI_CHECK(!scheduler_.has_work() && scheduler_.blocks().num_used() == 0 && scheduler_.slots().num_used() == 0)
      << scheduler_.blocks().num_used() << " blocks and " << scheduler_.slots().num_used() << " slots are lost";
  PublishSnapshot();
}

void EngineCore::Launch(Flight& flight) {
  flight.timing.number = flight.plan.number;
  flight.timing.kind = flight.plan.kind;
  flight.timing.num_rows = static_cast<int64_t>(flight.plan.rows.size());
  flight.timing.num_tokens = flight.plan.num_tokens;
  flight.timing.schedule_end_ns = clock_.NowNs();
  {
    std::lock_guard lock(compute_mutex_);
    flight.is_done = false;
    compute_queue_.push_back(&flight);
  }
  compute_changed_.notify_one();
  // While the device works.
  if (stats_ != nullptr) SampleRows(flight.plan, options_.stats.flops.get(), options_.stats.drops_prompt_rows, flight.sample);
}

void EngineCore::ProcessOldest() {
  std::unique_ptr<Flight> flight = std::move(flights_.front());
  flights_.pop_front();
  {
    std::unique_lock lock(compute_mutex_);
    step_done_.wait(lock, [&] { return flight->is_done; });
  }
  flight->timing.process_begin_ns = clock_.NowNs();
  scheduler_.Process(flight->plan, flight->result);
  Dispatch(flight.get());
  flight->timing.process_end_ns = clock_.NowNs();
  last_step_ns_ = flight->timing.process_end_ns;
  ++num_steps_;
  if (options_.on_step) options_.on_step(flight->timing);
  if (stats_ != nullptr) {
    flight->sample.timing = flight->timing;
    SampleDrafts(flight->plan, flight->result, flight->sample);
    AddSample(flight->sample);
  }
  idle_flights_.push_back(std::move(flight));
}

void EngineCore::AddSample(StepSample& sample) {
  SampleState(scheduler_, sample.timing.process_end_ns, sample);
  samples_.push_back(sample);
  last_sample_ = sample;
}

void EngineCore::FlushSamples() {
  if (stats_ == nullptr) return;
  // What changed without a step: arrivals and ends.
  StepSample state;
  SampleState(scheduler_, clock_.NowNs(), state);
  if (state.num_running != last_sample_.num_running || state.num_waiting != last_sample_.num_waiting ||
      state.num_used_blocks != last_sample_.num_used_blocks || state.stats.num_finished != last_sample_.stats.num_finished) {
    samples_.push_back(state);
    last_sample_ = state;
  }
  if (samples_.empty()) return;
  {
    std::lock_guard lock(output_mutex_);
    sample_queue_.insert(sample_queue_.end(), samples_.begin(), samples_.end());
  }
  samples_.clear();
  output_changed_.notify_one();
}

void EngineCore::Dispatch(Flight* flight) {
  if (flight != nullptr) {
    for (const StepResult::PromptLogprobs& part : flight->result.prompt_logprobs) {
      const auto it = requests_.find(flight->plan.rows[static_cast<size_t>(part.row)].sequence_id);
      if (it == requests_.end()) continue;
      std::vector<float>& all = it->second->prompt_logprobs_;
      for (size_t i = 0; i < part.values.size(); ++i) {
        const size_t at = static_cast<size_t>(part.first_position) + i;
        if (at < all.size()) all[at] = part.values[i];
      }
    }
  }
  events_.clear();
  scheduler_.TakeEvents(events_);
  if (events_.empty()) return;
  int64_t num_ended = 0;
  {
    std::lock_guard lock(output_mutex_);
    sample_queue_.insert(sample_queue_.end(), samples_.begin(), samples_.end());
    samples_.clear();
    for (SequenceEvent& event : events_) {
      const auto it = requests_.find(event.id);
      DI_CHECK(it != requests_.end()) << "event of sequence " << event.id << ", which nobody asked for";
      Delivery& delivery = output_queue_.emplace_back();
      delivery.request = it->second;
      RequestHandle& handle = *it->second;
      CoreOutput& out = delivery.output;
      out.sample = static_cast<int>(event.id - handle.request_.first_id);
      if (event.token >= 0 && flight != nullptr) {
        out.token = std::move(flight->result.OutputOf(event.row, event.token_in_row));
        DI_CHECK(out.token.token_id == event.token) << "token of row " << event.row;
        out.begins_step = event.token_in_row == 0;
        out.cached_tokens = event.cached_tokens;
        if (event.cached_tokens >= 0 && out.sample == 0) out.prompt_logprobs = std::move(handle.prompt_logprobs_);
      }
      out.token.num_output_tokens = event.num_output;
      out.is_stop_token = event.is_stop_token;
      out.finish_reason = event.finish_reason;
      if (event.finish_reason == FinishReason::kNone) continue;
      ++num_ended;
      OnSampleEnd(handle);
      requests_.erase(it);
    }
  }
  output_changed_.notify_one();
  if (num_ended == 0) return;
  std::lock_guard lock(inbox_mutex_);
  num_live_ -= num_ended;
}

void EngineCore::PublishSnapshot() {
  std::lock_guard lock(inbox_mutex_);
  snapshot_.stats = scheduler_.stats();
  snapshot_.num_waiting = scheduler_.num_waiting() + static_cast<int64_t>(compiling_.size());
  snapshot_.num_running = scheduler_.num_running() + scheduler_.num_prompted();
  snapshot_.num_used_blocks = scheduler_.blocks().num_used();
  snapshot_.num_used_slots = scheduler_.slots().num_used();
  snapshot_.num_cached_blocks = scheduler_.prefix_cache().num_blocks();
  snapshot_.num_steps = num_steps_;
  snapshot_.last_step_ns = last_step_ns_;
  is_idle_ = flights_.empty() && !scheduler_.has_work() && compiling_.empty() && inbox_.empty();
  if (is_idle_) drained_.notify_all();
}

// ---- compute thread -------------------------------------------------------------------------------------------------------

void EngineCore::ComputeLoop() {
  std::unique_lock lock(compute_mutex_);
  for (;;) {
    compute_changed_.wait(lock, [&] { return !compute_queue_.empty() || compute_stops_; });
    if (compute_queue_.empty()) return;
    Flight* const flight = compute_queue_.front();
    compute_queue_.pop_front();
    lock.unlock();
    flight->timing.run_begin_ns = clock_.NowNs();
    executor_.Run(flight->plan, flight->result);
    flight->timing.run_end_ns = clock_.NowNs();
    lock.lock();
    flight->is_done = true;
    // With the lock held: the scheduler thread cannot take it away from the next step's start.
    step_done_.notify_one();
  }
}

// ---- output thread --------------------------------------------------------------------------------------------------------

void EngineCore::OutputLoop() {
  std::vector<Delivery> taken;
  std::vector<StepSample> samples;
  for (;;) {
    {
      std::unique_lock lock(output_mutex_);
      output_changed_.wait(lock, [&] { return !output_queue_.empty() || !sample_queue_.empty() || output_stops_; });
      if (output_queue_.empty() && sample_queue_.empty()) return;
      taken.swap(output_queue_);
      samples.swap(sample_queue_);
    }
    // Outputs first: their requests wait.
    const int64_t begin_ns = stats_ != nullptr ? clock_.NowNs() : 0;
    for (Delivery& delivery : taken) Deliver(delivery, begin_ns);
    if (stats_ != nullptr) {
      if (!taken.empty()) stats_->OnDelivered(clock_.NowNs() - begin_ns);
      for (const StepSample& sample : samples) stats_->OnStep(sample);
    }
    taken.clear();
    samples.clear();
  }
}

void EngineCore::Deliver(Delivery& delivery, int64_t now_ns) {
  RequestHandle& handle = *delivery.request;
  CoreOutput& output = delivery.output;
  const bool is_last = output.finish_reason != FinishReason::kNone;
  FinishReason& stopped = handle.stopped_[static_cast<size_t>(output.sample)];
  if (stopped != FinishReason::kNone) {
    // The receiver has ended this sample: what was on its way is dropped, the end is the one it asked for.
    if (!is_last) return;
    output.token = TokenOutput();
    output.is_stop_token = false;
    output.finish_reason = stopped;
  }
  if (stats_ != nullptr)
    stats_->OnOutput(handle.times_, output.sample, output.token.token_id >= 0, output.cached_tokens, output.finish_reason, now_ns);
  if (handle.callback_) {
    const StreamAction action =
        RunOutputCallback([&] { return handle.callback_(output); }).value_or(StreamAction::kAbort);
    if (action != StreamAction::kContinue && !is_last) {
      stopped = action == StreamAction::kStop ? FinishReason::kStop : FinishReason::kAbort;
      handle.CancelSample(output.sample, stopped);
    }
  }
  if (!handle.callback_) handle.outputs_.Push(std::move(output));
  if (is_last) handle.outputs_.CloseOne();
}

}  // namespace deepinfer::engine
