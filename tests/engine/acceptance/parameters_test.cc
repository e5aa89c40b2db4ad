// SPDX-License-Identifier: Apache-2.0
//
// Every sampling parameter of engine.md 2 in random combinations on the nano model: the batch engine gives each request what
// Generator gives it alone, in both modes of log probabilities. DEEPINFER_PARAMETER_ROUNDS makes more of them.
#include <cstdlib>
#include <random>

#include "engine/async_engine.h"
#include "engine/completions.h"
#include "engine/generator.h"
#include "engine/model_runner.h"
#include "engine/real_models.h"

namespace deepinfer::engine {
namespace {

constexpr int kVocab = 512;
constexpr int64_t kMaxLen = 400;  // some requests end at it

class Random {
 public:
  explicit Random(uint64_t seed) : rng_(seed) {}
  uint64_t Below(uint64_t n) { return rng_() % n; }
  bool OneIn(uint64_t n) { return rng_() % n == 0; }
  double Real(double low, double high) { return low + (high - low) * static_cast<double>(rng_() >> 11) * 0x1p-53; }
  int32_t Token() { return static_cast<int32_t>(3 + rng_() % 500); }
  std::vector<int32_t> Tokens(uint64_t n) {
    std::vector<int32_t> ids;
    for (; n > 0; --n) ids.push_back(Token());
    return ids;
  }
  uint64_t Bits() { return rng_(); }

