// SPDX-License-Identifier: Apache-2.0
//
// T13: a request cancelled at any moment of its life gets one last output at most, and nothing stays behind.
#include <atomic>
#include <thread>

#include "engine/real_models.h"

namespace deepinfer::engine {
namespace {

constexpr int kVocab = 40;
constexpr int32_t kEnd = 3;

EngineCoreOptions Options() {
  EngineCoreOptions o;
  o.scheduler.max_model_len = 640;
  o.scheduler.max_num_batched_tokens = 256;
  o.scheduler.max_num_seqs = 4;
  o.scheduler.num_blocks = 40;
  o.scheduler.end_token_ids = {kEnd};
  o.scheduler.decoder_keep = 140;
  o.scheduler.cache_mode = CacheMode::kExact;
  o.scheduler.prefix_cache.state_every_blocks = 1;
  o.scheduler.prefix_cache.num_state_records = 16;
  o.end_token_id = kEnd;
  return o;
}

// What a request's callback has seen.
struct Seen {
  std::atomic<int> num_tokens{0}, num_ends{0}, num_after_end{0};
  std::atomic<FinishReason> reason{FinishReason::kNone};
};

class T13 : public ::testing::TestWithParam<bool> {
 protected:
  T13() {
    options_ = Options();
    options_.is_async = GetParam();
    Start();
  }
  // `model_` first: its callbacks are set before a thread uses it.
  void Start() {
    model_ = std::make_unique<FakeStepModel>(kVocab, options_.scheduler.max_model_len, options_.scheduler.num_blocks,
                                             options_.scheduler.num_state_slots(), options_.scheduler.prefix_cache.num_state_records);
    model_->on_forward = [this](std::span<const SlotChunk>) {
      // A step is running here: what is cancelled now is in flight.
      while (is_held_) std::this_thread::yield();
      if (--num_forwards_left_ == 0) {
        in_flight_.load()->Cancel();
        // Twice is as good as once.
        in_flight_.load()->Cancel();
      }
      return Status::Ok();
    };
    auto made = EngineCore::Create(*model_, options_);
    ASSERT_TRUE(made.ok()) << made.status().message();
    core_ = std::move(made).value();
  }
  EngineRequest Request(int64_t length, int64_t max_tokens, int n = 1) {
    EngineRequest r;
    for (int64_t i = 0; i < length; ++i) r.prompt_ids.push_back(static_cast<int32_t>(i * 7 % kVocab));
    r.params.max_tokens = max_tokens;
    r.params.ignore_eos = true;
    r.params.seq_seed = 5;
    r.params.n = n;
    return r;
  }
  std::pair<std::shared_ptr<Seen>, std::shared_ptr<RequestHandle>> Submit(EngineRequest request) {
    auto seen = std::make_shared<Seen>();
    auto handle = core_->Submit(std::move(request), [seen](const CoreOutput& output) {
      if (seen->reason != FinishReason::kNone && output.sample == 0) ++seen->num_after_end;
      if (output.token.token_id >= 0) ++seen->num_tokens;
      if (output.finish_reason != FinishReason::kNone) ++seen->num_ends;
      if (output.sample == 0) seen->reason = output.finish_reason;
      return StreamAction::kContinue;
    });
    EXPECT_TRUE(handle.ok());
    return {seen, std::move(handle).value()};
  }
  // Submits a request and cancels it while forward pass number `nth` of it runs.
  void CancelInFlight(EngineRequest request, int nth) {
    const int n = request.params.n;
    core_->WaitIdle();
    is_held_ = true;
    const auto [seen, handle] = Submit(std::move(request));
    in_flight_ = handle.get();
    num_forwards_left_ = nth;
    is_held_ = false;
    handle->Wait();
    EXPECT_EQ(seen->num_ends, n) << nth;
    EXPECT_EQ(seen->num_after_end, 0) << nth;
    EXPECT_EQ(seen->reason, FinishReason::kAbort) << nth;
    core_->WaitIdle();
    num_forwards_left_ = 0;
  }
  void ExpectClean() {
    core_->WaitIdle();
    const EngineCore::Snapshot stats = core_->Stats();
    EXPECT_EQ(stats.num_live, 0);
    EXPECT_EQ(stats.num_used_blocks, 0);
    EXPECT_EQ(stats.num_used_slots, 0);
    EXPECT_EQ(stats.stats.num_finished, stats.stats.num_added);
  }

