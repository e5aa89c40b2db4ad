// SPDX-License-Identifier: Apache-2.0
#include "engine/generator.h"

#include <limits>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "core/utf8.h"
#include "engine/fake_runner.h"
#include "engine/token_policy.h"

namespace deepinfer::engine {
namespace {

class GeneratorTest : public ::testing::Test {
 protected:
  static constexpr int kVocab = 4096;

  static const text::Tokenizer& tokenizer() {
    static const std::unique_ptr<text::Tokenizer> instance =
        std::move(text::Tokenizer::Load(std::string(DEEPINFER_SOURCE_DIR) + "/models/demo")).value();
    return *instance;
  }
  static int eos() { return tokenizer().FindAddedToken(kEndOfSentence); }

  GeneratorTest() { options_.clock = &clock_; }

  // Generates with a model that says `text` (encoded), then the end token.
  Completion Say(const std::string& text, const SamplingParams& params, const StreamCallback& callback = {},
                 bool hide_stop_token = true) {
    std::vector<int32_t> script = tokenizer().EncodePlain(text);
    script.push_back(eos());
    return RunScript(script, params, callback, hide_stop_token);
  }

  Completion RunScript(const std::vector<int32_t>& script, const SamplingParams& params,
                       const StreamCallback& callback = {}, bool hide_stop_token = true) {
    GenerateRequest request;
    request.prompt_ids = {0, 100, 101};
    request.params = params;
    request.hide_stop_token = hide_stop_token;
    runner_.SetScript(script, 3);
    Generator generator(runner_, tokenizer(), 1, options_);
    Result<Completion> completion = generator.Generate(request, callback);
    EXPECT_TRUE(completion.ok()) << completion.status().ToString();
    return completion.ok() ? *completion : Completion{};
  }

  static SamplingParams Greedy(int64_t max_tokens = 100) {
    SamplingParams params;
    params.temperature = 0;
    params.max_tokens = max_tokens;
    return params;
  }

