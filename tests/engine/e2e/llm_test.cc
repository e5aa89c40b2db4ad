// SPDX-License-Identifier: Apache-2.0
//
// The public API on the demo model, against the stored continuations of tests/golden/tiny.
#include "deepinfer/llm.h"

#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "core/json.h"

namespace deepinfer {
namespace {

const std::string kSource = DEEPINFER_SOURCE_DIR;
// Continuations agree up to the first step whose best two logits are closer than this (tests/golden/tiny/README.md).
constexpr double kGap = 0.3;

std::unique_ptr<LLM> Load(const std::string& numerics, int num_threads = 0) {
  EngineOptions options;
  options.model = kSource + "/models/demo";
  options.numerics = numerics;
  options.num_threads = num_threads;
  Result<std::unique_ptr<LLM>> llm = LLM::Load(options);
  EXPECT_TRUE(llm.ok()) << llm.status().ToString();
  return llm.ok() ? std::move(llm).value() : nullptr;
}

LLM& Demo() {
  static const std::unique_ptr<LLM> llm = Load("release");
  return *llm;
}

const Json& Greedy() {
  static const Json json = ReadJsonFile(kSource + "/tests/golden/tiny/greedy.json").value();
  return json;
}

SamplingParams GreedyParams(int64_t max_tokens = 40) {
  SamplingParams params;
  params.temperature = 0;
  params.max_tokens = max_tokens;
  params.skip_special_tokens = true;
  return params;
}

class LlmGreedy : public ::testing::TestWithParam<std::pair<const char*, const char*>> {};

TEST_P(LlmGreedy, AgreesWithTheStoredContinuations) {
  const auto [numerics, key] = GetParam();
  const std::unique_ptr<LLM> llm = Load(numerics);
  ASSERT_NE(llm, nullptr);
  int num_complete = 0;
  for (const Json& entry : Greedy()) {
    const auto prompt = entry.at("prompt_ids").get<std::vector<int32_t>>();
    const auto want = entry.at(key).at("ids").get<std::vector<int32_t>>();
    const auto gaps = entry.at(key).at("gap_to_second").get<std::vector<double>>();
    const auto c = llm->GenerateFromIds(prompt, GreedyParams());
    ASSERT_TRUE(c.ok()) << c.status().ToString();
    bool is_complete = true;
    for (size_t i = 0; i < want.size(); ++i) {
      if (gaps[i] < kGap) {
        is_complete = false;
        break;
      }
      ASSERT_LT(i, c->ids.size()) << entry.at("prompt");
      ASSERT_EQ(c->ids[i], want[i]) << entry.at("prompt") << " step " << i;
    }
    if (!is_complete) continue;
    ++num_complete;
    EXPECT_EQ(c->ids.size(), want.size()) << entry.at("prompt");
    EXPECT_EQ(c->text, entry.at(key).at("text").get<std::string>());
  }
  EXPECT_GT(num_complete, 0);
}

INSTANTIATE_TEST_SUITE_P(Numerics,
                         LlmGreedy,
                         ::testing::Values(std::pair{"release", "qat16"},
                                           std::pair{"fp32", "qat32"},
                                           std::pair{"plain", "plain"}),
                         [](const auto& test) { return std::string(test.param.first); });

TEST(Llm, ThreadsDoNotChangeTheBits) {
  const auto prompt = Greedy()[0].at("prompt_ids").get<std::vector<int32_t>>();
  SamplingParams params;
  params.max_tokens = 30;
  params.seq_seed = 3;
  params.ignore_eos = true;
  std::vector<Completion> runs;
  for (const int num_threads : {1, 2, 3}) {
    const std::unique_ptr<LLM> llm = Load("release", num_threads);
    ASSERT_NE(llm, nullptr);
    const auto c = llm->GenerateFromIds(prompt, params);
    ASSERT_TRUE(c.ok()) << c.status().ToString();
    runs.push_back(*c);
    EXPECT_EQ(c->ids, runs[0].ids);
    for (size_t i = 0; i < c->tokens.size(); ++i) EXPECT_EQ(c->tokens[i].logprob, runs[0].tokens[i].logprob) << i;
  }
}

TEST(Llm, ChatAnswersAndStreamsTheSameText) {
  ChatOptions options;
  options.thinking = false;
  SamplingParams params = GreedyParams();
  std::string streamed;
  const auto answer = Demo().Chat({{.role = "user", .content = "Hello"}}, params, options, [&](const ChatDelta& delta) {
    streamed += delta.content;
    return StreamAction::kContinue;
  });
  ASSERT_TRUE(answer.ok()) << answer.status().ToString();
  EXPECT_EQ(answer->message.content, "Hello! How can I help you?");
  EXPECT_EQ(streamed, answer->message.content);
  EXPECT_EQ(answer->message.role, "assistant");
  EXPECT_EQ(answer->finish_reason, "stop");
  EXPECT_EQ(answer->completion.prompt_ids, Greedy()[0].at("prompt_ids").get<std::vector<int32_t>>());
}

TEST(Llm, ChatStopStringsCutTheContent) {
  ChatOptions options;
  options.thinking = false;
  SamplingParams params = GreedyParams();
  params.stop = {"can I"};
  const auto answer = Demo().Chat({{.role = "user", .content = "Hello"}}, params, options);
  ASSERT_TRUE(answer.ok()) << answer.status().ToString();
  EXPECT_EQ(answer->message.content, "Hello! How ");
  EXPECT_EQ(answer->finish_reason, "stop");
  EXPECT_EQ(answer->completion.stop_string, "can I");
}

TEST(Llm, ThinkingIsKeptApartFromTheAnswer) {
  const auto answer =
      Demo().Chat({{.role = "user", .content = "What is the capital of France?"}}, GreedyParams(200), {.thinking = true});
  ASSERT_TRUE(answer.ok()) << answer.status().ToString();
  EXPECT_FALSE(answer->message.reasoning_content.empty());
  EXPECT_NE(answer->message.content.find("Paris"), std::string::npos) << answer->message.content;
  EXPECT_EQ(answer->message.content.find("think>"), std::string::npos);
}

TEST(Llm, SamplesShareAPromptAndDifferInSeed) {
  SamplingParams params;
  params.n = 3;
  params.seq_seed = 10;
  params.max_tokens = 12;
  params.temperature = 1.5;
  params.ignore_eos = true;
  const std::vector<int32_t> prompt = Demo().Encode("The capital of");
  const auto samples = Demo().GenerateSamples(prompt, params);
  ASSERT_TRUE(samples.ok()) << samples.status().ToString();
  ASSERT_EQ(samples->size(), 3u);
  params.n = 1;
  params.seq_seed = 12;
  const auto third = Demo().GenerateFromIds(prompt, params);
  ASSERT_TRUE(third.ok());
  EXPECT_EQ((*samples)[2].ids, third->ids);
  EXPECT_NE((*samples)[0].ids, (*samples)[2].ids);
}

TEST(Llm, RefusesWithOneClearLine) {
  EXPECT_EQ(Demo().Generate("").status().code(), StatusCode::kInvalidArgument);
  const std::vector<int32_t> long_prompt(5000, 100);
  const Status too_long = Demo().GenerateFromIds(long_prompt).status();
  EXPECT_EQ(too_long.code(), StatusCode::kResourceExhausted);
  EXPECT_NE(too_long.message().find("5000"), std::string::npos);
  EXPECT_NE(too_long.message().find("4096"), std::string::npos);
  SamplingParams params;
  params.top_p = 0;
  EXPECT_EQ(Demo().Generate("Hi", params).status().field(), "top_p");
  EXPECT_FALSE(Demo().Chat({}).ok());
  EXPECT_FALSE(Demo().Chat({{.role = "wizard", .content = "x"}}).ok());
  EngineOptions options;
  options.model = "/nonexistent/model";
  const auto missing = LLM::Load(options);
  ASSERT_FALSE(missing.ok());
  EXPECT_EQ(missing.status().code(), StatusCode::kBadModel);
  EXPECT_NE(missing.status().message().find("/nonexistent/model"), std::string::npos);
  options.model = kSource + "/models/demo";
  options.numerics = "fp16";
  EXPECT_EQ(LLM::Load(options).status().code(), StatusCode::kInvalidArgument);
}

TEST(Llm, PromptLogprobsDoNotDependOnChunks) {
  const auto prompt = Greedy()[1].at("prompt_ids").get<std::vector<int32_t>>();
  SamplingParams params = GreedyParams(1);
  params.temperature = 1;
  params.prompt_logprobs = true;
  const auto whole = Demo().GenerateFromIds(prompt, params);
  ASSERT_TRUE(whole.ok()) << whole.status().ToString();
  EXPECT_EQ(whole->prompt_logprobs.size(), prompt.size() - 1);
  EngineOptions options;
  options.model = kSource + "/models/demo";
  options.prefill_chunk_tokens = 3;
  const auto llm = LLM::Load(options);
  ASSERT_TRUE(llm.ok());
  const auto chunked = (*llm)->GenerateFromIds(prompt, params);
  ASSERT_TRUE(chunked.ok());
  EXPECT_EQ(chunked->prompt_logprobs, whole->prompt_logprobs);
}

}  // namespace
}  // namespace deepinfer
