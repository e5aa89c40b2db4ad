// SPDX-License-Identifier: Apache-2.0
#include "constrain/compile_service.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <list>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "core/log.h"

namespace deepinfer::constrain {
namespace {

using GrammarResult = Result<std::shared_ptr<const CompiledGrammar>>;

// A worker is given up after that many time limits.
constexpr int kHangFactor = 3;
// Workers that hang at the same time, as a multiple of num_workers: beyond it none is replaced.
constexpr int kMaxHungFactor = 4;
constexpr std::chrono::seconds kShutdownGrace{2};
constexpr int kNice = 5;

Status TimeoutStatus(int64_t timeout_ms) {
  return Status(StatusCode::kDeadlineExceeded,
                fmt::format("xgrammar timeout: the grammar was not compiled within {:.1f} s; simplify it or raise "
                            "DEEPINFER_XGRAMMAR_TIMEOUT", static_cast<double>(timeout_ms) * 1e-3));
}

struct Waiter {
  std::shared_ptr<CompileTicket> ticket;
  std::function<void()> on_done;
  int64_t deadline_ns = 0;
};

struct Job {
  GrammarSpec spec;
  std::string key;
  std::vector<Waiter> waiters;
  int64_t started_ns = -1;  // -1 = in the queue
  bool is_given_up = false;
};

struct CacheEntry {
  std::string key;
  std::shared_ptr<const CompiledGrammar> grammar;
  int64_t bytes = 0;
};

struct Worker {
  std::thread thread;
  bool has_ended = false;
};

}  // namespace

// Shared with the threads: one that hangs in a compilation outlives the service.
struct CompileService::State {
  State(BackendFactory factory, const CompileServiceOptions& o) : options(o), make_backend(std::move(factory)) {}

  const CompileServiceOptions options;
  std::mutex mutex;
  std::condition_variable work;   // the queue or is_stopping changed
  std::condition_variable watch;  // deadlines or is_stopping changed
  std::condition_variable ended;  // a worker has ended

  // All of it guarded by mutex.
  bool is_started = false;
  bool is_stopping = false;
  std::deque<std::shared_ptr<Job>> queue;
  std::unordered_map<std::string, std::shared_ptr<Job>> jobs;  // queued and running ones
  std::list<CacheEntry> cache;  // most recently used first
  std::unordered_map<std::string, std::list<CacheEntry>::iterator> cache_index;
  std::unordered_map<uint64_t, int64_t> denied_until_ns;
  std::vector<std::shared_ptr<Worker>> workers;
  int num_hung = 0;
  Stats stats;
  std::thread watcher;

  std::mutex backend_mutex;  // held while the backend is made
  BackendFactory make_backend;
  std::optional<Result<std::shared_ptr<GrammarBackend>>> backend;

  using Finished = std::vector<std::function<void()>>;  // to be called without the lock

  static void Finish(Waiter* waiter, const GrammarResult& result, Finished* finished) {
    waiter->ticket->result_.emplace(result);
    waiter->ticket->done_.store(true, std::memory_order_release);
    if (waiter->on_done) finished->push_back(std::move(waiter->on_done));
  }

  GrammarResult CompileNow(const GrammarSpec& spec) {
    DI_RETURN_IF_ERROR(CheckLimits(spec, options.limits));
    std::shared_ptr<GrammarBackend> compiler;
    {
      std::lock_guard lock(backend_mutex);
      if (!backend) backend.emplace(make_backend());
      if (!backend->ok()) return backend->status();
      compiler = backend->value();
    }
    return compiler->Compile(spec);
  }

  void StoreInCache(const Job& job, const std::shared_ptr<const CompiledGrammar>& grammar) {
    const int64_t limit = options.cache_limit_bytes;
    const int64_t bytes = grammar->memory_bytes() + static_cast<int64_t>(job.key.size());
    if (!options.enable_cache || (limit > 0 && bytes > limit) || cache_index.count(job.key) != 0) return;
    cache.push_front({job.key, grammar, bytes});
    cache_index[job.key] = cache.begin();
    stats.cache_bytes += bytes;
    while (limit > 0 && stats.cache_bytes > limit) {
      stats.cache_bytes -= cache.back().bytes;
      cache_index.erase(cache.back().key);
      cache.pop_back();
      ++stats.num_evicted;
    }
    stats.num_cached = static_cast<int64_t>(cache.size());
  }