  EngineCoreOptions options_;
  std::atomic<bool> is_held_{false};
  std::atomic<RequestHandle*> in_flight_{nullptr};
  std::atomic<int> num_forwards_left_{0};
  std::unique_ptr<FakeStepModel> model_;
  std::unique_ptr<EngineCore> core_;  // goes first
};
INSTANTIATE_TEST_SUITE_P(Steps, T13, ::testing::Values(false, true), [](const auto& test) { return std::string(test.param ? "async" : "sync"); });

TEST_P(T13, WhileWaiting) {
  std::vector<std::shared_ptr<RequestHandle>> running;
  for (int i = 0; i < 4; ++i) running.push_back(Submit(Request(5, 600)).second);
  for (int i = 0; i < 10; ++i) {
    const auto [seen, handle] = Submit(Request(20 + i, 10, 1 + i % 3));
    handle->Cancel();
    handle->Cancel();
    handle->Wait();
    EXPECT_EQ(seen->num_ends, 1 + i % 3);
    EXPECT_EQ(seen->num_after_end, 0);
  }
  for (const auto& handle : running) handle->Cancel();
  for (const auto& handle : running) handle->Wait();
  ExpectClean();
}

TEST_P(T13, WhileRunningAndFromItsOwnCallback) {
  for (int after = 1; after < 8; ++after) {
    auto seen = std::make_shared<Seen>();
    std::atomic<RequestHandle*> self{nullptr};
    const auto handle = core_->Submit(Request(10 * after, 600), [seen, after, &self](const CoreOutput& output) {
                               if (seen->num_ends > 0) ++seen->num_after_end;
                               if (output.finish_reason != FinishReason::kNone) {
                                 ++seen->num_ends;
                                 seen->reason = output.finish_reason;
                               }
                               if (++seen->num_tokens == after) {
                                 while (self.load() == nullptr) std::this_thread::yield();
                                 self.load()->Cancel();
                               }
                               return StreamAction::kContinue;
                             })
                            .value();
    self = handle.get();
    handle->Wait();
    EXPECT_EQ(seen->num_ends, 1);
    EXPECT_EQ(seen->num_after_end, 0);
    EXPECT_EQ(seen->reason, FinishReason::kAbort);
  }
  ExpectClean();
}

// At every step of a long prompt's prefill, and of decoding.
TEST_P(T13, WhileAStepOfItIsInFlight) {
  for (int nth = 1; nth <= 12; ++nth) CancelInFlight(Request(600, 30), nth);
  for (int nth = 1; nth <= 10; ++nth) CancelInFlight(Request(60, 200), nth);
  ExpectClean();
}

TEST_P(T13, SamplesBeforeAndAfterTheyExist) {
  for (int nth = 1; nth <= 10; ++nth) CancelInFlight(Request(300, 200, 3), nth);
  // One sample of several: the others go on.
  const auto [seen, handle] = Submit(Request(300, 20, 3));
  handle->CancelSample(1);
  handle->Wait();
  EXPECT_EQ(seen->num_ends, 3);
  EXPECT_GE(seen->num_tokens, 40);
  ExpectClean();
}

TEST_P(T13, AfterTheEnd) {
  const auto [seen, handle] = Submit(Request(40, 12));
  handle->Wait();
  handle->Cancel();
  handle->CancelSample(0);
  handle->CancelSample(7);
  core_->WaitIdle();
  EXPECT_EQ(seen->num_ends, 1);
  EXPECT_EQ(seen->num_after_end, 0);
  EXPECT_EQ(seen->reason, FinishReason::kLength);
  EXPECT_EQ(seen->num_tokens, 12);
  core_.reset();
  handle->Cancel();
  EXPECT_EQ(seen->num_ends, 1);
}

// The same on the nano model: whoever is not cancelled gets what it gets alone, what a cancelled one got is its beginning.
TEST(T13Nano, NeighboursOfCancelledRequestsNeverNotice) {
  const auto model = LoadNano();
  std::mt19937_64 rng(13);
  std::vector<EngineRequest> requests;
  std::vector<Answer> alone;
  for (int i = 0; i < 24; ++i) {
    requests.push_back(RandomRequest(rng, 300, 400));
    requests.back().params.max_tokens = 24;
    alone.push_back(RunAlone(*model, requests.back()));
  }
  EngineCoreOptions o = RealModelOptions(kNanoKeep);
  o.scheduler.cache_mode = CacheMode::kExact;
  o.scheduler.num_blocks = 16;
  RealEngine engine(*model, o);
  std::vector<std::shared_ptr<RequestHandle>> handles;
  for (const EngineRequest& request : requests) handles.push_back(engine.core->Submit(request).value());
  for (size_t i = 0; i < requests.size(); i += 2) {
    Answer got;
    CoreOutput output;
    // Whoever has ended before it is cancelled is complete.
    for (uint64_t n = rng() % 6; n > 0 && handles[i]->Next(output); --n) {
      got.ids.push_back(output.token.token_id);
      got.reason = output.finish_reason;
    }
    handles[i]->Cancel();
    while (handles[i]->Next(output)) {
      EXPECT_EQ(got.reason, FinishReason::kNone);
      if (output.token.token_id >= 0) got.ids.push_back(output.token.token_id);
      got.reason = output.finish_reason;
    }
    EXPECT_TRUE(got.reason == FinishReason::kAbort || got.ids == alone[i].ids);
    ASSERT_LE(got.ids.size(), alone[i].ids.size());
    EXPECT_TRUE(std::equal(got.ids.begin(), got.ids.end(), alone[i].ids.begin())) << i;
  }
  for (size_t i = 1; i < requests.size(); i += 2) ExpectSame(Collect(*handles[i])[0], alone[i], "request " + std::to_string(i));
  engine.Drain();
}

}  // namespace
}  // namespace deepinfer::engine
