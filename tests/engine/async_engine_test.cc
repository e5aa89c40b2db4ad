// SPDX-License-Identifier: Apache-2.0
//
// The text layer on the asynchronous engine: what a request gets is what Generator gives for it, alone or in a crowd, and
// neither a failing callback nor a cancelled neighbour changes that.
#include "engine/async_engine.h"

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <random>
#include <stdexcept>
#include <thread>

#include <gtest/gtest.h>

#include "core/log.h"
#include "engine/token_policy.h"
#include "engine/completions.h"
#include "engine/fake_step_model.h"

namespace deepinfer::engine {
namespace {

constexpr int kVocab = 4096;
constexpr int64_t kMaxLen = 640;

const text::Tokenizer& Words() {
  static const std::unique_ptr<text::Tokenizer> instance =
      std::move(text::Tokenizer::Load(std::string(DEEPINFER_SOURCE_DIR) + "/models/demo")).value();
  return *instance;
}
int32_t Eos() { return Words().FindAddedToken(kEndOfSentence); }

// The fake model for Generator: the same logits, no caches.
class HashRunner : public StepRunner {
 public:
  int vocab_size() const override { return kVocab; }
  int64_t max_model_len() const override { return kMaxLen; }
  Result<std::unique_ptr<RunnerSequence>> NewSequence() override {
    return std::unique_ptr<RunnerSequence>(std::make_unique<Hash>());
  }
  Result<std::span<const float>> Forward(std::span<const StepChunk> chunks) override {
    logits_.clear();
    for (const StepChunk& chunk : chunks) {
      uint64_t& hash = static_cast<Hash*>(chunk.sequence)->value;
      for (size_t i = 0; i < chunk.ids.size(); ++i) {
        hash = HashToken(hash, chunk.ids[i]);
        if (chunk.logits != LogitRows::kAll && (chunk.logits != LogitRows::kLast || i + 1 != chunk.ids.size())) continue;
        logits_.resize(logits_.size() + kVocab);
        FakeStepModel::FillLogits(hash, std::span<float>(logits_).last(kVocab));
      }
    }
    return std::span<const float>(logits_);
  }

