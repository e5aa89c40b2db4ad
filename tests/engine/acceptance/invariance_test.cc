// SPDX-License-Identifier: Apache-2.0
//
// 64 mixed requests on the demo model, decoder replay compact/140: alone, together, shuffled, preempted and prefix-cached in
// `exact` mode, with one and with two threads, give bitwise equal tokens, log probabilities and logits.
// DEEPINFER_INVARIANCE_ROUNDS=N adds rounds with other requests, several thousand tokens long.
#include <cstdlib>
#include <numeric>
#include <random>

#include "engine/real_models.h"

namespace deepinfer::engine {
namespace {

constexpr size_t kNumRequests = 64;

std::vector<EngineRequest> MixedRequests(uint64_t seed, int64_t longest) {
  std::mt19937_64 rng(seed);
  const auto uniform = [&](int64_t low, int64_t high) { return low + static_cast<int64_t>(rng() % static_cast<uint64_t>(high - low + 1)); };
  std::vector<EngineRequest> requests;
  for (size_t i = 0; i < kNumRequests; ++i) {
    EngineRequest& r = requests.emplace_back();
    // A few long prompts; some that begin like others; some that are about to need their second block; many short ones.
    const bool is_long = i % 40 == 4, is_shared = i % 12 == 1, grows = i % 5 == 2;
    const int64_t length = is_long ? uniform(longest - 80, longest) : is_shared ? uniform(290, 380) : grows ? uniform(121, 127) : uniform(1, 48);
    const int64_t shared = is_long || is_shared ? length * uniform(5, 9) / 10 : 0, document = uniform(0, 1);
    for (int64_t k = 0; k < length; ++k)
      r.prompt_ids.push_back(static_cast<int32_t>(k < shared ? 300 + (document + 1) * (k + 5) * 131 % 3000 : uniform(20, 4000)));
    SamplingParams& p = r.params;
    p.max_tokens = grows ? uniform(14, 22) : uniform(1, 12);
    p.seq_seed = rng();
    switch (i % 4) {
      case 0: p.temperature = 0; break;
      case 1: p.temperature = 0.8; p.top_k = uniform(1, 60); p.top_p = 0.9; break;
      case 2: p.presence_penalty = 0.7; p.frequency_penalty = 0.3; p.repetition_penalty = 1.2; break;
      default: p.temperature = 1.3; p.min_p = 0.02;
    }
    if (i % 7 == 0) p.logit_bias[kModelEnd] = 8;
  }
  return requests;
}

class InvarianceRun {
 public:
  InvarianceRun(std::vector<EngineRequest> requests, int64_t longest)
      : requests_(std::move(requests)), longest_blocks_((longest + 20) / kTokensPerBlock + 2) {}

  void UseModel(model::Model& m, int num_threads) {
    model_ = &m;
    what_ = std::to_string(num_threads) + (num_threads == 1 ? " thread, " : " threads, ");
  }
  // The reference if there is none yet, else compared with it. No engine takes part.
  void RunWithoutEngine() {
    for (size_t i = 0; i < requests_.size(); ++i) {
      const Answer answer = RunAlone(*model_, requests_[i], 0, &ledger_);
      if (want_.size() == i) want_.push_back(answer);
      ExpectSame(answer, want_[i], what_ + "without engine, request " + std::to_string(i));
    }
  }
  void OneAtATime() {
    RealEngine engine(*model_, Options(), &ledger_);
    for (const size_t i : Order(0)) Run(engine, {&i, 1}, "alone");
    engine.Drain();
  }
  void Together(uint64_t shuffled_by) {
    RealEngine engine(*model_, Options(), &ledger_);
    Run(engine, Order(shuffled_by), shuffled_by == 0 ? "together" : "shuffled");
    engine.Drain();
  }
  void Preempted() {
    EngineCoreOptions o = Options();
    o.scheduler.num_blocks = std::max<int64_t>(longest_blocks_ + 1, 12);
    o.scheduler.max_num_batched_tokens = 2048;
    // Those that need a second block fill the cache together, in one step, unless their submission is torn apart by a busy
    // machine: then once more.
    std::vector<size_t> order = Order(3);
    std::stable_partition(order.begin(), order.end(), [&](size_t i) {
      const size_t length = requests_[i].prompt_ids.size();
      return length > 120 && length < 128;
    });
    int64_t num_preempted = 0;
    for (int attempt = 0; attempt < 6 && num_preempted == 0; ++attempt) {
      RealEngine engine(*model_, o, &ledger_);
      Run(engine, order, "preempted");
      num_preempted = engine.Drain().stats.num_preempted;
    }
    EXPECT_GT(num_preempted, 0) << what_;
  }
  void PrefixCachedExact() {
    EngineCoreOptions o = Options();
    o.scheduler.cache_mode = CacheMode::kExact;
    o.scheduler.prefix_cache.num_state_records = 64;
    RealEngine engine(*model_, o, &ledger_);
    Run(engine, Order(4), "filling the prefix cache");
    const int64_t first = engine.core->Stats().stats.num_cached_tokens;
    Run(engine, Order(5), "prefix-cached");
    // Whole prompts but for the last 140 tokens come from the cache now.
    EXPECT_GT(engine.Drain().stats.num_cached_tokens - first, 1500) << what_;
  }
  const LogitsLedger& ledger() const { return ledger_; }
  const std::vector<Answer>& answers() const { return want_; }

