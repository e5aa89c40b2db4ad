// SPDX-License-Identifier: Apache-2.0
//
// The engine on real models: the answer of a request is bitwise the same alone, with any neighbours, after preemption, after
// an exact prefix hit and as a sibling; a replayed hit equals the replay done by hand.
#include "engine/model_slots.h"

#include <random>

#include <gtest/gtest.h>

#include "engine/batch_buckets.h"
#include "engine/real_models.h"

namespace deepinfer::engine {
namespace {

model::Model& Tiny() {
  static const auto loaded = LoadDemo();
  return *loaded;
}

class NanoEngineTest : public ::testing::Test {
 protected:
  static constexpr int kNumRequests = 64;
  NanoEngineTest() {
    std::mt19937_64 rng(1);
    for (int i = 0; i < kNumRequests; ++i) requests_.push_back(RandomRequest(rng, 320, 400));
    static auto shared_model = LoadNano();
    static std::vector<Answer> answers;
    model_ = shared_model.get();
    if (answers.empty())
      for (const EngineRequest& request : requests_) answers.push_back(RunAlone(*model_, request));
    alone_ = answers;
  }
  // All requests at once, in the given order; total of cached tokens.
  int64_t ExpectAllTheSame(EngineCore& core, const std::vector<size_t>& order) {
    std::vector<std::shared_ptr<RequestHandle>> handles;
    for (const size_t i : order) handles.push_back(core.Submit(requests_[i]).value());
    int64_t cached = 0;
    for (size_t k = 0; k < order.size(); ++k) {
      const Answer answer = Collect(*handles[k])[0];
      ExpectSame(answer, alone_[order[k]], "request " + std::to_string(order[k]));
      cached += answer.cached_tokens;
    }
    return cached;
  }
  std::vector<size_t> Order(uint64_t seed = 0) const {
    std::vector<size_t> order(requests_.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = i;
    if (seed != 0) std::shuffle(order.begin(), order.end(), std::mt19937_64(seed));
    return order;
  }

  model::Model* model_ = nullptr;
  std::vector<EngineRequest> requests_;
  std::vector<Answer> alone_;
};

TEST_F(NanoEngineTest, TogetherInAnyOrder) {
  RealEngine engine(*model_, RealModelOptions(kNanoKeep));
  EXPECT_EQ(ExpectAllTheSame(*engine.core, Order(5)), 0);
}

TEST_F(NanoEngineTest, Preempted) {
  // Blocks for half of the sequences, all of which outgrow their first one.
  EngineCoreOptions o = RealModelOptions(kNanoKeep);
  o.scheduler.num_blocks = 8;
  RealEngine engine(*model_, o);
  std::vector<EngineRequest> requests;
  std::vector<std::shared_ptr<RequestHandle>> handles;
  for (size_t i = 0; i < 8; ++i) {
    EngineRequest request = requests_[i];
    request.prompt_ids.resize(100 + 3 * i, 9);
    request.params.max_tokens = 40;
    handles.push_back(engine.core->Submit(request).value());
    requests.push_back(std::move(request));
  }
  std::vector<Answer> answers;
  for (const auto& handle : handles) answers.push_back(Collect(*handle)[0]);
  engine.core->Drain();
  EXPECT_GT(engine.core->Stats().stats.num_preempted, 2);
  for (size_t i = 0; i < 8; ++i) ExpectSame(answers[i], RunAlone(*model_, requests[i]), "request " + std::to_string(i));
}

TEST_F(NanoEngineTest, PrefixCachedExact) {
  EngineCoreOptions o = RealModelOptions(kNanoKeep);
  o.scheduler.cache_mode = CacheMode::kExact;
  RealEngine engine(*model_, o);
  ExpectAllTheSame(*engine.core, Order());
  EXPECT_GT(ExpectAllTheSame(*engine.core, Order(7)), 2000);
}

TEST_F(NanoEngineTest, PrefixCachedExactUnderPressure) {
  EngineCoreOptions o = RealModelOptions(kNanoKeep);
  o.scheduler.cache_mode = CacheMode::kExact;
  o.scheduler.num_blocks = 12;
  o.scheduler.prefix_cache.num_state_records = 6;
  RealEngine engine(*model_, o);
  for (uint64_t seed = 1; seed < 3; ++seed) ExpectAllTheSame(*engine.core, Order(seed));
  EXPECT_GT(engine.core->Stats().stats.num_cached_tokens, 0);
}

TEST_F(NanoEngineTest, SynchronousAndTwoThreads) {
  const auto two = LoadNano({model::DecoderReplay::kCompact, kNanoKeep, 2});
  EngineCoreOptions o = RealModelOptions(kNanoKeep);
  {
    RealEngine engine(*two, o);
    ExpectAllTheSame(*engine.core, Order(3));
  }
  o.is_async = false;
  RealEngine engine(*two, o);
  ExpectAllTheSame(*engine.core, Order(4));
}

// Requests with a seed are verified exactly: drafts, their number and what else runs change no bit.
TEST_F(NanoEngineTest, SpeculationChangesNothing) {
  static const auto with_draft = LoadNano({model::DecoderReplay::kCompact, kNanoKeep, 1, true});
  for (const int num_drafts : {5, 1}) {
    for (const bool is_async : {true, false}) {
      SCOPED_TRACE(num_drafts);
      EngineCoreOptions o = RealModelOptions(kNanoKeep);
      o.scheduler.num_drafts = num_drafts;
      o.is_async = is_async;
      RealEngine engine(*with_draft, o);
      ExpectAllTheSame(*engine.core, Order(static_cast<uint64_t>(num_drafts)));
      EXPECT_GT(engine.core->Stats().stats.num_verified_drafts, 100);
      std::printf("%d drafts: %ld of %ld accepted\n", num_drafts, static_cast<long>(engine.core->Stats().stats.num_accepted_drafts),
                  static_cast<long>(engine.core->Stats().stats.num_verified_drafts));
    }
  }
  // Lengths by cost, with a curve that makes no sense: some steps draft, some do not, rows go here and there.
  for (const uint64_t seed : {1, 2, 3}) {
    SCOPED_TRACE(seed);
    std::mt19937_64 rng(seed);
    std::vector<std::pair<int64_t, double>> forward;
    for (int64_t size = 1; size <= 96; size += 5) forward.emplace_back(size, 1.0 + static_cast<double>(rng() % 1000) * 1e-3 * static_cast<double>(size));
    EngineCoreOptions o = RealModelOptions(kNanoKeep);
    o.scheduler.num_drafts = 5;
    o.scheduler.varlen_verify = true;
    o.decode_costs = DecodeCostModel(CostCurve(forward), CostCurve({{1, 0.1}}), BatchBuckets(96, 8));
    RealEngine engine(*with_draft, o);
    ExpectAllTheSame(*engine.core, Order(seed));
    EXPECT_GT(engine.core->Stats().stats.num_verified_drafts, 0);
  }
  EngineCoreOptions o = RealModelOptions(kNanoKeep);
  o.scheduler.num_drafts = 5;
  o.scheduler.cache_mode = CacheMode::kExact;
  o.scheduler.num_blocks = 12;
  RealEngine engine(*with_draft, o);
  for (uint64_t seed = 1; seed < 3; ++seed) ExpectAllTheSame(*engine.core, Order(seed));
  EXPECT_GT(engine.core->Stats().stats.num_cached_tokens, 0);
}

TEST_F(NanoEngineTest, SiblingsEqualIndependentRuns) {
  RealEngine engine(*model_, RealModelOptions(kNanoKeep));
  for (const size_t i : {size_t{1}, size_t{2}, size_t{5}, size_t{7}, size_t{10}}) {
    EngineRequest request = requests_[i];
    if (request.params.is_greedy()) request.params.temperature = 1;
    request.params.n = 4;
    const auto answers = Collect(*engine.core->Submit(request).value());
    for (int s = 0; s < 4; ++s) {
      EngineRequest single = request;
      single.params.n = 1;
      single.params.seq_seed = *request.params.seq_seed + static_cast<uint64_t>(s);
      ExpectSame(answers[static_cast<size_t>(s)], Collect(*engine.core->Submit(single).value())[0], "sample " + std::to_string(s));
    }
  }
  EXPECT_EQ(engine.core->Stats().stats.num_forked, 15);
}

TEST_F(NanoEngineTest, AbortStormLeavesNothing) {
  EngineCoreOptions o = RealModelOptions(kNanoKeep);
  o.scheduler.cache_mode = CacheMode::kExact;
  o.scheduler.num_blocks = 16;
  RealEngine engine(*model_, o);  // its end checks every block and slot
  std::mt19937_64 rng(11);
  for (int round = 0; round < 6; ++round) {
    std::vector<std::pair<size_t, std::shared_ptr<RequestHandle>>> open;
    for (int i = 0; i < 12; ++i) {
      const size_t which = rng() % requests_.size();
      open.emplace_back(which, engine.core->Submit(requests_[which]).value());
    }
    for (auto& [which, handle] : open) {
      CoreOutput output;
      for (uint64_t n = rng() % 4; n > 0; --n) handle->Next(output);
      if (rng() % 2 == 0) handle->Cancel();
    }
    for (auto& [which, handle] : open) handle->Wait();
  }
  engine.core->Drain();
  EXPECT_EQ(engine.core->Stats().num_used_blocks, 0);
  EXPECT_EQ(engine.core->Stats().num_used_slots, 0);
}

// ---- the tiny model: window 128 -----------------------------------------------------------------------------------------

EngineRequest SharedPrefixRequest(uint64_t tail, int64_t length = 700, int64_t shared = 500) {
  EngineRequest request;
  for (int64_t i = 0; i < length; ++i)
    request.prompt_ids.push_back(static_cast<int32_t>(1000 + (i * 7919 + (i >= shared ? static_cast<int64_t>(tail) * 77 : 0)) % 3000));
  request.params.temperature = 0;
  request.params.max_tokens = 8;
  request.params.ignore_eos = true;
  return request;
}

TEST(TinyEngine, ReplayedHitEqualsReplayByHand) {
  model::Model* m = &Tiny();
  const EngineRequest first = SharedPrefixRequest(1), second = SharedPrefixRequest(2);
  Answer hit;
  {
    EngineCoreOptions o = RealModelOptions(kDemoKeep);
    o.scheduler.cache_mode = CacheMode::kReplay;
    o.scheduler.prefix_cache.num_state_records = 0;
    RealEngine engine(*m, o);
    EXPECT_EQ(Collect(*engine.core->Submit(first).value())[0].cached_tokens, 0);
    hit = Collect(*engine.core->Submit(second).value())[0];
    EXPECT_EQ(hit.cached_tokens, 384);
    // The third one finds what the second left, whose blocks carry the replay.
    EXPECT_EQ(Collect(*engine.core->Submit(second).value())[0].cached_tokens, 640);
  }
  // By hand: [0, 384) cold, then [256, 700) again with empty windows, compressed keys kept below 384.
  auto cold = m->NewSlot().value(), replayed = m->NewSlot().value();
  const std::vector<int32_t> blocks = m->TakeBlocks(6).value();
  const std::span<const int32_t> ids = second.prompt_ids;
  cold->Bind({}, 0, 0);
  cold->SetBlocks(0, std::span(blocks).first(3));
  model::SequenceChunk chunk{.sequence = cold.get(), .ids = ids.first(384)};
  ASSERT_TRUE(m->Forward({&chunk, 1}).ok());
  replayed->Bind(ids.first(256), 256, 700 - kDemoKeep);
  replayed->SetBlocks(0, blocks);
  chunk = {.sequence = replayed.get(), .ids = ids.subspan(256), .write_floor = 384};
  std::vector<int32_t> tokens;
  sampling::Sampler sampler(m->config().vocab_size);
  int32_t next = 0;
  std::vector<float> logprobs;
  for (int i = 0; i < 8; ++i) {
    const auto logits = m->Forward({&chunk, 1}).value();
    const auto token = sampler.Sample(logits, sampling::Normalized(second.params), {}).value();
    tokens.push_back(next = token.id);
    logprobs.push_back(token.logprob);
    chunk = {.sequence = replayed.get(), .ids = {&next, 1}, .write_floor = 384};
  }
  m->ReturnBlocks(blocks);
  EXPECT_EQ(hit.ids, tokens);
  EXPECT_EQ(hit.logprobs, logprobs);
}

TEST(TinyEngine, ExactHitEqualsColdRun) {
  model::Model* m = &Tiny();
  const EngineRequest first = SharedPrefixRequest(1), second = SharedPrefixRequest(2);
  Answer cold, hit, again;
  {
    EngineCoreOptions o = RealModelOptions(kDemoKeep);
    o.scheduler.cache_mode = CacheMode::kOff;
    RealEngine engine(*m, o);
    cold = Collect(*engine.core->Submit(second).value())[0];
  }
  EngineCoreOptions o = RealModelOptions(kDemoKeep);
  o.scheduler.cache_mode = CacheMode::kExact;
  RealEngine engine(*m, o);
  Collect(*engine.core->Submit(first).value());
  hit = Collect(*engine.core->Submit(second).value())[0];
  again = Collect(*engine.core->Submit(second).value())[0];
  EXPECT_EQ(hit.cached_tokens, 384);
  EXPECT_EQ(again.cached_tokens, 512);
  ExpectSame(hit, cold, "hit at 384");
  ExpectSame(again, cold, "hit at 512");
}

}  // namespace
}  // namespace deepinfer::engine
