// SPDX-License-Identifier: Apache-2.0
//
// The asynchronous engine on the checking fake model with the real sampler: what a request gets must not depend on its
// neighbours, on memory pressure or on timing, and nothing may be left behind.
#include "engine/engine_core.h"

#include <atomic>
#include <random>
#include <set>
#include <stdexcept>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/answers.h"
#include "engine/generator.h"
#include "fake_step_model.h"
#include "sampling/params.h"

namespace deepinfer::engine {
namespace {

constexpr int kVocab = 40;
constexpr int32_t kEnd = 3;

EngineCoreOptions Options() {
  EngineCoreOptions o;
  o.scheduler.max_model_len = 640;
  o.scheduler.max_num_batched_tokens = 256;
  o.scheduler.max_num_seqs = 16;
  o.scheduler.num_blocks = 100;
  o.scheduler.end_token_ids = {kEnd};
  o.scheduler.decoder_keep = 140;
  o.scheduler.cache_mode = CacheMode::kExact;
  o.scheduler.prefix_cache.state_every_blocks = 1;
  o.scheduler.prefix_cache.num_state_records = 16;
  o.end_token_id = kEnd;
  return o;
}

struct Engine {
  explicit Engine(EngineCoreOptions options = Options(), int num_threads = 1)
      : model(kVocab, options.scheduler.max_model_len, options.scheduler.num_blocks, options.scheduler.num_state_slots(),
              options.scheduler.prefix_cache.num_state_records, num_threads) {
    auto made = EngineCore::Create(model, std::move(options));
    EXPECT_TRUE(made.ok()) << made.status().message();
    core = std::move(made).value();
  }
  FakeStepModel model;
  std::unique_ptr<EngineCore> core;  // goes first
};

EngineRequest RandomRequest(std::mt19937_64& rng) {
  EngineRequest request;
  const uint64_t document = rng() % 3, shared = rng() % 2 == 0 ? rng() % 500 : 0, length = std::min<uint64_t>(shared + 1 + rng() % 140, 600);
  for (uint64_t i = 0; i < length; ++i)
    request.prompt_ids.push_back(static_cast<int32_t>(i < shared ? (document + 1) * (i + 5) * 13 % 37 : rng() % kVocab));
  SamplingParams& p = request.params;
  p.max_tokens = static_cast<int64_t>(1 + rng() % 40);
  switch (rng() % 4) {
    case 0: p.temperature = 0; break;
    case 1: p.top_p = 0.8; p.top_k = 10; break;
    case 2: p.presence_penalty = 1.0; p.repetition_penalty = 1.2; break;
    default: p.min_p = 0.05; p.temperature = 0.7;
  }
  p.seq_seed = rng() % 1000;
  if (rng() % 5 == 0) p.min_tokens = std::min<int64_t>(p.max_tokens, 5);
  if (rng() % 6 == 0) p.stop_token_ids = {7, 11};
  if (rng() % 6 == 0) p.top_logprobs = 3;
  return request;
}

// The same request computed token by token without an engine.
Answer Reference(const EngineRequest& request, const EngineCoreOptions& o, int sample = 0) {
  sampling::Sampler sampler(kVocab);
  const SamplingParams params = sampling::Normalized(request.params);
  sampling::TokenCounts counts(kVocab);
  counts.AddPrompt(request.prompt_ids);
  std::vector<int32_t> end_bans = params.stop_token_ids;
  end_bans.push_back(kEnd);
  uint64_t hash = 1;
  for (const int32_t id : request.prompt_ids) hash = HashToken(hash, id);
  std::vector<float> row(kVocab);
  Answer answer;
  while (answer.reason == FinishReason::kNone) {
    FakeStepModel::FillLogits(hash, row);
    sampling::RowContext context;
    context.seed = params.seq_seed.value_or(params.random_seed) + static_cast<uint64_t>(sample);
    context.position = static_cast<int32_t>(request.prompt_ids.size() + answer.ids.size());
    context.draw_mode = params.seq_seed ? sampling::DrawMode::kRace : sampling::DrawMode::kInverseCdf;
    if (static_cast<int64_t>(answer.ids.size()) < params.min_tokens) context.banned_ids = end_bans;
    if (params.has_penalties()) context.counts = &counts;
    const sampling::SampledToken token = sampler.Sample(row, params, context).value();
    counts.AddOutput(token.id);
    answer.ids.push_back(token.id);
    answer.logprobs.push_back(token.logprob);
    hash = HashToken(hash, token.id);
    const auto& stops = params.stop_token_ids;
    if (token.id == kEnd || std::find(stops.begin(), stops.end(), token.id) != stops.end()) {
      answer.reason = FinishReason::kStop;
    } else if (static_cast<int64_t>(answer.ids.size()) >= params.max_tokens ||
               static_cast<int64_t>(request.prompt_ids.size() + answer.ids.size()) > o.scheduler.max_model_len) {
      answer.reason = FinishReason::kLength;
    }
  }
  return answer;
}

void ExpectAllLikeReference(EngineCoreOptions options, uint64_t seed, int num_requests, int num_threads = 1) {
  std::mt19937_64 rng(seed);
  std::vector<EngineRequest> requests;
  for (int i = 0; i < num_requests; ++i) requests.push_back(RandomRequest(rng));
  Engine engine(options, num_threads);
  std::vector<std::shared_ptr<RequestHandle>> handles;
  for (const EngineRequest& request : requests) handles.push_back(engine.core->Submit(request).value());
  for (size_t i = 0; i < requests.size(); ++i) EXPECT_EQ(Collect(*handles[i])[0], Reference(requests[i], options)) << "request " << i;
  engine.core->Drain();
  const EngineCore::Snapshot stats = engine.core->Stats();
  EXPECT_EQ(stats.num_live, 0);
  EXPECT_EQ(stats.num_used_blocks, 0);
  EXPECT_EQ(stats.num_used_slots, 0);
}

TEST(EngineCore, SameAnswersWithAnyNeighbours) { ExpectAllLikeReference(Options(), 1, 150); }

TEST(EngineCore, SameAnswersOnTwoThreads) { ExpectAllLikeReference(Options(), 1, 150, 2); }

TEST(EngineCore, SameAnswersWithoutAsynchronousSteps) {
  EngineCoreOptions o = Options();
  o.is_async = false;
  ExpectAllLikeReference(o, 2, 150);
}

TEST(EngineCore, SameAnswersUnderMemoryPressure) {
  EngineCoreOptions o = Options();
  o.scheduler.num_blocks = 14;
  ExpectAllLikeReference(o, 3, 150);
}

TEST(EngineCore, SamplesOfARequestShareThePromptAndDifferBySeed) {
  std::mt19937_64 rng(4);
  const EngineCoreOptions o = Options();
  Engine engine(o);
  for (int round = 0; round < 10; ++round) {
    EngineRequest request = RandomRequest(rng);
    if (request.params.is_greedy()) request.params.temperature = 1;
    request.params.n = 5;
    const auto answers = Collect(*engine.core->Submit(request).value());
    for (int i = 0; i < 5; ++i) EXPECT_EQ(answers[static_cast<size_t>(i)], Reference(request, o, i)) << "sample " << i;
  }
  EXPECT_GT(engine.core->Stats().stats.num_forked, 0);
}

TEST(EngineCore, NextStepIsQueuedBeforeTokensReachTheHost) {
  EngineCoreOptions o = Options();
  std::vector<StepTiming> timings;
  o.on_step = [&](const StepTiming& timing) { timings.push_back(timing); };
  {
    Engine engine(o);
    EngineRequest request;
    request.prompt_ids = {1, 2, 4};
    request.params.max_tokens = 50;
    request.params.ignore_eos = true;
    request.params.temperature = 0;
    Collect(*engine.core->Submit(request).value());
  }
  ASSERT_EQ(timings.size(), 50u);
  for (size_t i = 1; i + 1 < timings.size(); ++i) {
    EXPECT_LE(timings[i + 1].schedule_end_ns, timings[i].process_begin_ns) << i;
    EXPECT_LE(timings[i].run_end_ns, timings[i].process_begin_ns) << i;
  }
}

TEST(EngineCore, BadRequestsAreRefusedByName) {
  EngineCoreOptions o = Options();
  o.max_requests = 3;
  Engine engine(o);
  EngineRequest request;
  EXPECT_EQ(engine.core->Submit(request).status().field(), kPromptField);
  request.prompt_ids = {1, kVocab};
  EXPECT_EQ(engine.core->Submit(request).status().field(), kPromptTokensField);
  request.prompt_ids.assign(641, 1);
  EXPECT_EQ(engine.core->Submit(request).status().field(), kPromptLengthField);
  request.prompt_ids = {1};
  request.params.top_p = 0;
  EXPECT_EQ(engine.core->Submit(request).status().field(), "top_p");
  request.params.top_p = 1;
  request.params.n = 4;
  EXPECT_EQ(engine.core->Submit(request).status().code(), StatusCode::kResourceExhausted);
  request.params.n = 3;
  EXPECT_TRUE(engine.core->Submit(request).ok());
  engine.core->Drain();
  EXPECT_EQ(engine.core->Submit(request).status().code(), StatusCode::kUnavailable);
}

TEST(EngineCore, OneBadRowEndsOneRequest) {
  Engine engine;
  engine.model.poison_token = 39;
  EngineRequest good;
  good.prompt_ids = {1, 2, 4};
  good.params.temperature = 0;
  good.params.max_tokens = 30;
  good.params.logit_bias[39] = -100;
  EngineRequest bad = good;
  bad.prompt_ids = {1, 39};
  const auto a = engine.core->Submit(good).value(), b = engine.core->Submit(bad).value(), c = engine.core->Submit(good).value();
  EXPECT_EQ(Collect(*b)[0].reason, FinishReason::kInvalidLogits);
  const Answer answer = Reference(good, Options());
  EXPECT_EQ(Collect(*a)[0], answer);
  EXPECT_EQ(Collect(*c)[0], answer);
}

TEST(EngineCore, AFailedStepEndsItsRequestsAndTheEngineGoesOn) {
  Engine engine;
  std::atomic<int> forwards{0};
  engine.model.on_forward = [&](std::span<const SlotChunk>) {
    return ++forwards == 3 ? Internal("made to fail") : Status::Ok();
  };
  EngineRequest request;
  request.prompt_ids = {1, 2, 4};
  request.params.temperature = 0;
  request.params.ignore_eos = true;
  EXPECT_EQ(Collect(*engine.core->Submit(request).value())[0].reason, FinishReason::kInternalError);
  EXPECT_EQ(Collect(*engine.core->Submit(request).value())[0].reason, FinishReason::kLength);
}

TEST(EngineCore, CallbacksMayStopAbortAndThrow) {
  Engine engine;
  EngineRequest request;
  request.prompt_ids = {5, 6};
  request.params.max_tokens = 400;
  request.params.ignore_eos = true;
  request.params.seq_seed = 1;
  struct Seen {
    std::atomic<int> tokens{0}, ends{0};
    std::atomic<FinishReason> reason{FinishReason::kNone};
  };
  const auto run = [&](int kind) {
    auto seen = std::make_shared<Seen>();
    auto handle = engine.core
                      ->Submit(request,
                               [seen, kind](const CoreOutput& output) {
                                 if (output.token.token_id >= 0) ++seen->tokens;
                                 if (output.finish_reason != FinishReason::kNone) {
                                   ++seen->ends;
                                   seen->reason = output.finish_reason;
                                 }
                                 if (seen->tokens < 5) return StreamAction::kContinue;
                                 if (kind == 2) throw std::runtime_error("no more");
                                 return kind == 0 ? StreamAction::kStop : kind == 1 ? StreamAction::kAbort : StreamAction::kContinue;
                               })
                      .value();
    return std::pair(seen, handle);
  };
  const auto stop = run(0), abort = run(1), thrown = run(2), full = run(3);
  for (const auto& [seen, handle] : {stop, abort, thrown, full}) {
    handle->Wait();
    EXPECT_EQ(seen->ends, 1);
  }
  EXPECT_EQ(stop.first->tokens, 5);
  EXPECT_EQ(stop.first->reason, FinishReason::kStop);
  EXPECT_EQ(abort.first->tokens, 5);
  EXPECT_EQ(abort.first->reason, FinishReason::kAbort);
  EXPECT_EQ(thrown.first->tokens, 5);
  EXPECT_EQ(thrown.first->reason, FinishReason::kAbort);
  EXPECT_EQ(full.first->tokens, 400);
}

TEST(EngineCore, TimeoutsEndRequests) {
  // A clock that moves a millisecond each time somebody looks.
  class TickingClock : public Clock {
   public:
    int64_t NowNs() const override { return now_ns_.fetch_add(1'000'000); }

   private:
    mutable std::atomic<int64_t> now_ns_{0};
  } clock;
  EngineCoreOptions o = Options();
  o.clock = &clock;
  o.scheduler.max_decode_gap_ms = 0;
  Engine engine(o);
  EngineRequest request;
  request.prompt_ids = {5, 6};
  request.params.max_tokens = 600;
  request.params.ignore_eos = true;
  request.params.timeout_s = 0.2;
  request.params.n = 3;
  for (const Answer& answer : Collect(*engine.core->Submit(request).value())) EXPECT_EQ(answer.reason, FinishReason::kTimeout);
  request.params.timeout_s = 1e12;
  for (const Answer& answer : Collect(*engine.core->Submit(request).value())) EXPECT_EQ(answer.reason, FinishReason::kLength);
}

TEST(EngineCore, PromptLogprobsDoNotDependOnChunks) {
  EngineRequest request;
  for (int i = 0; i < 500; ++i) request.prompt_ids.push_back(i * 7 % kVocab);
  request.params.prompt_logprobs = true;
  request.params.max_tokens = 2;
  request.params.temperature = 0.8;
  const auto prompt_logprobs = [&](int64_t budget) {
    EngineCoreOptions o = Options();
    o.scheduler.max_num_batched_tokens = budget;
    Engine engine(o);
    const auto handle = engine.core->Submit(request).value();
    CoreOutput output;
    std::vector<float> values;
    for (int i = 0; handle->Next(output); ++i) {
      EXPECT_EQ(output.prompt_logprobs.empty(), i > 0);
      if (i == 0) values = output.prompt_logprobs;
    }
    return values;
  };
  const auto whole = prompt_logprobs(640), chunked = prompt_logprobs(128);
  ASSERT_EQ(whole.size(), 499u);
  EXPECT_EQ(whole, chunked);
  sampling::Sampler sampler(kVocab);
  std::vector<float> row(kVocab);
  uint64_t hash = 1;
  for (size_t i = 0; i < 499; ++i) {
    hash = HashToken(hash, request.prompt_ids[i]);
    FakeStepModel::FillLogits(hash, row);
    const auto logprobs = sampler.Process(row, sampling::Normalized(request.params), {}).value();
    ASSERT_EQ(whole[i], std::max(logprobs[static_cast<size_t>(request.prompt_ids[i + 1])], kLogprobFloor)) << i;
  }
}

TEST(EngineCore, DestructionEndsEverythingOnce) {
  std::atomic<int> ends{0};
  constexpr int kNum = 40;
  std::vector<std::shared_ptr<RequestHandle>> handles;
  {
    Engine engine;
    std::mt19937_64 rng(9);
    for (int i = 0; i < kNum; ++i) {
      EngineRequest request = RandomRequest(rng);
      request.params.max_tokens = 500;
      handles.push_back(engine.core
                            ->Submit(request,
                                     [&](const CoreOutput& output) {
                                       if (output.finish_reason != FinishReason::kNone) ++ends;
                                       return StreamAction::kContinue;
                                     })
                            .value());
    }
  }
  EXPECT_EQ(ends, kNum);
  for (const auto& handle : handles) {
    EXPECT_TRUE(handle->is_done());
    handle->Cancel();  // the engine is gone: nothing happens
  }
}

// Requests come, fork, are cancelled from several threads at any moment. Those that end by themselves have the right
// answer, the others a prefix of it. DEEPINFER_SOAK_SECONDS makes it long.
TEST(EngineCore, AbortStorm) {
  EngineCoreOptions o = Options();
  o.scheduler.num_blocks = 20;
  o.max_requests = 64;
  Engine engine(o, 2);
  constexpr int kThreads = 3;
  const char* seconds_text = std::getenv("DEEPINFER_SOAK_SECONDS");
  const double seconds = seconds_text != nullptr ? std::atof(seconds_text) : 0;
  const double end_s = Clock::Steady().NowSeconds() + seconds;
  std::atomic<int64_t> num_requests{0}, num_cancelled{0}, num_refused{0};
  std::vector<std::thread> clients;
  for (int t = 0; t < kThreads; ++t) {
    clients.emplace_back([&, t] {
      std::mt19937_64 rng(static_cast<uint64_t>(100 + t));
      for (int i = 0; i < 150 || Clock::Steady().NowSeconds() < end_s; ++i) {
        std::vector<std::pair<EngineRequest, std::shared_ptr<RequestHandle>>> open;
        for (uint64_t k = 1 + rng() % 8; k > 0; --k) {
          EngineRequest request = RandomRequest(rng);
          request.params.priority = static_cast<int>(rng() % 3);
          if (rng() % 8 == 0 && !request.params.is_greedy()) request.params.n = 4;
          auto handle = engine.core->Submit(request);
          if (!handle.ok()) {
            EXPECT_EQ(handle.status().code(), StatusCode::kResourceExhausted);
            ++num_refused;
            continue;
          }
          ++num_requests;
          open.emplace_back(std::move(request), std::move(handle).value());
        }
        for (auto& [request, handle] : open) {
          if (rng() % 3 == 0) {
            // Everything that came, before and after the cancel: once each, in order, and right as far as it goes.
            std::vector<Answer> got(static_cast<size_t>(handle->num_samples()));
            CoreOutput output;
            int64_t cancel_after = static_cast<int64_t>(rng() % 6);
            if (cancel_after == 0) handle->Cancel();
            while (handle->Next(output)) {
              Answer& answer = got.at(static_cast<size_t>(output.sample));
              ASSERT_EQ(answer.reason, FinishReason::kNone) << "an output after the end";
              if (output.token.token_id >= 0) answer.ids.push_back(output.token.token_id);
              answer.reason = output.finish_reason;
              if (--cancel_after == 0) handle->Cancel();
            }
            for (size_t s = 0; s < got.size(); ++s) {
              const std::vector<int32_t> want = Reference(request, o, static_cast<int>(s)).ids;
              ASSERT_NE(got[s].reason, FinishReason::kNone);
              ASSERT_TRUE(got[s].reason == FinishReason::kAbort || got[s].ids.size() == want.size());
              ASSERT_LE(got[s].ids.size(), want.size());
              ASSERT_TRUE(std::equal(got[s].ids.begin(), got[s].ids.end(), want.begin())) << "thread " << t << " round " << i;
            }
            ++num_cancelled;
            continue;
          }
          const auto answers = Collect(*handle);
          for (size_t s = 0; s < answers.size(); ++s)
            ASSERT_EQ(answers[s], Reference(request, o, static_cast<int>(s))) << "thread " << t << " round " << i;
        }
      }
    });
  }
  for (std::thread& client : clients) client.join();
  engine.core->Drain();
  EXPECT_GT(num_cancelled, 100);
  EXPECT_GT(engine.core->Stats().stats.num_preempted, 0);
  EXPECT_EQ(engine.core->Stats().num_live, 0);
  EXPECT_EQ(engine.core->Stats().num_used_blocks, 0);
  EXPECT_EQ(engine.core->Stats().stats.num_finished, engine.core->Stats().stats.num_added);
  RecordProperty("requests", static_cast<int>(num_requests));
}

}  // namespace
}  // namespace deepinfer::engine