  void WorkerLoop(const std::shared_ptr<Worker>& self) {
    // Compiling gives way to decoding. On Linux the value is the thread's, and that of the threads it starts.
    (void)setpriority(PRIO_PROCESS, static_cast<id_t>(gettid()), kNice);
    std::unique_lock lock(mutex);
    while (true) {
      work.wait(lock, [&] { return is_stopping || !queue.empty(); });
      if (is_stopping) break;
      const std::shared_ptr<Job> job = queue.front();
      queue.pop_front();
      job->started_ns = options.clock->NowNs();
      watch.notify_one();
      lock.unlock();
      const GrammarResult result = CompileNow(job->spec);
      Finished finished;
      lock.lock();
      ++stats.num_compiled;
      if (job->is_given_up) {
        --num_hung;
        break;  // another thread has its place
      }
      jobs.erase(job->key);
      if (result.ok() && !is_stopping) StoreInCache(*job, *result);
      for (Waiter& waiter : job->waiters) Finish(&waiter, result, &finished);
      job->waiters.clear();
      if (finished.empty()) continue;
      lock.unlock();
      for (const auto& on_done : finished) on_done();
      lock.lock();
    }
    self->has_ended = true;
    ended.notify_all();
  }

  // Earliest moment at which CheckDeadlines has something to do; -1 = none.
  int64_t NextDeadline() const {
    int64_t next = -1;
    const auto add = [&](int64_t ns) { next = next < 0 ? ns : std::min(next, ns); };
    for (const auto& [key, job] : jobs) {
      for (const Waiter& waiter : job->waiters) add(waiter.deadline_ns);
      if (job->started_ns >= 0 && can_replace_workers()) add(HangDeadline(*job));
    }
    return next;
  }
  bool can_replace_workers() const { return num_hung < kMaxHungFactor * options.num_workers; }
  int64_t HangDeadline(const Job& job) const { return job.started_ns + kHangFactor * options.timeout_ms * 1'000'000; }

  static void StartWorker(const std::shared_ptr<State>& state) {
    auto worker = std::make_shared<Worker>();
    worker->thread = std::thread([state, worker] { state->WorkerLoop(worker); });
    state->workers.push_back(worker);
  }

  // With the mutex held.
  static void CheckDeadlines(const std::shared_ptr<State>& state, Finished* finished) {
    const int64_t now = state->options.clock->NowNs();
    std::vector<std::shared_ptr<Job>> all;
    for (const auto& [key, job] : state->jobs) all.push_back(job);
    for (const std::shared_ptr<Job>& job : all) {
      for (Waiter& waiter : job->waiters) {
        if (waiter.deadline_ns > now) continue;
        Finish(&waiter, TimeoutStatus(state->options.timeout_ms), finished);
        ++state->stats.num_timeouts;
      }
      std::erase_if(job->waiters, [](const Waiter& waiter) { return waiter.ticket->is_done(); });
      if (job->started_ns < 0 && job->waiters.empty()) {  // nobody waits for it any more
        std::erase(state->queue, job);
        state->jobs.erase(job->key);
      } else if (job->started_ns >= 0 && now >= state->HangDeadline(*job) && state->can_replace_workers()) {
        GiveUp(state, job, now);
      }
    }
  }

  static void GiveUp(const std::shared_ptr<State>& state, const std::shared_ptr<Job>& job, int64_t now) {
    job->is_given_up = true;
    ++state->num_hung;
    ++state->stats.num_replaced_workers;
    state->jobs.erase(job->key);
    state->denied_until_ns[GrammarHash(job->spec)] = now + state->options.deny_ms * 1'000'000;
    std::erase_if(state->denied_until_ns, [&](const auto& entry) { return entry.second <= now; });
    DI_LOG(warn, "structured output: grammar {:016x} still compiles after {:.0f} s; its worker is replaced and it is refused for {:.0f} s",
           GrammarHash(job->spec), static_cast<double>(now - job->started_ns) * 1e-9,
           static_cast<double>(state->options.deny_ms) * 1e-3);
    StartWorker(state);
  }

  static void WatcherLoop(const std::shared_ptr<State>& state) {
    std::unique_lock lock(state->mutex);
    while (!state->is_stopping) {
      const int64_t next = state->NextDeadline();
      if (next < 0) {
        state->watch.wait(lock);
      } else if (const int64_t wait_ns = next - state->options.clock->NowNs(); wait_ns > 0) {
        state->watch.wait_for(lock, std::chrono::nanoseconds(wait_ns));
      }
      if (state->is_stopping) break;
      Finished finished;
      CheckDeadlines(state, &finished);
      if (finished.empty()) continue;
      lock.unlock();
      for (const auto& on_done : finished) on_done();
      lock.lock();
    }
  }

