// SPDX-License-Identifier: Apache-2.0
#include "constrain/compile_service.h"

#include <condition_variable>
#include <mutex>
#include <thread>

#include <gtest/gtest.h>

#include "constrain/fake_grammar.h"

namespace deepinfer::constrain {
namespace {

// Moves when told, read by several threads.
class SharedClock : public Clock {
 public:
  int64_t NowNs() const override { return now_ns_; }
  void AdvanceMs(int64_t ms) { now_ns_ += ms * 1'000'000; }

 private:
  std::atomic<int64_t> now_ns_ = 0;
};

class Signal {
 public:
  std::function<void()> Callback() {
    return [this] {
      std::lock_guard lock(mutex_);
      ++count_;
      changed_.notify_all();
    };
  }
  void WaitFor(int count) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return count_ >= count; });
  }
  int count() {
    std::lock_guard lock(mutex_);
    return count_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int count_ = 0;
};

class CompileServiceTest : public ::testing::Test {
 protected:
  CompileServiceTest() { options.clock = &clock; }
  ~CompileServiceTest() override { backend->OpenGate(); }
  std::unique_ptr<CompileService> Make() {
    return std::make_unique<CompileService>(
        [this]() -> Result<std::shared_ptr<GrammarBackend>> {
          ++num_backends;
          return std::shared_ptr<GrammarBackend>(backend);
        },
        options);
  }
  static GrammarSpec Spec(std::string text) {
    GrammarSpec spec;
    spec.kind = GrammarKind::kRegex;
    spec.text = std::move(text);
    return spec;
  }

  SharedClock clock;
  CompileServiceOptions options;
  std::shared_ptr<FakeGrammarBackend> backend = std::make_shared<FakeGrammarBackend>(100, std::vector<int32_t>{99});
  std::atomic<int> num_backends = 0;
};

TEST_F(CompileServiceTest, ThreadsAndBackendComeWithTheFirstRequest) {
  const auto service = Make();
  EXPECT_EQ(num_backends, 0);
  const auto grammar = service->Compile(Spec("1 2"));
  ASSERT_TRUE(grammar.ok()) << grammar.status().ToString();
  EXPECT_EQ((*grammar)->vocab_size(), 100);
  EXPECT_TRUE(service->Compile(Spec("3")).ok());
  EXPECT_EQ(num_backends, 1);
}

TEST_F(CompileServiceTest, EqualGrammarsShareOneCompilation) {
  const auto service = Make();
  backend->CloseGate();
  Signal signal;
  const auto first = service->Submit(Spec("1"), signal.Callback());
  const auto second = service->Submit(Spec("1"), signal.Callback());
  EXPECT_FALSE(first->is_done());
  backend->OpenGate();
  signal.WaitFor(2);
  EXPECT_EQ(*first->result(), *second->result());
  EXPECT_EQ(backend->num_compiles, 1);
  EXPECT_EQ(service->stats().num_shared, 1);
  // Ready now: the ticket is done when Submit returns.
  EXPECT_TRUE(service->Submit(Spec("1"), signal.Callback())->is_done());
  EXPECT_EQ(signal.count(), 3);
  EXPECT_EQ(service->stats().num_cache_hits, 1);
}

TEST_F(CompileServiceTest, ErrorsReachTheCallerAndAreNotCached) {
  const auto service = Make();
  EXPECT_EQ(service->Compile(Spec("fail")).status().message(), "the fake grammar does not compile");
  EXPECT_FALSE(service->Compile(Spec("fail")).ok());
  EXPECT_EQ(backend->num_compiles, 2);
  EXPECT_EQ(service->Compile(Spec("a{100001}")).status().message().rfind("grammar limit max_repetition", 0), 0u);
  EXPECT_EQ(service->Compile(Spec(std::string(2 << 20, 'a'))).status().message().rfind("grammar limit max_text_bytes", 0), 0u);
  GrammarSpec invalid = Spec("1");
  invalid.invalid = "wrong";
  EXPECT_EQ(service->Compile(invalid).status().message(), "wrong");
  EXPECT_EQ(backend->num_compiles, 2);
}

TEST_F(CompileServiceTest, ABackendThatCannotBeMadeFailsEveryRequest) {
  CompileService service([]() -> Result<std::shared_ptr<GrammarBackend>> { return Unimplemented("no grammars here"); }, options);
  for (int i = 0; i < 2; ++i) EXPECT_EQ(service.Compile(Spec("1")).status().message(), "no grammars here");
}

TEST_F(CompileServiceTest, TimeoutEndsTheWaitNotTheOthers) {
  options.timeout_ms = 1000;
  options.num_workers = 1;
  const auto service = Make();
  backend->CloseGate();
  Signal signal;
  const auto slow = service->Submit(Spec("1"), signal.Callback());
  backend->WaitForWaiting(1);
  clock.AdvanceMs(600);
  const auto queued = service->Submit(Spec("2"), signal.Callback());
  clock.AdvanceMs(399);
  service->CheckDeadlines();
  EXPECT_FALSE(slow->is_done());
  clock.AdvanceMs(1);
  service->CheckDeadlines();
  ASSERT_TRUE(slow->is_done());
  EXPECT_EQ(slow->result().status().code(), StatusCode::kDeadlineExceeded);
  EXPECT_EQ(slow->result().status().message().rfind("xgrammar timeout", 0), 0u);
  EXPECT_FALSE(queued->is_done());
  backend->OpenGate();
  signal.WaitFor(2);
  EXPECT_TRUE(queued->result().ok());
  // The slow one went on and is ready for the next request.
  EXPECT_TRUE(service->Submit(Spec("1"))->is_done());
  EXPECT_EQ(service->stats().num_timeouts, 1);
}