 private:
  std::mt19937_64 rng_;
};

// Each parameter is set in some requests, none in all; how often is counted by name.
TextRequest RandomTextRequest(Random& random, std::map<std::string, int>& used) {
  TextRequest r;
  SamplingParams& p = r.params;
  const auto use = [&](const char* name, uint64_t one_in) {
    if (!random.OneIn(one_in)) return false;
    ++used[name];
    return true;
  };
  r.prompt_ids = random.Tokens(1 + random.Below(use("long prompt", 8) ? 390 : 90));
  if (use("shared prefix", 3)) {
    for (size_t i = 0; i < r.prompt_ids.size() * 3 / 4; ++i) r.prompt_ids[i] = static_cast<int32_t>(5 + i % 300);
  }
  p.max_tokens = static_cast<int64_t>(random.Below(24));
  p.temperature = use("greedy", 4) ? 0 : random.Real(0.05, 2);
  if (use("top_p", 3)) p.top_p = random.OneIn(5) ? 1e-9 : random.Real(0.01, 1);
  if (use("top_k", 3)) p.top_k = random.OneIn(5) ? 100000 : static_cast<int64_t>(1 + random.Below(60));
  if (use("min_p", 4)) p.min_p = random.Real(0, 0.3);
  p.ignore_eos = use("ignore_eos", 4);
  p.min_tokens = use("min_tokens", 4) ? static_cast<int64_t>(random.Below(static_cast<uint64_t>(std::max<int64_t>(p.max_tokens, 1)) + 1)) : 0;
  p.prompt_logprobs = use("prompt_logprobs", 5);
  if (use("top_logprobs", 4)) p.top_logprobs = random.OneIn(6) ? 1000 : static_cast<int>(1 + random.Below(20));
  p.first_n_token_no_eos = use("first_n_token_no_eos", 5) ? 1 : 0;
  // Without either the engine would draw a seed of its own.
  if (use("random_seed", 3)) {
    p.random_seed = random.Bits();
  } else {
    p.seq_seed = random.OneIn(8) ? ~uint64_t{0} : random.Bits();
  }
  if (use("golden_token_ids", 6)) {
    for (uint64_t n = random.Below(12); n > 0; --n) p.golden_token_ids.push_back(random.OneIn(2) ? -1 : random.Token());
  }
  if (use("presence_penalty", 4)) p.presence_penalty = random.Real(-2, 2);
  if (use("frequency_penalty", 4)) p.frequency_penalty = random.Real(-2, 2);
  if (use("repetition_penalty", 4)) p.repetition_penalty = random.Real(0.5, 2);
  if (use("logit_bias", 4)) {
    for (uint64_t n = random.Below(20); n > 0; --n) p.logit_bias[random.Token()] = random.Real(-150, 20);
  }
  if (use("end likely", 3)) p.logit_bias[kModelEnd] = random.Real(2, 12);
  if (use("allowed_token_ids", 6)) {
    p.allowed_token_ids = random.Tokens(1 + random.Below(60));
    p.allowed_token_ids->push_back(kModelEnd);
  }
  if (use("detokenize off", 8)) {
    p.detokenize = false;
  } else if (use("stop", 3)) {
    const char* const stops[] = {"e", " t", "an", "\n", "er", "1", "a", "in"};
    for (uint64_t n = 1 + random.Below(3); n > 0; --n) p.stop.push_back(stops[random.Below(8)]);
  }
  if (use("stop_token_ids", 5)) p.stop_token_ids = random.Tokens(1 + random.Below(40));
  p.include_stop_str_in_output = use("include_stop_str_in_output", 3);
  p.skip_special_tokens = use("skip_special_tokens", 3);
  if (!p.is_greedy() && use("n", 6)) p.n = static_cast<int>(2 + random.Below(4));
  p.priority = use("priority", 3) ? static_cast<int>(random.Below(3)) : 0;
  if (use("max_output_bytes", 8)) p.max_output_bytes = static_cast<int64_t>(1 + random.Below(30));
  r.apply_token_policy = use("token policy", 4);
  r.hide_stop_token = use("hidden stop token", 4);
  if (use("cache_mode", 4)) r.cache_mode = CacheMode::kOff;
  return r;
}

class ParameterTest : public ::testing::TestWithParam<LogprobsMode> {};
INSTANTIATE_TEST_SUITE_P(Logprobs, ParameterTest, ::testing::Values(LogprobsMode::kProcessed, LogprobsMode::kRaw),
                         [](const auto& test) { return std::string(test.param == LogprobsMode::kRaw ? "raw" : "processed"); });

TEST_P(ParameterTest, BatchEqualsOneAtATime) {
  // Prompt log probabilities need every row.
  const auto model = LoadNano({model::DecoderReplay::kOff, 0, 2});
  const auto words = text::Tokenizer::Load(DemoDir()).value();
  GeneratorOptions alone_options;
  alone_options.logprobs_mode = GetParam();
  alone_options.compute_sum_smaller_probs = true;
  alone_options.token_blacklist = {77, 78};
  alone_options.prefill_chunk_tokens = 100;
  ModelRunner runner(*model);

  AsyncEngineOptions options;
  options.core = RealModelOptions(0);
  options.core.scheduler.max_model_len = kMaxLen;
  options.core.scheduler.num_blocks = 30;
  options.core.allow_prompt_logprobs = true;
  options.core.sampling.logprobs_mode = GetParam();
  options.core.sampling.compute_sum_smaller_probs = true;
  options.token_blacklist = alone_options.token_blacklist;
  options.fingerprint.model_id = "nano";
  const SchedulerOptions& s = options.core.scheduler;
  const auto slots = ModelSlots::Create(*model, s.num_blocks, s.num_state_slots(), s.prefix_cache.num_state_records).value();
  const auto engine = AsyncEngine::Create(*slots, *words, options).value();

  // Generator ends at the model's context, the engine at its own.
  class ShortRunner : public StepRunner {
   public:
    explicit ShortRunner(StepRunner& r) : runner(r) {}
    int vocab_size() const override { return runner.vocab_size(); }
    int64_t max_model_len() const override { return kMaxLen; }
    Result<std::unique_ptr<RunnerSequence>> NewSequence() override { return runner.NewSequence(); }
    Result<std::span<const float>> Forward(std::span<const StepChunk> chunks) override { return runner.Forward(chunks); }
    StepRunner& runner;
  } short_runner(runner);
  Generator generator(short_runner, *words, kModelEnd, alone_options);

  const char* rounds_text = std::getenv("DEEPINFER_PARAMETER_ROUNDS");
  const int num_rounds = rounds_text != nullptr ? std::atoi(rounds_text) : 2;
  std::map<std::string, int> used, reasons;
  for (int round = 0; round < num_rounds; ++round) {
    Random random(1000 * static_cast<uint64_t>(round) + static_cast<uint64_t>(GetParam()));
    std::vector<TextRequest> requests;
    for (int i = 0; i < 60; ++i) requests.push_back(RandomTextRequest(random, used));
    std::vector<std::vector<std::string>> streams;
    std::vector<TextHandle> handles;
    for (const TextRequest& request : requests) streams.emplace_back(static_cast<size_t>(request.params.n));
    for (size_t i = 0; i < requests.size(); ++i) {
      auto handle = engine->Submit(requests[i], [&of_request = streams[i]](int sample, const StreamUpdate& update) {
        AddUpdate(of_request.at(static_cast<size_t>(sample)), update.token, update.text, update.finish_reason);
        return StreamAction::kContinue;
      });
      ASSERT_TRUE(handle.ok()) << i << ": " << handle.status().message();
      handles.push_back(std::move(handle).value());
    }
    std::vector<std::vector<Completion>> got;
    for (TextHandle& handle : handles) got.push_back(handle.TakeCompletions());
    engine->core().WaitIdle();  // the generator uses the same model
    for (size_t i = 0; i < requests.size(); ++i) {
      for (size_t sample = 0; sample < got[i].size(); ++sample) {
        const std::string what = "round " + std::to_string(round) + " request " + std::to_string(i) + " sample " + std::to_string(sample);
        GenerateRequest one = requests[i];
        one.params.n = 1;
        if (one.params.seq_seed) *one.params.seq_seed += sample;
        if (one.params.random_seed != 0) one.params.random_seed += sample;
        // Prompt log probabilities are reported once.
        if (sample > 0) one.params.prompt_logprobs = false;
        std::string stream;
        const auto want = generator.Generate(one, [&](const StreamUpdate& update) {
          AddUpdate(stream, update.token, update.text, update.finish_reason);
          return StreamAction::kContinue;
        });
        const Completion& completion = got[i][sample];
        ++reasons[std::string(FinishReasonName(completion.finish_reason))];
        if (!want.ok()) {
          // Bans and whitelist left no token.
          EXPECT_EQ(completion.finish_reason, FinishReason::kInvalidLogits) << what << ": " << want.status().message();
          continue;
        }
        ExpectSame(completion, want.value(), what);
        EXPECT_EQ(streams[i][sample], stream) << what;
      }
    }
  }
  for (const auto& [name, count] : used) EXPECT_GE(count, 3) << name;
  EXPECT_EQ(used.size(), 30u);
  EXPECT_GT(reasons["stop"], 10);
  EXPECT_GT(reasons["length"], 10);
}

// Rows of the prompt are dropped: both go on without its log probabilities.
TEST(ParameterDecoderReplay, PromptLogprobsAreOff) {
  const auto model = LoadNano();
  const auto words = text::Tokenizer::Load(DemoDir()).value();
  ModelRunner runner(*model);
  Generator generator(runner, *words, kModelEnd);
  AsyncEngineOptions options;
  options.core = RealModelOptions(kNanoKeep);
  options.fingerprint.model_id = "nano";
  const SchedulerOptions& s = options.core.scheduler;
  const auto slots = ModelSlots::Create(*model, s.num_blocks, s.num_state_slots(), s.prefix_cache.num_state_records).value();
  const auto engine = AsyncEngine::Create(*slots, *words, options).value();
  Random random(3);
  for (const uint64_t length : {10, 300}) {
    TextRequest request;
    request.prompt_ids = random.Tokens(length);
    request.params.prompt_logprobs = true;
    request.params.seq_seed = 4;
    auto handle = engine->Submit(request);
    ASSERT_TRUE(handle.ok());
    const Completion got = handle.value().TakeCompletions()[0];
    engine->core().WaitIdle();
    const auto want = generator.Generate(request);
    ASSERT_TRUE(want.ok()) << want.status().message();
    ExpectSame(got, want.value(), std::to_string(length));
    EXPECT_TRUE(got.prompt_logprobs.empty());
  }
}

}  // namespace
}  // namespace deepinfer::engine