  // Answers at once if it can.
  std::optional<GrammarResult> Lookup(const GrammarSpec& spec, const std::string& key, int64_t now) {
    if (is_stopping) return GrammarResult(Unavailable("structured outputs are shut down"));
    if (const auto denied = denied_until_ns.find(GrammarHash(spec)); denied != denied_until_ns.end() && denied->second > now) {
      ++stats.num_denied;
      return GrammarResult(Status(StatusCode::kDeadlineExceeded,
                                  fmt::format("xgrammar timeout: this grammar took too long before; it is refused for {:.0f} s",
                                              static_cast<double>(denied->second - now) * 1e-9)));
    }
    if (const auto found = cache_index.find(key); found != cache_index.end()) {
      ++stats.num_cache_hits;
      cache.splice(cache.begin(), cache, found->second);
      return GrammarResult(found->second->grammar);
    }
    return std::nullopt;
  }
};

CompileService::CompileService(BackendFactory make_backend, const CompileServiceOptions& options)
    : state_(std::make_shared<State>(std::move(make_backend), options)) {}

CompileService::~CompileService() { Shutdown(); }

std::shared_ptr<CompileTicket> CompileService::Submit(const GrammarSpec& spec, std::function<void()> on_done) {
  auto ticket = std::make_shared<CompileTicket>();
  Waiter waiter{ticket, std::move(on_done), 0};
  State::Finished finished;
  const auto text_bytes = static_cast<int64_t>(spec.text.size());
  if (!spec.invalid.empty()) {
    State::Finish(&waiter, InvalidArgument(spec.invalid, "so_args"), &finished);
  } else if (text_bytes > state_->options.limits.max_text_bytes) {
    State::Finish(&waiter, CheckLimits(spec, state_->options.limits), &finished);
  } else {
    const std::string key = GrammarKey(spec);
    std::lock_guard lock(state_->mutex);
    const int64_t now = state_->options.clock->NowNs();
    waiter.deadline_ns = now + state_->options.timeout_ms * 1'000'000;
    if (const std::optional<GrammarResult> known = state_->Lookup(spec, key, now)) {
      State::Finish(&waiter, *known, &finished);
    } else if (const auto job = state_->jobs.find(key); job != state_->jobs.end()) {
      ++state_->stats.num_shared;
      job->second->waiters.push_back(std::move(waiter));
      state_->watch.notify_one();
    } else {
      if (!state_->is_started) {
        state_->is_started = true;
        if (state_->options.enable_cache && state_->options.cache_limit_bytes <= 0) {
          DI_LOG(warn, "structured output: the cache of compiled grammars has no limit and can exhaust the memory");
        }
        for (int i = 0; i < std::max(state_->options.num_workers, 1); ++i) State::StartWorker(state_);
        state_->watcher = std::thread([state = state_] { State::WatcherLoop(state); });
      }
      auto added = std::make_shared<Job>();
      added->spec = spec;
      added->key = key;
      added->waiters.push_back(std::move(waiter));
      state_->jobs[key] = added;
      state_->queue.push_back(std::move(added));
      state_->work.notify_one();
      state_->watch.notify_one();
    }
  }
  for (const auto& done : finished) done();
  return ticket;
}

Result<std::shared_ptr<const CompiledGrammar>> CompileService::Compile(const GrammarSpec& spec) {
  struct Signal {
    std::mutex mutex;
    std::condition_variable changed;
    bool is_set = false;
  };
  auto signal = std::make_shared<Signal>();
  const auto ticket = Submit(spec, [signal] {
    std::lock_guard lock(signal->mutex);
    signal->is_set = true;
    signal->changed.notify_all();
  });
  std::unique_lock lock(signal->mutex);
  signal->changed.wait(lock, [&] { return signal->is_set; });
  return ticket->result();
}

void CompileService::CheckDeadlines() {
  State::Finished finished;
  {
    std::lock_guard lock(state_->mutex);
    State::CheckDeadlines(state_, &finished);
  }
  for (const auto& done : finished) done();
}

void CompileService::Shutdown() {
  State::Finished finished;
  std::vector<std::shared_ptr<Worker>> workers;
  {
    std::lock_guard lock(state_->mutex);
    state_->is_stopping = true;
    for (const auto& [key, job] : state_->jobs) {
      for (Waiter& waiter : job->waiters) State::Finish(&waiter, Unavailable("structured outputs are shut down"), &finished);
      job->waiters.clear();
    }
    state_->jobs.clear();
    state_->queue.clear();
    state_->cache_index.clear();
    state_->cache.clear();
    state_->stats.cache_bytes = 0;
    state_->stats.num_cached = 0;
    workers.swap(state_->workers);
    state_->work.notify_all();
    state_->watch.notify_all();
  }
  for (const auto& done : finished) done();
  if (state_->watcher.joinable()) state_->watcher.join();
  {
    std::unique_lock lock(state_->mutex);
    state_->ended.wait_for(lock, kShutdownGrace, [&] {
      return std::all_of(workers.begin(), workers.end(), [](const auto& worker) { return worker->has_ended; });
    });
  }
  for (const std::shared_ptr<Worker>& worker : workers) {
    bool has_ended = false;
    {
      std::lock_guard lock(state_->mutex);
      has_ended = worker->has_ended;
    }
    if (has_ended) {
      worker->thread.join();
    } else {
      worker->thread.detach();  // it compiles something endless; it holds the state it needs
    }
  }
}

CompileService::Stats CompileService::stats() const {
  std::lock_guard lock(state_->mutex);
  return state_->stats;
}

}  // namespace deepinfer::constrain
