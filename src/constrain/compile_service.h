// SPDX-License-Identifier: Apache-2.0
//
// CompileService: grammars compiled on threads of their own, so that no step waits for one. Submit never blocks. Equal
// grammars share one compilation and one cache entry. A compilation that outlives its time limit fails for those who wait;
// much later its worker is replaced and the grammar is denied for a while. Threads and backend come into being with the
// first Submit. Thread-safe.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "constrain/grammar.h"
#include "constrain/limits.h"
#include "core/clock.h"
#include "core/status.h"

namespace deepinfer::constrain {

struct CompileServiceOptions {
  int num_workers = 4;
  int64_t timeout_ms = 20'000;             // from Submit
  int64_t cache_limit_bytes = int64_t{1} << 30;  // <= 0: unlimited (with a warning)
  bool enable_cache = true;
  int64_t deny_ms = 600'000;               // how long a grammar that hung a worker is refused
  GrammarLimits limits;
  const Clock* clock = &Clock::Steady();
};

// One request's wait for its grammar.
class CompileTicket {
 public:
  bool is_done() const { return done_.load(std::memory_order_acquire); }
  // Once is_done(). Errors: kInvalidArgument (the grammar), kDeadlineExceeded ("xgrammar timeout ..."), kUnavailable (shut
  // down), kUnimplemented (built without a grammar library).
  const Result<std::shared_ptr<const CompiledGrammar>>& result() const { return *result_; }

 private:
  friend class CompileService;
  std::atomic<bool> done_ = false;
  std::optional<Result<std::shared_ptr<const CompiledGrammar>>> result_;
};

class CompileService {
 public:
  using BackendFactory = std::function<Result<std::shared_ptr<GrammarBackend>>()>;

  // The factory is called once, on a worker.
  CompileService(BackendFactory make_backend, const CompileServiceOptions& options);
  ~CompileService();  // Shutdown()
  CompileService(const CompileService&) = delete;
  CompileService& operator=(const CompileService&) = delete;

  // Limits and rewriting, then cache, then a worker. on_done is called exactly once, right after the ticket is done, on the
  // calling thread (cached, refused) or on one of the service's; it must not block and may be empty.
  std::shared_ptr<CompileTicket> Submit(const GrammarSpec& spec, std::function<void()> on_done = {});
  // Submit and wait, for callers that have nothing else to do (command line, validation before queueing).
  Result<std::shared_ptr<const CompiledGrammar>> Compile(const GrammarSpec& spec);

  // Ends what is overdue by the clock now. The service does it by itself; tests with a clock of their own call it.
  void CheckDeadlines();
  // Pending tickets fail, the cache is emptied. A worker that hangs in a compilation is left behind.
  void Shutdown();

  struct Stats {
    int64_t num_compiled = 0;
    int64_t num_cache_hits = 0;   // ready entries; joining a running compilation counts as shared
    int64_t num_shared = 0;
    int64_t num_timeouts = 0;
    int64_t num_denied = 0;
    int64_t num_evicted = 0;
    int64_t num_replaced_workers = 0;
    int64_t cache_bytes = 0;
    int64_t num_cached = 0;
  };
  Stats stats() const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace deepinfer::constrain