TEST_F(CompileServiceTest, RequestsNobodyWaitsForLeaveTheQueue) {
  options.num_workers = 1;
  const auto service = Make();
  backend->CloseGate();
  (void)service->Submit(Spec("1"));
  backend->WaitForWaiting(1);
  (void)service->Submit(Spec("2"));
  clock.AdvanceMs(options.timeout_ms);
  service->CheckDeadlines();
  backend->OpenGate();
  EXPECT_TRUE(service->Compile(Spec("3")).ok());
  EXPECT_EQ(backend->num_compiles, 2);  // "2" was never compiled
}

TEST_F(CompileServiceTest, AHangingWorkerIsReplacedAndItsGrammarRefused) {
  options.num_workers = 1;
  const auto service = Make();
  backend->CloseGate();
  const auto hangs = service->Submit(Spec("1"));
  backend->WaitForWaiting(1);
  clock.AdvanceMs(3 * options.timeout_ms);
  service->CheckDeadlines();
  EXPECT_TRUE(hangs->is_done());
  EXPECT_EQ(service->stats().num_replaced_workers, 1);
  const auto denied = service->Submit(Spec("1"));
  ASSERT_TRUE(denied->is_done());
  EXPECT_EQ(denied->result().status().message().rfind("xgrammar timeout", 0), 0u);
  // The new worker takes other grammars while the old one still hangs.
  Signal signal;
  const auto other = service->Submit(Spec("2"), signal.Callback());
  backend->WaitForWaiting(2);
  backend->OpenGate();
  signal.WaitFor(1);
  EXPECT_TRUE(other->result().ok());
  EXPECT_FALSE(service->Compile(Spec("1")).ok());
  clock.AdvanceMs(options.deny_ms);
  EXPECT_TRUE(service->Compile(Spec("1")).ok());
}

TEST_F(CompileServiceTest, CacheKeepsTheLimitInBytes) {
  backend->bytes_per_grammar = 1000;
  options.cache_limit_bytes = 3100;  // three with their keys
  const auto service = Make();
  for (const char* text : {"1", "2", "3"}) ASSERT_TRUE(service->Compile(Spec(text)).ok());
  ASSERT_TRUE(service->Compile(Spec("1")).ok());  // the most recent one now
  ASSERT_TRUE(service->Compile(Spec("4")).ok());
  EXPECT_LE(service->stats().cache_bytes, options.cache_limit_bytes);
  EXPECT_EQ(service->stats().num_cached, 3);
  EXPECT_EQ(service->stats().num_evicted, 1);
  EXPECT_TRUE(service->Submit(Spec("1"))->is_done());
  EXPECT_EQ(backend->num_compiles, 4);
  ASSERT_TRUE(service->Compile(Spec("2")).ok());
  EXPECT_EQ(backend->num_compiles, 5);
  backend->bytes_per_grammar = 4000;  // larger than the cache
  ASSERT_TRUE(service->Compile(Spec("5")).ok());
  EXPECT_EQ(service->stats().num_cached, 3);
}

TEST_F(CompileServiceTest, NoCacheCompilesEveryTime) {
  options.enable_cache = false;
  const auto service = Make();
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(service->Compile(Spec("1")).ok());
  EXPECT_EQ(backend->num_compiles, 3);
}

TEST_F(CompileServiceTest, ShutdownReleasesWhoWaits) {
  options.num_workers = 1;
  const auto service = Make();
  backend->CloseGate();
  Signal signal;
  const auto running = service->Submit(Spec("1"), signal.Callback());
  const auto queued = service->Submit(Spec("2"), signal.Callback());
  backend->WaitForWaiting(1);
  std::thread opener([&] {
    signal.WaitFor(2);  // both were told before the worker was done
    backend->OpenGate();
  });
  service->Shutdown();
  opener.join();
  for (const auto& ticket : {running, queued}) EXPECT_EQ(ticket->result().status().code(), StatusCode::kUnavailable);
  EXPECT_EQ(service->Submit(Spec("3"))->result().status().code(), StatusCode::kUnavailable);
}

// With the machine's clock the watcher acts by itself.
TEST_F(CompileServiceTest, TheWatcherNeedsNoHelp) {
  options.clock = &Clock::Steady();
  options.timeout_ms = 20;
  const auto service = Make();
  backend->CloseGate();
  EXPECT_EQ(service->Compile(Spec("1")).status().code(), StatusCode::kDeadlineExceeded);
}

TEST_F(CompileServiceTest, ManyThreadsAtOnce) {
  options.cache_limit_bytes = 5000;
  const auto service = Make();
  std::vector<std::thread> threads;
  std::atomic<int> num_good = 0;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 200; ++i) {
        if (service->Compile(Spec(std::to_string((i * 7 + t) % 10))).ok()) ++num_good;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(num_good, 800);
  EXPECT_LE(service->stats().cache_bytes, options.cache_limit_bytes);
}

}  // namespace
}  // namespace deepinfer::constrain
