// SPDX-License-Identifier: Apache-2.0
//
// Soaks that are not in engine_test: random traffic on the nano model, and memory over many requests. Short by default;
// DEEPINFER_SOAK_SECONDS and DEEPINFER_SOAK_REQUESTS make them long (./build.sh soak engine).
#include <malloc.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <mutex>
#include <thread>

#include "core/log.h"
#include "engine/async_engine.h"
#include "engine/real_models.h"

namespace deepinfer::engine {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kHasSanitizer = true;  // it keeps freed memory
#else
constexpr bool kHasSanitizer = false;
#endif

double Number(const char* name, double otherwise) {
  const char* text = std::getenv(name);
  return text != nullptr ? std::atof(text) : otherwise;
}

// Requests from three threads on the real model: arrivals, cancels at any moment, samples, shared prefixes, priorities, far
// too little memory. What ends by itself is what one sequence at a time gives, bit for bit; what was cancelled its beginning.
TEST(EngineSoak, NanoTraffic) {
  const auto model = LoadNano({model::DecoderReplay::kCompact, kNanoKeep, 2});
  const auto reference_model = LoadNano();
  std::mutex reference_mutex;
  std::vector<EngineRequest> pool;
  std::mt19937_64 pool_rng(64);
  // Answers of the pool are computed when they are first needed.
  for (int i = 0; i < 400; ++i) {
    EngineRequest& r = pool.emplace_back(RandomRequest(pool_rng, 320, 400));
    r.params.max_tokens = static_cast<int64_t>(1 + pool_rng() % 40);
    r.params.priority = static_cast<int>(pool_rng() % 3);
    if (pool_rng() % 6 == 0 && !r.params.is_greedy()) r.params.n = 3;
    if (pool_rng() % 4 == 0) r.params.logit_bias[kModelEnd] = 6;
    if (pool_rng() % 8 == 0) r.cache_mode = CacheMode::kOff;
  }
  std::vector<std::vector<Answer>> answers(pool.size());
  const auto reference = [&](size_t i) {
    std::lock_guard lock(reference_mutex);
    for (int s = static_cast<int>(answers[i].size()); s < pool[i].params.n; ++s) answers[i].push_back(RunAlone(*reference_model, pool[i], s));
    return answers[i];
  };

  EngineCoreOptions o = RealModelOptions(kNanoKeep);
  o.scheduler.cache_mode = CacheMode::kExact;
  o.scheduler.num_blocks = 14;
  o.scheduler.prefix_cache.num_state_records = 8;
  o.max_requests = 48;
  RealEngine engine(*model, o);
  const double end_s = Clock::Steady().NowSeconds() + Number("DEEPINFER_SOAK_SECONDS", 0);
  std::atomic<int64_t> num_requests{0}, num_tokens{0}, num_cancelled{0}, num_refused{0};
  const auto client = [&](uint64_t seed) {
    std::mt19937_64 rng(seed);
    for (int round = 0; round < 4 || Clock::Steady().NowSeconds() < end_s; ++round) {
      std::vector<std::pair<size_t, std::shared_ptr<RequestHandle>>> open;
      for (uint64_t k = 1 + rng() % 8; k > 0; --k) {
        const size_t i = rng() % pool.size();
        auto handle = engine.core->Submit(pool[i]);
        if (!handle.ok()) {
          ASSERT_EQ(handle.status().code(), StatusCode::kResourceExhausted);
          ++num_refused;
          continue;
        }
        ++num_requests;
        open.emplace_back(i, std::move(handle).value());
      }
      for (auto& [i, handle] : open) {
        const std::vector<Answer> want = reference(i);
        const bool is_cancelled = rng() % 3 == 0;
        std::vector<Answer> got(want.size());
        int64_t cancel_after = is_cancelled ? static_cast<int64_t>(rng() % 20) : -1;
        if (cancel_after == 0) handle->Cancel();
        CoreOutput output;
        while (handle->Next(output)) {
          Answer& answer = got.at(static_cast<size_t>(output.sample));
          ASSERT_EQ(answer.reason, FinishReason::kNone) << "an output after the end";
          if (output.token.token_id >= 0) {
            answer.ids.push_back(output.token.token_id);
            answer.logprobs.push_back(output.token.logprob);
            ASSERT_EQ(output.token.num_output_tokens, static_cast<int64_t>(answer.ids.size())) << "a token is lost or came twice";
          }
          answer.reason = output.finish_reason;
          if (--cancel_after == 0) handle->Cancel();
        }
        num_cancelled += is_cancelled ? 1 : 0;
        for (size_t s = 0; s < got.size(); ++s) {
          num_tokens += static_cast<int64_t>(got[s].ids.size());
          if (got[s].reason != FinishReason::kAbort) {
            ExpectSame(got[s], want[s], "request " + std::to_string(i) + " sample " + std::to_string(s));
            continue;
          }
          ASSERT_TRUE(is_cancelled);
          ASSERT_LE(got[s].ids.size(), want[s].ids.size());
          ASSERT_TRUE(std::equal(got[s].ids.begin(), got[s].ids.end(), want[s].ids.begin()));
          ASSERT_TRUE(SameBits(got[s].logprobs, std::span(want[s].logprobs).first(got[s].logprobs.size())));
        }
      }
    }
  };
  std::vector<std::thread> clients;
  for (uint64_t t = 0; t < 3; ++t) clients.emplace_back(client, 7 + t);
  for (std::thread& thread : clients) thread.join();
  const SchedulerStats stats = engine.Drain().stats;
  EXPECT_GT(num_cancelled, 0);
  EXPECT_GT(stats.num_preempted, 0);
  std::printf("nano traffic: %lld requests, %lld tokens, %lld cancelled, %lld refused, %lld preempted, %lld forked, %lld cached tokens\n",
              static_cast<long long>(num_requests), static_cast<long long>(num_tokens), static_cast<long long>(num_cancelled),
              static_cast<long long>(num_refused), static_cast<long long>(stats.num_preempted), static_cast<long long>(stats.num_forked),
              static_cast<long long>(stats.num_cached_tokens));
}

int64_t ResidentBytes() {
  int64_t total = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> total >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}
int64_t HeapBytes() { return static_cast<int64_t>(mallinfo2().uordblks); }

// Every request is new to the engine: other tokens, another salt now and then, text, stop strings, samples, cancels. After a
// tenth of them nothing may grow any more.
TEST(EngineSoak, MemoryOverManyRequests) {
  const auto words = text::Tokenizer::Load(DemoDir()).value();
  constexpr int kVocab = 600;
  constexpr int64_t kMaxLen = 640;
  AsyncEngineOptions o;
  o.core.scheduler.max_model_len = kMaxLen;
  o.core.scheduler.max_num_batched_tokens = 512;
  o.core.scheduler.max_num_seqs = 16;
  o.core.scheduler.num_blocks = 60;
  o.core.scheduler.decoder_keep = 140;
  o.core.scheduler.cache_mode = CacheMode::kExact;
  o.core.scheduler.prefix_cache.state_every_blocks = 1;
  o.core.scheduler.prefix_cache.num_state_records = 16;
  o.fingerprint.model_id = "fake";
  FakeStepModel model(kVocab, kMaxLen, o.core.scheduler.num_blocks, o.core.scheduler.num_state_slots(),
                      o.core.scheduler.prefix_cache.num_state_records);
  auto engine = AsyncEngine::Create(model, *words, std::move(o)).value();

  const auto num_requests = static_cast<int64_t>(Number("DEEPINFER_SOAK_REQUESTS", 3000));
  constexpr int64_t kInFlight = 32;
  std::deque<TextHandle> open;
  std::mt19937_64 rng(50);
  int64_t heap_bytes = 0, resident_bytes = 0, most_heap = 0, most_resident = 0, num_tokens = 0;
  for (int64_t i = 0; i < num_requests; ++i) {
    TextRequest r;
    for (uint64_t n = 1 + rng() % (rng() % 16 == 0 ? 400 : 40); n > 0; --n) r.prompt_ids.push_back(static_cast<int32_t>(rng() % kVocab));
    r.params.max_tokens = static_cast<int64_t>(1 + rng() % 16);
    r.params.seq_seed = rng();
    r.params.top_logprobs = rng() % 8 == 0 ? 5 : 0;
    if (rng() % 4 == 0) r.params.stop = {"e", "an"};
    if (rng() % 4 == 0) r.params.repetition_penalty = 1.1;
    if (rng() % 8 == 0) r.params.n = 3;
    if (rng() % 8 == 0) r.params.timeout_s = 1000;
    if (rng() % 3 == 0) r.cache_salt = "tenant " + std::to_string(i);
    auto handle = engine->Submit(std::move(r));
    ASSERT_TRUE(handle.ok()) << handle.status().message();
    if (rng() % 8 == 0) handle.value().Cancel();
    open.push_back(std::move(handle).value());
    if (static_cast<int64_t>(open.size()) < kInFlight) continue;
    for (const Completion& completion : open.front().TakeCompletions()) num_tokens += static_cast<int64_t>(completion.ids.size());
    open.pop_front();
    if (i % 250 != 0) continue;
    // Measured with nothing in flight.
    open.clear();
    engine->core().WaitIdle();
    EXPECT_EQ(engine->core().Stats().num_used_blocks, 0);
    EXPECT_LE(engine->core().Stats().num_cached_blocks, 59);
    if (i * 10 < num_requests) {
      heap_bytes = HeapBytes();
      resident_bytes = ResidentBytes();
    } else if (heap_bytes > 0) {
      most_heap = std::max(most_heap, HeapBytes() - heap_bytes);
      most_resident = std::max(most_resident, ResidentBytes() - resident_bytes);
    }
  }
  for (TextHandle& handle : open) handle.Wait();
  engine->core().Drain();
  const EngineCore::Snapshot stats = engine->core().Stats();
  EXPECT_EQ(stats.num_live, 0);
  EXPECT_EQ(stats.num_used_blocks, 0);
  EXPECT_EQ(stats.num_used_slots, 0);
  EXPECT_EQ(stats.stats.num_finished, stats.stats.num_added);
  std::printf("memory: %lld requests, %lld sequences, %lld tokens; after the first tenth the heap grew by %lld KiB, resident memory by %lld KiB\n",
              static_cast<long long>(num_requests), static_cast<long long>(stats.stats.num_added), static_cast<long long>(num_tokens),
              static_cast<long long>(most_heap / 1024), static_cast<long long>(most_resident / 1024));
  if (kHasSanitizer) return;
  // One leaked Completion per request would be megabytes.
  EXPECT_LT(most_heap, 512 * 1024);
  EXPECT_LT(most_resident, 4 * 1024 * 1024);
}

}  // namespace
}  // namespace deepinfer::engine