  FakeClock clock_;
  GeneratorOptions options_;
  FakeRunner runner_{kVocab, 200};
};

TEST_F(GeneratorTest, StopsAtTheEndToken) {
  const Completion c = Say("The capital is Paris.", Greedy());
  EXPECT_EQ(c.text, "The capital is Paris.");
  EXPECT_EQ(c.finish_reason, FinishReason::kStop);
  EXPECT_EQ(c.stop_token_id, eos());
  EXPECT_EQ(c.ids.back(), eos());
  EXPECT_EQ(c.usage.prompt_tokens, 3);
  EXPECT_EQ(c.usage.completion_tokens, static_cast<int64_t>(c.ids.size()));
  EXPECT_EQ(c.tokens.size(), c.ids.size());
}

TEST_F(GeneratorTest, TheEndTokenShowsInRawTextUnlessSpecialsAreSkipped) {
  EXPECT_EQ(Say("Hi", Greedy(), {}, false).text, std::string("Hi") + kEndOfSentence);
  SamplingParams params = Greedy();
  params.skip_special_tokens = true;
  EXPECT_EQ(Say("Hi", params, {}, false).text, "Hi");
}

TEST_F(GeneratorTest, TheEndOfTurnTokenStopsToo) {
  const int eot = tokenizer().FindAddedToken(kEndOfTurn);
  ASSERT_GE(eot, 0);
  const Completion c = RunScript({300, eot, 301}, Greedy());
  EXPECT_EQ(c.finish_reason, FinishReason::kStop);
  EXPECT_EQ(c.stop_token_id, eot);
  EXPECT_EQ(c.ids.size(), 2u);
}

TEST_F(GeneratorTest, IgnoreEosRunsToTheLimit) {
  SamplingParams params = Greedy(5);
  params.ignore_eos = true;
  const Completion c = RunScript({300, eos(), 301}, params);
  EXPECT_EQ(c.ids, (std::vector<int32_t>{300, eos(), 301, 301, 301}));
  EXPECT_EQ(c.finish_reason, FinishReason::kLength);
}

TEST_F(GeneratorTest, MaxTokens) {
  const Completion c = RunScript({300, 301, 302, 303}, Greedy(2));
  EXPECT_EQ(c.ids.size(), 2u);
  EXPECT_EQ(c.finish_reason, FinishReason::kLength);
  EXPECT_EQ(RunScript({300, 301}, Greedy(0)).ids.size(), 1u);
}

TEST_F(GeneratorTest, TheContextMayHoldOneTokenMore) {
  runner_ = FakeRunner(kVocab, 5);
  const Completion c = RunScript({300}, Greedy(100));
  EXPECT_EQ(c.ids.size(), 3u);  // 3 + 3 = max_model_len + 1
  EXPECT_EQ(c.finish_reason, FinishReason::kLength);
}

TEST_F(GeneratorTest, StopTokenIds) {
  SamplingParams params = Greedy();
  params.stop_token_ids = {302};
  const Completion c = RunScript({300, 301, 302, 303}, params);
  EXPECT_EQ(c.ids, (std::vector<int32_t>{300, 301, 302}));
  EXPECT_EQ(c.stop_token_id, 302);
}

TEST_F(GeneratorTest, StopStringsAcrossTokens) {
  const std::string text = "one two three four five";
  SamplingParams params = Greedy();
  params.stop = {"e four"};
  Completion c = Say(text, params);
  EXPECT_EQ(c.text, "one two thre");
  EXPECT_EQ(c.finish_reason, FinishReason::kStop);
  EXPECT_EQ(c.stop_string, "e four");
  EXPECT_FALSE(c.stop_token_id.has_value());
  EXPECT_LT(c.ids.size(), tokenizer().EncodePlain(text).size());
  params.include_stop_str_in_output = true;
  EXPECT_EQ(Say(text, params).text, "one two three four");
}

TEST_F(GeneratorTest, MinTokensDelaysEveryStop) {
  SamplingParams params = Greedy(10);
  params.min_tokens = 4;
  // The end token is banned, so the model's second best token (id 0 of equal zeros) comes instead.
  const Completion c = RunScript({eos(), eos(), eos(), eos(), eos()}, params);
  EXPECT_EQ(c.ids.size(), 5u);
  EXPECT_EQ(c.ids.back(), eos());
  params.stop = {"o"};
  params.min_tokens = 3;
  const std::vector<int32_t> o = tokenizer().EncodePlain("o");
  const Completion d = RunScript(std::vector<int32_t>(10, o[0]), params);
  EXPECT_EQ(d.ids.size(), 3u);
  EXPECT_EQ(d.text, "oo");
}

TEST_F(GeneratorTest, FirstTokenMayNotBeTheEnd) {
  SamplingParams params = Greedy();
  params.first_n_token_no_eos = 1;
  const Completion c = RunScript({eos(), eos()}, params);
  EXPECT_EQ(c.ids.size(), 2u);
}

TEST_F(GeneratorTest, StreamedTextIsTheWholeTextInWholeCharacters) {
  const std::string text = "Grüße 🎉 naïve 東京!";
  std::string streamed;
  int num_finished = 0;
  size_t num_tokens = 0;
  const Completion c = Say(text, Greedy(), [&](const StreamUpdate& update) {
    EXPECT_TRUE(IsValidUtf8(update.text));
    streamed += update.text;
    num_tokens += update.token != nullptr ? 1 : 0;
    num_finished += update.finish_reason != FinishReason::kNone ? 1 : 0;
    return StreamAction::kContinue;
  });
  EXPECT_EQ(c.text, text);
  EXPECT_EQ(streamed, text);
  EXPECT_EQ(num_tokens, c.ids.size());
  EXPECT_EQ(num_finished, 1);
}

TEST_F(GeneratorTest, TheCallbackCanStopOrAbort) {
  for (const StreamAction action : {StreamAction::kStop, StreamAction::kAbort}) {
    int calls = 0;
    FinishReason last = FinishReason::kNone;
    const Completion c = RunScript({300, 301, 302, 303}, Greedy(), [&](const StreamUpdate& update) {
      last = update.finish_reason;
      return ++calls == 2 ? action : StreamAction::kContinue;
    });
    const FinishReason want = action == StreamAction::kStop ? FinishReason::kStop : FinishReason::kAbort;
    EXPECT_EQ(c.ids.size(), 2u);
    EXPECT_EQ(c.finish_reason, want);
    EXPECT_EQ(last, want);
  }
}

TEST_F(GeneratorTest, CancelEndsBetweenSteps) {
  CancelToken cancel;
  GenerateRequest request;
  request.prompt_ids = {0, 1, 2};
  request.params = Greedy();
  runner_.SetScript({300, 301, 302, 303, 304}, 3);
  int steps = 0;
  runner_.on_step = [&] {
    if (++steps == 3) cancel.Cancel();
  };
  Generator generator(runner_, tokenizer(), 1, options_);
  const auto c = generator.Generate(request, {}, &cancel);
  ASSERT_TRUE(c.ok());
  EXPECT_EQ(c->ids.size(), 3u);
  EXPECT_EQ(c->finish_reason, FinishReason::kAbort);
  // Before the prefill nothing runs at all.
  const auto none = generator.Generate(request, {}, &cancel);
  ASSERT_TRUE(none.ok());
  EXPECT_TRUE(none->ids.empty());
  EXPECT_EQ(none->finish_reason, FinishReason::kAbort);
}

TEST_F(GeneratorTest, Timeout) {
  runner_.on_step = [&] { clock_.AdvanceMs(100); };
  SamplingParams params = Greedy();
  params.timeout_s = 0.35;
  const Completion c = RunScript({300}, params);
  EXPECT_EQ(c.ids.size(), 4u);
  EXPECT_EQ(c.finish_reason, FinishReason::kTimeout);
  EXPECT_NEAR(c.timing.ttft_s, 0.1, 1e-9);
  EXPECT_NEAR(c.timing.tokens_per_s, 10, 1e-6);
}

TEST_F(GeneratorTest, MaxOutputBytesCutsAtACharacter) {
  SamplingParams params = Greedy();
  params.max_output_bytes = 6;
  const Completion c = Say("abcdeé and more", params);
  EXPECT_EQ(c.text, "abcde");
  EXPECT_EQ(c.finish_reason, FinishReason::kLength);
}

TEST_F(GeneratorTest, ForcedTokens) {
  SamplingParams params = Greedy(3);
  params.golden_token_ids = {310, -1, 312};
  EXPECT_EQ(RunScript({300, 301, 302}, params).ids, (std::vector<int32_t>{310, 301, 312}));
}

TEST_F(GeneratorTest, TokenPolicyMasksPromptTokens) {
  const int user = tokenizer().FindAddedToken("<｜User｜>");
  GenerateRequest request;
  request.prompt_ids = {0};
  request.params = Greedy(1);
  runner_.SetScript({user}, 1);
  Generator generator(runner_, tokenizer(), 1, options_);
  EXPECT_EQ(generator.Generate(request)->ids[0], user);
  request.apply_token_policy = true;
  EXPECT_NE(generator.Generate(request)->ids[0], user);
  for (const char* allowed : {"<think>", "</think>", "｜DSML｜", "<｜box｜>"}) {
    runner_.SetScript({tokenizer().FindAddedToken(allowed)}, 1);
    EXPECT_EQ(generator.Generate(request)->ids[0], tokenizer().FindAddedToken(allowed)) << allowed;
  }
}

TEST_F(GeneratorTest, BlacklistedTokensNeverCome) {
  options_.token_blacklist = {300};
  EXPECT_NE(RunScript({300}, Greedy(1)).ids[0], 300);
}

TEST_F(GeneratorTest, ChunkingChangesNothing) {
  GenerateRequest request;
  for (int i = 0; i < 50; ++i) request.prompt_ids.push_back(i * 7 % 100);
  request.params.max_tokens = 20;
  request.params.seq_seed = 5;
  request.params.prompt_logprobs = true;
  std::vector<Completion> completions;
  for (const int64_t chunk : {1, 7, 50, 1000}) {
    options_.prefill_chunk_tokens = chunk;
    Generator generator(runner_, tokenizer(), 1, options_);
    auto c = generator.Generate(request);
    ASSERT_TRUE(c.ok());
    EXPECT_EQ(c->prompt_logprobs.size(), 49u);
    completions.push_back(*c);
    EXPECT_EQ(completions.back().ids, completions.front().ids);
    EXPECT_EQ(completions.back().prompt_logprobs, completions.front().prompt_logprobs);
  }
}

// Chunks take about a tenth of a second, whatever the speed; a model that is slow whatever the chunk gets large ones.
TEST_F(GeneratorTest, ALongPromptCanBeCancelledSoon) {
  struct Case {
    int64_t tokens_per_s;
    std::vector<int64_t> chunks;
  };
  for (const Case& test : {Case{5000, {256, 448, 448}}, Case{1000000, {256, 2048, 2048}}, Case{100, {256, 2048, 2048}},
                           Case{200, {256, 64, 64}}}) {
    FakeRunner runner(kVocab, 10000);
    Generator generator(runner, tokenizer(), 1, options_);
    GenerateRequest request;
    request.prompt_ids.assign(9000, 7);
    CancelToken cancel;
    runner.on_step = [&] {
      clock_.AdvanceMs(runner.chunk_sizes.back() * 1000 / test.tokens_per_s);
      if (runner.chunk_sizes.size() == 3) cancel.Cancel();
    };
    const auto c = generator.Generate(request, {}, &cancel);
    ASSERT_TRUE(c.ok());
    EXPECT_EQ(c->finish_reason, FinishReason::kAbort);
    EXPECT_EQ(runner.chunk_sizes, test.chunks);
  }
}

TEST_F(GeneratorTest, LogitsThatAreNotFiniteEndOnlyTheirRequest) {
  Generator generator(runner_, tokenizer(), 1, options_);
  GenerateRequest request;
  request.prompt_ids = {1, 2};
  request.params.max_tokens = 3;
  for (const float value : {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    for (const double temperature : {0.0, 1.0}) {
      request.params.temperature = temperature;
      runner_.replaced_logit = value;
      const Status status = generator.Generate(request).status();
      EXPECT_EQ(status.code(), StatusCode::kInternal);
      EXPECT_NE(status.message().find("inspect --verify"), std::string::npos) << status.message();
      runner_.replaced_logit.reset();
      EXPECT_TRUE(generator.Generate(request).ok());
    }
  }
}

TEST_F(GeneratorTest, SeedsRepeatAndDiffer) {
  GenerateRequest request;
  request.prompt_ids = {5, 6};
  request.params.max_tokens = 20;
  Generator generator(runner_, tokenizer(), 1, options_);
  request.params.seq_seed = 1;
  const auto a = generator.Generate(request);
  const auto b = generator.Generate(request);
  request.params.seq_seed = 2;
  const auto other = generator.Generate(request);
  EXPECT_EQ(a->ids, b->ids);
  EXPECT_NE(a->ids, other->ids);
  request.params.seq_seed.reset();
  const auto c = generator.Generate(request);
  const auto d = generator.Generate(request);
  EXPECT_NE(c->seed, d->seed);
  EXPECT_NE(c->ids, d->ids);
}

TEST_F(GeneratorTest, RefusalsComeBeforeAnyWork) {
  Generator generator(runner_, tokenizer(), 1, options_);
  GenerateRequest request;
  Status status = generator.Generate(request).status();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(status.field(), kPromptField);
  request.prompt_ids = {1, 4096};
  status = generator.Generate(request).status();
  EXPECT_EQ(status.field(), kPromptTokensField);
  EXPECT_NE(status.message().find("4096"), std::string::npos);
  request.prompt_ids.assign(201, 1);
  status = generator.Generate(request).status();
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(status.field(), kPromptLengthField);
  EXPECT_NE(status.message().find("201"), std::string::npos);
  // A longer context is only offered where the checkpoint has one that helps.
  EXPECT_EQ(status.message().find("max-model-len"), std::string::npos);
  runner_.longest_len = 200;
  EXPECT_EQ(generator.Generate(request).status().message().find("max-model-len"), std::string::npos);
  runner_.longest_len = 300;
  EXPECT_NE(generator.Generate(request).status().message().find("--max-model-len (at most 300)"), std::string::npos);
  request.prompt_ids = {1};
  request.params.top_p = 2;
  EXPECT_EQ(generator.Generate(request).status().field(), "top_p");
  EXPECT_TRUE(runner_.chunk_sizes.empty());
}

TEST_F(GeneratorTest, InvalidLogitsEndTheRequestWithAnError) {
  GenerateRequest request;
  request.prompt_ids = {1, 2};
  request.params = Greedy();
  runner_.SetScript({300, -1}, 2);
  Generator generator(runner_, tokenizer(), 1, options_);
  const auto c = generator.Generate(request);
  ASSERT_FALSE(c.ok());
  EXPECT_NE(c.status().message().find("invalid logits"), std::string::npos);
}

TEST_F(GeneratorTest, PenaltiesCountTheOutput) {
  SamplingParams params = Greedy(2);
  params.presence_penalty = 2;
  params.frequency_penalty = 2;
  params.repetition_penalty = 100;
  // 50 / 100 - 2 - 2 < 0: the token said once is below all others.
  const Completion c = RunScript({300, 300}, params);
  EXPECT_EQ(c.ids[0], 300);
  EXPECT_NE(c.ids[1], 300);
}

}  // namespace
}  // namespace deepinfer::engine