 private:
  struct Hash : RunnerSequence {
    uint64_t value = 1;
  };
  std::vector<float> logits_;
};

AsyncEngineOptions Options() {
  AsyncEngineOptions o;
  o.core.scheduler.max_model_len = kMaxLen;
  o.core.scheduler.max_num_batched_tokens = 256;
  o.core.scheduler.max_num_seqs = 16;
  o.core.scheduler.num_blocks = 40;
  o.core.scheduler.decoder_keep = 140;
  o.core.scheduler.cache_mode = CacheMode::kExact;
  o.core.scheduler.prefix_cache.state_every_blocks = 1;
  o.core.scheduler.prefix_cache.num_state_records = 16;
  o.fingerprint.model_id = "fake";
  return o;
}

struct Fixture {
  explicit Fixture(AsyncEngineOptions options = Options(), int num_threads = 1)
      : model(kVocab, kMaxLen, options.core.scheduler.num_blocks, options.core.scheduler.num_state_slots(),
              options.core.scheduler.prefix_cache.num_state_records, num_threads) {
    auto made = AsyncEngine::Create(model, Words(), std::move(options));
    EXPECT_TRUE(made.ok()) << made.status().message();
    engine = std::move(made).value();
  }
  FakeStepModel model;
  std::unique_ptr<AsyncEngine> engine;  // goes first
};

struct Answer {
  Completion completion;
  std::string stream;  // every update: token, text, reason
};

Answer Expected(const TextRequest& request, int sample = 0) {
  static std::mutex mutex;
  std::lock_guard lock(mutex);
  static HashRunner runner;
  static Generator generator(runner, Words(), Eos());
  GenerateRequest one = request;
  one.params.n = 1;
  if (one.params.seq_seed) *one.params.seq_seed += static_cast<uint64_t>(sample);
  if (one.params.random_seed != 0) one.params.random_seed += static_cast<uint64_t>(sample);
  Answer answer;
  const auto made = generator.Generate(one, [&](const StreamUpdate& update) {
    AddUpdate(answer.stream, update.token, update.text, update.finish_reason);
    return StreamAction::kContinue;
  });
  EXPECT_TRUE(made.ok()) << made.status().message();
  if (made.ok()) answer.completion = made.value();
  return answer;
}

TextRequest Free(int64_t max_tokens = 30, double temperature = 0) {
  TextRequest request;
  request.prompt_ids = {0, 100, 101, 102, 250};
  request.params.max_tokens = max_tokens;
  request.params.temperature = temperature;
  request.params.seq_seed = 11;
  return request;
}
// The model says `text`, then the end token.
TextRequest Says(std::string_view text) {
  TextRequest request = Free(100);
  request.params.golden_token_ids = Words().EncodePlain(text);
  request.params.golden_token_ids.push_back(Eos());
  return request;
}

std::vector<std::pair<std::string, TextRequest>> Table() {
  std::vector<std::pair<std::string, TextRequest>> t;
  const auto add = [&](std::string name, TextRequest request) -> TextRequest& { return t.emplace_back(std::move(name), std::move(request)).second; };
  add("greedy", Free());
  add("one token", Free(1));
  add("zero tokens", Free(0));
  add("seeded", Free(30, 0.9)).params.top_p = 0.9;
  {
    SamplingParams& p = add("shared drawn seed", Free(30, 1.1)).params;
    p.seq_seed.reset();
    p.random_seed = 77;
    p.top_k = 50;
    p.min_p = 0.01;
  }
  {
    SamplingParams& p = add("penalties", Free(60, 0.7)).params;
    p.presence_penalty = 0.5;
    p.frequency_penalty = 0.3;
    p.repetition_penalty = 1.3;
    p.logit_bias = {{300, 5.0}, {301, -5.0}};
  }
  add("top log probabilities", Free(20, 1)).params.top_logprobs = 5;
  add("prompt log probabilities", Free(5)).params.prompt_logprobs = true;
  add("allowed ids", Free(40, 1)).params.allowed_token_ids = std::vector<int32_t>{300, 301, 302, Eos()};
  {
    SamplingParams& p = add("no end first", Free(40, 1)).params;
    p.allowed_token_ids = std::vector<int32_t>{300, Eos()};
    p.first_n_token_no_eos = 1;
  }
  {
    SamplingParams& p = add("min tokens", Free(40, 1)).params;
    p.allowed_token_ids = std::vector<int32_t>{300, 301, Eos()};
    p.stop_token_ids = {301};
    p.min_tokens = 12;
  }
  add("says", Says("The capital is Paris."));
  add("hidden end", Says("The capital is Paris.")).hide_stop_token = true;
  add("skips specials", Says("Hi")).params.skip_special_tokens = true;
  add("ignores the end", Says("Go on and on")).params.ignore_eos = true;
  add("policy", Free(40, 1)).apply_token_policy = true;
  add("stop across borders", Says("The quick brown fox jumps over the lazy dog")).params.stop = {"k bro", "lazy"};
  add("stop at the end", Says("one two three")).params.stop = {"three"};
  add("almost a stop", Says("one two three")).params.stop = {"three!", "three four"};
  {
    SamplingParams& p = add("stop included", Says("The quick brown fox")).params;
    p.stop = {"wn f"};
    p.include_stop_str_in_output = true;
  }
  {
    SamplingParams& p = add("stop after min tokens", Says("ab ab ab ab ab ab ab ab ab")).params;
    p.stop = {"ab"};
    p.min_tokens = 6;
  }
  {
    SamplingParams& p = add("stop token", Free(60, 1)).params;
    p.allowed_token_ids = std::vector<int32_t>{300, 301, 302, 303, 304};
    p.stop_token_ids = {303};
  }
  add("byte limit", Says("Zwölf Boxkämpfer jagen Viktor quer über den Sylter Deich")).params.max_output_bytes = 13;
  add("characters of several tokens", Says("日本語のテキスト 👩‍🚀 und 🎉"));
  add("cut in a character", Says("日本語のテキスト 👩‍🚀 und 🎉")).params.max_tokens = 4;
  {
    SamplingParams& p = add("no text", Says("The capital")).params;
    p.detokenize = false;
  }
  std::mt19937_64 rng(5);
  for (int i = 0; i < 30; ++i) {
    TextRequest& r = add("random " + std::to_string(i), Free(static_cast<int64_t>(1 + rng() % 60), 0.5 + 0.1 * static_cast<double>(rng() % 8)));
    for (uint64_t k = rng() % 300; k > 0; --k) r.prompt_ids.push_back(static_cast<int32_t>(rng() % 4000));
    r.params.seq_seed = rng();
    r.params.stop = {"e ", "an", "\n"};
    r.params.min_tokens = std::min<int64_t>(r.params.max_tokens, static_cast<int64_t>(rng() % 20));
    r.params.include_stop_str_in_output = rng() % 2 == 0;
    r.params.priority = static_cast<int>(rng() % 3);
  }
  return t;
}

TEST(AsyncEngine, EveryRequestGetsWhatItGetsAlone) {
  const auto table = Table();
  std::vector<Answer> want;
  for (const auto& [name, request] : table) want.push_back(Expected(request));
  // The table reaches every way to end.
  const auto count = [&](auto matches) { return std::count_if(want.begin(), want.end(), [&](const Answer& a) { return matches(a.completion); }); };
  EXPECT_GE(count([](const Completion& c) { return c.stop_string.has_value(); }), 10);
  EXPECT_GE(count([](const Completion& c) { return c.stop_token_id.has_value(); }), 8);
  EXPECT_GE(count([](const Completion& c) { return c.finish_reason == FinishReason::kLength; }), 8);
  for (const bool together : {false, true}) {
    Fixture f(Options(), together ? 2 : 1);
    std::vector<std::string> streams(table.size());
    std::vector<TextHandle> handles;
    for (size_t i = 0; i < table.size(); ++i) {
      auto handle = f.engine->Submit(table[i].second, [&stream = streams[i]](int sample, const StreamUpdate& update) {
        EXPECT_EQ(sample, 0);
        AddUpdate(stream, update.token, update.text, update.finish_reason);
        return StreamAction::kContinue;
      });
      ASSERT_TRUE(handle.ok()) << table[i].first << ": " << handle.status().message();
      handles.push_back(std::move(handle).value());
      if (!together) handles.back().Wait();
    }
    for (size_t i = 0; i < table.size(); ++i) {
      const auto got = handles[i].TakeCompletions();
      ASSERT_EQ(got.size(), 1u);
      const std::string what = table[i].first + (together ? ", together" : ", alone");
      ExpectSame(got[0], want[i].completion, what);
      EXPECT_EQ(streams[i], want[i].stream) << what;
    }
    f.engine->core().WaitIdle();
    EXPECT_EQ(f.engine->core().Stats().num_used_blocks, 0);
  }
}

TEST(AsyncEngine, SamplesAreRequestsWithTheirOwnSeeds) {
  Fixture f;
  TextRequest request = Free(40, 1);
  request.params.n = 5;
  request.params.stop = {"an", "er"};
  auto handle = f.engine->Submit(request);
  ASSERT_TRUE(handle.ok());
  const auto got = handle.value().TakeCompletions();
  ASSERT_EQ(got.size(), 5u);
  for (int i = 0; i < 5; ++i) ExpectSame(got[static_cast<size_t>(i)], Expected(request, i).completion, "sample " + std::to_string(i));
}

TEST(AsyncEngine, OutputsCanBePulled) {
  Fixture f;
  const TextRequest request = Says("The quick brown fox");
  auto handle = f.engine->Submit(request);
  ASSERT_TRUE(handle.ok());
  std::string stream, text;
  TextOutput output;
  while (handle.value().Next(output)) {
    AddUpdate(stream, output.token ? &*output.token : nullptr, output.text, output.finish_reason);
    text += output.text;
  }
  EXPECT_TRUE(handle.value().is_done());
  EXPECT_EQ(stream, Expected(request).stream);
  EXPECT_EQ(text, handle.value().TakeCompletions()[0].text);
  auto raw = f.engine->Submit("The quick", request.params);
  ASSERT_TRUE(raw.ok());
  EXPECT_EQ(raw.value().TakeCompletions()[0].prompt_ids, Words().EncodeFull("The quick"));
}

TEST(AsyncEngine, AFailingCallbackEndsItsRequestOnly) {
  Fixture f;
  const TextRequest request = Free(40, 1);
  const Answer want = Expected(request);
  auto throws = f.engine->Submit(request, [n = 0](int, const StreamUpdate&) mutable -> StreamAction {
    if (++n == 3) throw std::runtime_error("the client is gone");
    EXPECT_LT(n, 3) << "called after it threw";
    return StreamAction::kContinue;
  });
  auto throws_other = f.engine->Submit(request, [](int, const StreamUpdate&) -> StreamAction { throw 1; });
  auto stops = f.engine->Submit(request, [](int, const StreamUpdate& update) {
    return update.token != nullptr && update.token->num_output_tokens == 5 ? StreamAction::kStop : StreamAction::kContinue;
  });
  auto aborts = f.engine->Submit(request, [](int, const StreamUpdate&) { return StreamAction::kAbort; });
  auto lives = f.engine->Submit(request);
  ASSERT_TRUE(throws.ok() && throws_other.ok() && stops.ok() && aborts.ok() && lives.ok());
  const auto check = [&](Result<TextHandle>& handle, size_t num_tokens, FinishReason reason) {
    const auto got = handle.value().TakeCompletions();
    EXPECT_EQ(got[0].ids, std::vector<int32_t>(want.completion.ids.begin(), want.completion.ids.begin() + static_cast<int64_t>(num_tokens)));
    EXPECT_EQ(got[0].finish_reason, reason);
  };
  check(throws, 3, FinishReason::kAbort);
  check(throws_other, 1, FinishReason::kAbort);
  check(stops, 5, FinishReason::kStop);
  check(aborts, 1, FinishReason::kAbort);
  ExpectSame(lives.value().TakeCompletions()[0], want.completion, "the neighbour");
}

TEST(AsyncEngine, InvalidLogitsEndOneRequest) {
  Fixture f;
  f.model.poison_token = 4000;
  TextRequest bad = Free(20), good = Free(20, 1);
  bad.params.golden_token_ids = {300, 301, 4000};
  good.params.logit_bias = {{4000, -100.0}};
  auto a = f.engine->Submit(bad), b = f.engine->Submit(good);
  ASSERT_TRUE(a.ok() && b.ok());
  const Completion failed = a.value().TakeCompletions()[0];
  EXPECT_EQ(failed.finish_reason, FinishReason::kInvalidLogits);
  EXPECT_EQ(failed.ids, (std::vector<int32_t>{300, 301, 4000}));
  ExpectSame(b.value().TakeCompletions()[0], Expected(good).completion, "the neighbour");
}

TEST(AsyncEngine, BadRequestsAreRefusedByName) {
  Fixture f;
  const auto refused = [&](TextRequest request, const char* field, StatusCode code = StatusCode::kInvalidArgument) {
    const auto handle = f.engine->Submit(std::move(request));
    ASSERT_FALSE(handle.ok()) << field;
    EXPECT_EQ(handle.status().field(), field);
    EXPECT_EQ(handle.status().code(), code) << field;
  };
  TextRequest r = Free();
  r.prompt_ids.clear();
  refused(r, kPromptField);
  r.prompt_ids = {5, kVocab};
  refused(r, kPromptTokensField);
  r.prompt_ids.assign(kMaxLen + 1, 5);
  refused(r, kPromptLengthField, StatusCode::kResourceExhausted);
  r = Free();
  r.params.temperature = -1;
  refused(r, "temperature");
  r = Free();
  r.cache_salt.assign(129, 'x');
  refused(r, "cache_salt");
}

TEST(AsyncEngine, PrefixesAreSharedWithinASalt) {
  Fixture f;
  TextRequest request = Free(4);
  for (int i = 0; i < 500; ++i) request.prompt_ids.push_back(200 + i);
  const auto cached = [&](const std::string& salt) {
    request.cache_salt = salt;
    auto handle = f.engine->Submit(request);
    EXPECT_TRUE(handle.ok());
    const Completion c = handle.value().TakeCompletions()[0];
    ExpectSame(c, Expected(request).completion, "salt " + salt);
    f.engine->core().WaitIdle();
    return c.usage.cached_tokens;
  };
  EXPECT_EQ(cached(""), 0);
  EXPECT_GT(cached(""), 0);
  EXPECT_EQ(cached("tenant"), 0);
  EXPECT_GT(cached("tenant"), 0);
  AsyncEngineOptions other = Options();
  other.fingerprint.numerics_class = 4;
  EXPECT_FALSE(f.engine->CacheRoot("") == Fixture(other).engine->CacheRoot(""));
  EXPECT_FALSE(f.engine->CacheRoot("") == Key256());
}

TEST(AsyncEngine, TheEndOfTheEngineEndsItsRequests) {
  std::vector<TextHandle> handles;
  {
    Fixture f;
    for (int i = 0; i < 30; ++i) handles.push_back(f.engine->Submit(Free(300, 1)).value());
    handles[0].Cancel();
    handles[0].Wait();
  }
  for (TextHandle& handle : handles) {
    EXPECT_TRUE(handle.is_done());
    handle.Cancel();
    const auto got = handle.TakeCompletions();
    EXPECT_EQ(got[0].ids.size(), got[0].tokens.size());
  }
}

// Requests come from several threads with shared prefixes, samples and priorities, in too little memory, and are cancelled,
// stopped or fail at any moment. Those that end by themselves are what Generator gives, the others a prefix of it.
// DEEPINFER_SOAK_SECONDS makes it long.
TEST(AsyncEngineSoak, RandomTraffic) {
  // Callbacks fail by the hundred here.
  ASSERT_TRUE(InitLogging("off", LogFormat::kText).ok());
  AsyncEngineOptions o = Options();
  o.core.scheduler.num_blocks = 20;
  o.core.max_requests = 24;
  Fixture f(o, 2);
  const char* seconds_text = std::getenv("DEEPINFER_SOAK_SECONDS");
  const double seconds = seconds_text != nullptr ? std::atof(seconds_text) : 0;
  const double end_s = Clock::Steady().NowSeconds() + seconds;
  std::atomic<int64_t> num_requests{0}, num_tokens{0}, num_ended_early{0}, num_refused{0}, num_wrong{0};
  const auto client = [&](uint64_t seed) {
    std::mt19937_64 rng(seed);
    for (int i = 0; i < 12 || Clock::Steady().NowSeconds() < end_s; ++i) {
      struct Open {
        TextRequest request;
        TextHandle handle;
        uint64_t fate = 0;
      };
      std::vector<Open> open;
      for (uint64_t k = 1 + rng() % 8; k > 0; --k) {
        TextRequest r = Free(static_cast<int64_t>(1 + rng() % 50), rng() % 4 == 0 ? 0 : 1);
        const uint64_t shared = rng() % 2 == 0 ? rng() % 400 : 0, own = rng() % 120, document = rng() % 3;
        for (uint64_t j = 0; j < shared; ++j) r.prompt_ids.push_back(static_cast<int32_t>((document + 1) * (j + 5) * 13 % 3000));
        for (uint64_t j = 0; j < own; ++j) r.prompt_ids.push_back(static_cast<int32_t>(rng() % 4000));
        r.params.seq_seed = rng();
        if (rng() % 2 == 0) r.params.stop = {"an", "e s", "\n"};
        if (rng() % 4 == 0) r.params.frequency_penalty = 0.5;
        if (rng() % 4 == 0) r.params.min_tokens = std::min<int64_t>(r.params.max_tokens, 10);
        if (rng() % 8 == 0 && !r.params.is_greedy()) r.params.n = 3;
        if (rng() % 6 == 0) r.cache_salt = "tenant";
        if (rng() % 6 == 0) r.cache_mode = CacheMode::kOff;
        r.params.priority = static_cast<int>(rng() % 3);
        const uint64_t fate = rng() % 8;  // 0 cancelled, 1 callback throws, 2 callback stops, 3 pulled, else waited for
        const int64_t when = static_cast<int64_t>(1 + rng() % 20);
        SampleCallback callback;
        // No token is lost or comes twice, whatever becomes of the request.
        const auto count = std::make_shared<std::vector<int64_t>>(static_cast<size_t>(r.params.n));
        const auto is_next = [count, &num_wrong](int sample, const StreamUpdate& update) {
          if (update.token != nullptr && update.token->num_output_tokens != ++(*count)[static_cast<size_t>(sample)]) ++num_wrong;
        };
        if (fate == 1 || fate == 2) {
          callback = [fate, when, is_next](int sample, const StreamUpdate& update) {
            is_next(sample, update);
            if (update.token == nullptr || update.token->num_output_tokens < when) return StreamAction::kContinue;
            if (fate == 1) throw std::runtime_error("planned failure");
            return StreamAction::kStop;
          };
        } else if (fate != 3) {
          callback = [is_next](int sample, const StreamUpdate& update) {
            is_next(sample, update);
            return StreamAction::kContinue;
          };
        }
        auto handle = f.engine->Submit(r, std::move(callback));
        if (!handle.ok()) {
          ASSERT_EQ(handle.status().code(), StatusCode::kResourceExhausted);
          ++num_refused;
          continue;
        }
        ++num_requests;
        open.push_back({std::move(r), std::move(handle).value(), fate});
      }
      for (Open& request : open) {
        if (request.fate == 0) request.handle.Cancel();
        std::vector<std::string> pulled(static_cast<size_t>(request.request.params.n));
        TextOutput output;
        while (request.fate == 3 && request.handle.Next(output)) pulled[static_cast<size_t>(output.sample)] += output.text;
        const auto got = request.handle.TakeCompletions();
        for (size_t s = 0; s < got.size(); ++s) {
          const Completion want = Expected(request.request, static_cast<int>(s)).completion;
          num_tokens += static_cast<int64_t>(got[s].ids.size());
          if (request.fate > 2) {
            ExpectSame(got[s], want, "soak");
            if (request.fate == 3) {
              EXPECT_EQ(pulled[s], want.text);
            }
            continue;
          }
          ASSERT_LE(got[s].ids.size(), want.ids.size());
          ASSERT_TRUE(std::equal(got[s].ids.begin(), got[s].ids.end(), want.ids.begin())) << "not a prefix";
          if (got[s].ids.size() < want.ids.size()) ++num_ended_early;
        }
      }
    }
  };
  std::vector<std::thread> clients;
  for (uint64_t t = 0; t < 3; ++t) clients.emplace_back(client, 100 + t + static_cast<uint64_t>(seconds));
  for (std::thread& thread : clients) thread.join();
  EXPECT_TRUE(InitLogging("info", LogFormat::kText).ok());
  f.engine->core().Drain();
  const EngineCore::Snapshot stats = f.engine->core().Stats();
  EXPECT_EQ(stats.num_live, 0);
  EXPECT_EQ(stats.num_used_blocks, 0);
  EXPECT_EQ(stats.num_used_slots, 0);
  EXPECT_EQ(stats.stats.num_finished, stats.stats.num_added);
  EXPECT_GT(num_ended_early, 0);
  EXPECT_EQ(num_wrong, 0);
  if (seconds > 0) {
    std::printf("soak: %lld requests, %lld tokens, %lld ended early, %lld refused, %lld preempted, %lld forked, %lld cached tokens\n",
                static_cast<long long>(num_requests), static_cast<long long>(num_tokens), static_cast<long long>(num_ended_early),
                static_cast<long long>(num_refused), static_cast<long long>(stats.stats.num_preempted),
                static_cast<long long>(stats.stats.num_forked), static_cast<long long>(stats.stats.num_cached_tokens));
  }
}

}  // namespace
}  // namespace deepinfer::engine