 private:
  EngineCoreOptions Options() const {
    EngineCoreOptions o = RealModelOptions(kDemoKeep);
    o.scheduler.max_model_len = 4096;
    o.scheduler.max_num_batched_tokens = 512;
    o.scheduler.max_num_seqs = 32;
    o.scheduler.num_blocks = 240;
    return o;
  }
  std::vector<size_t> Order(uint64_t seed) const {
    std::vector<size_t> order(requests_.size());
    std::iota(order.begin(), order.end(), size_t{0});
    if (seed != 0) std::shuffle(order.begin(), order.end(), std::mt19937_64(seed));
    return order;
  }
  void Run(RealEngine& engine, std::span<const size_t> order, const std::string& arrangement) {
    std::vector<std::shared_ptr<RequestHandle>> handles;
    for (const size_t i : order) handles.push_back(engine.core->Submit(requests_[i]).value());
    for (size_t k = 0; k < order.size(); ++k)
      ExpectSame(Collect(*handles[k])[0], want_[order[k]], what_ + arrangement + ", request " + std::to_string(order[k]));
    engine.core->WaitIdle();
  }

  const std::vector<EngineRequest> requests_;
  const int64_t longest_blocks_;
  model::Model* model_ = nullptr;
  std::string what_;
  LogitsLedger ledger_;
  std::vector<Answer> want_;
};

TEST(Invariance, SixtyFourMixedRequestsInEveryArrangement) {
  const char* rounds_text = std::getenv("DEEPINFER_INVARIANCE_ROUNDS");
  const int num_rounds = 1 + (rounds_text != nullptr ? std::atoi(rounds_text) : 0);
  const auto one = LoadDemo(), two = LoadDemo({model::DecoderReplay::kCompact, kDemoKeep, 2});
  for (int round = 0; round < num_rounds; ++round) {
    SCOPED_TRACE(round);
    const int64_t longest = round == 0 ? 1100 : 1500 + 500 * (round % 5);
    InvarianceRun run(MixedRequests(100 + static_cast<uint64_t>(round), longest), longest);
    for (const int num_threads : {1, 2}) {
      run.UseModel(num_threads == 1 ? *one : *two, num_threads);
      // The second thread repeats what is cheap; every request is alone once in an engine, once without.
      if (num_threads == 1 || round > 0) run.RunWithoutEngine();
      if (num_threads == 2 || round > 0) run.OneAtATime();
      run.Together(0);
      run.Together(2);
      run.Preempted();
      run.PrefixCachedExact();
      if (::testing::Test::HasFailure()) return;
    }
    EXPECT_EQ(run.ledger().num_different(), 0);
    EXPECT_GT(run.ledger().num_compared(), 10 * run.ledger().num_rows());
    std::printf("invariance: %lld logit rows, %lld compared\n", static_cast<long long>(run.ledger().num_rows()),
                static_cast<long long>(run.ledger().num_compared()));
    int num_stopped = 0;
    for (const Answer& answer : run.answers()) num_stopped += answer.reason == FinishReason::kStop ? 1 : 0;
    EXPECT_GT(num_stopped, 2);
  }
}

}  // namespace
}  // namespace deepinfer::engine
