// SPDX-License-Identifier: Apache-2.0
//
// The public API on the demo model, against the stored continuations of tests/golden/tiny.
#include "deepinfer/llm.h"

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include <fmt/format.h>
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

// The same answers, one call or many. Returns the tokens found in the prefix cache.
int64_t ExpectBatchEqualsSingles(LLM& llm) {
  std::vector<BatchRequest> requests;
  std::vector<SamplingParams> table(6);
  table[0].temperature = 0;
  table[1].seq_seed = 5;
  table[2].seq_seed = 6;
  table[2].frequency_penalty = 0.7;
  table[2].top_p = 0.9;
  table[3].temperature = 0;
  table[3].stop = {"e", " the"};
  table[3].min_tokens = 3;
  table[4].random_seed = 8;
  table[4].top_logprobs = 3;
  table[5].seq_seed = 7;
  table[5].ignore_eos = true;
  const std::string filler = " The quick brown fox jumps over the lazy dog.";
  for (size_t i = 0; i < 12; ++i) {
    BatchRequest& request = requests.emplace_back();
    std::string text = "Tell me about number " + std::to_string(i) + ".";
    for (size_t k = 0; k < (i == 3 ? 34 : i % 5); ++k) text += filler;
    request.prompt_ids = llm.Encode(text);
    request.params = table[i % table.size()];
    request.params.max_tokens = static_cast<int64_t>(4 + i);
  }
  int64_t num_cached = 0;
  size_t num_done = 0;
  std::vector<std::string> streamed(requests.size());
  BatchOptions options;
  options.progress = [&](size_t done) { EXPECT_EQ(done, ++num_done); };
  options.callback = [&](size_t prompt, int sample, const StreamUpdate& update) {
    EXPECT_EQ(sample, 0);
    streamed[prompt] += update.text;
    return StreamAction::kContinue;
  };
  const auto batch = llm.GenerateBatch(requests, options);
  EXPECT_TRUE(batch.ok()) << batch.status().ToString();
  if (!batch.ok()) return -1;
  EXPECT_EQ(num_done, requests.size());
  for (size_t i = 0; i < requests.size(); ++i) {
    const auto want = llm.GenerateFromIds(requests[i].prompt_ids, requests[i].params);
    EXPECT_TRUE(want.ok());
    if (!want.ok()) return -1;
    const Completion& got = batch.value()[i].at(0);
    num_cached += got.usage.cached_tokens;
    EXPECT_EQ(got.ids, want.value().ids) << i;
    EXPECT_EQ(got.text, want.value().text) << i;
    EXPECT_EQ(streamed[i], want.value().text) << i;
    EXPECT_EQ(got.finish_reason, want.value().finish_reason) << i;
    EXPECT_EQ(got.stop_string, want.value().stop_string) << i;
    EXPECT_EQ(got.tokens.size(), want.value().tokens.size()) << i;
    for (size_t k = 0; k < std::min(got.tokens.size(), want.value().tokens.size()); ++k) {
      EXPECT_EQ(got.tokens[k].logprob, want.value().tokens[k].logprob) << i << " token " << k;
      EXPECT_EQ(got.tokens[k].top_logprobs, want.value().tokens[k].top_logprobs) << i << " token " << k;
    }
  }
  return num_cached;
}

TEST(LlmBatch, EveryPromptGetsItsOwnAnswer) { EXPECT_EQ(ExpectBatchEqualsSingles(Demo()), 0); }

TEST(LlmBatch, EveryPromptGetsItsOwnAnswerWithDecoderReplay) {
  EngineOptions options;
  options.model = kSource + "/models/demo";
  options.decoder_replay = "compact";
  options.cache_mode = "exact";
  options.max_num_seqs = 5;
  const auto llm = LLM::Load(options);
  ASSERT_TRUE(llm.ok()) << llm.status().ToString();
  EXPECT_EQ(ExpectBatchEqualsSingles(**llm), 0);
  // The second time a long prompt comes from the prefix cache.
  EXPECT_GT(ExpectBatchEqualsSingles(**llm), 0);
}

TEST(LlmBatch, OnePromptsFailureIsItsOwn) {
  LLM& llm = Demo();
  std::vector<BatchRequest> requests(4);
  for (BatchRequest& request : requests) {
    request.prompt_ids = llm.Encode("Tell me");
    request.params = GreedyParams(6);
    request.params.ignore_eos = true;
  }
  requests[1].prompt_ids.push_back(llm.vocab_size());
  requests[2].prompt_ids.assign(static_cast<size_t>(llm.max_model_len()) + 1, 5);
  requests[3].params.temperature = 1;
  requests[3].params.seq_seed = 3;
  requests[3].params.n = 3;
  const auto batch = llm.GenerateBatch(requests);
  ASSERT_TRUE(batch.ok()) << batch.status().ToString();
  EXPECT_EQ(batch.value()[0].at(0).ids, llm.GenerateFromIds(requests[0].prompt_ids, requests[0].params).value().ids);
  EXPECT_EQ(batch.value()[1].at(0).finish_reason, FinishReason::kInvalidToken);
  EXPECT_EQ(batch.value()[2].at(0).finish_reason, FinishReason::kPromptLengthExceeded);
  const auto samples = llm.GenerateSamples(requests[3].prompt_ids, requests[3].params);
  ASSERT_EQ(batch.value()[3].size(), 3u);
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(batch.value()[3][i].ids, samples.value()[i].ids) << i;

  requests[0].params.top_p = 2;
  const auto bad = llm.GenerateBatch(requests);
  ASSERT_FALSE(bad.ok());
  EXPECT_EQ(bad.status().field(), "top_p");
  EXPECT_NE(bad.status().message().find("prompt 0"), std::string::npos);
  EXPECT_TRUE(llm.GenerateBatch({}).value().empty());
}

TEST(LlmBatch, CancelEndsAllPrompts) {
  LLM& llm = Demo();
  const std::vector<std::string> prompts(5, "Tell me");
  SamplingParams params = GreedyParams(4000);
  params.ignore_eos = true;
  CancelToken cancel;
  BatchOptions options;
  options.cancel = &cancel;
  options.callback = [&](size_t, int, const StreamUpdate&) {
    cancel.Cancel();
    return StreamAction::kContinue;
  };
  const auto batch = llm.Generate(prompts, params, options);
  ASSERT_TRUE(batch.ok()) << batch.status().ToString();
  for (const Completion& completion : batch.value()) EXPECT_EQ(completion.finish_reason, FinishReason::kAbort);
  EXPECT_EQ(llm.Generate("Tell me", GreedyParams(3)).value().ids.size(), 3u);
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

TEST(LlmStreaming, AMemoryBudgetChangesNoAnswer) {
  EngineOptions options;
  options.model = kSource + "/models/demo";
  options.memory_budget = "1MiB";
  const Status low = LLM::Load(options).status();
  EXPECT_EQ(low.code(), StatusCode::kResourceExhausted);
  // "the memory budget is 1.0 MB but at least 130.1 MB are needed (...": a little more than that streams.
  const std::string mark = "but at least ";
  const size_t at = low.message().find(mark);
  ASSERT_NE(at, std::string::npos) << low.message();
  options.memory_budget = fmt::format("{:.1f}MB", std::stod(low.message().substr(at + mark.size())) + 1.5);
  auto llm = LLM::Load(options);
  ASSERT_TRUE(llm.ok()) << llm.status().ToString();
  const LLM::ExpertReads reads = (*llm)->expert_reads();
  EXPECT_GT(reads.num_in_memory, 0);
  EXPECT_LT(reads.num_in_memory, reads.num_experts);
  EXPECT_EQ(Demo().expert_reads().num_in_memory, 0);
  const std::string prompt = "The capital of France is";
  const auto expected = Demo().Generate(prompt, GreedyParams());
  const auto answer = (*llm)->Generate(prompt, GreedyParams());
  ASSERT_TRUE(answer.ok()) << answer.status().ToString();
  EXPECT_EQ(answer->ids, expected->ids);
  EXPECT_GT((*llm)->expert_reads().num_misses, 0);
  const std::vector<std::string> prompts = {prompt, "One two three", "Water is"};
  const auto together = Demo().Generate(prompts, GreedyParams()), streamed = (*llm)->Generate(prompts, GreedyParams());
  ASSERT_TRUE(streamed.ok()) << streamed.status().ToString();
  for (size_t i = 0; i < prompts.size(); ++i) EXPECT_EQ((*streamed)[i].ids, (*together)[i].ids);
}

TEST(LlmStreaming, BadOptionsAreRefused) {
  EngineOptions options;
  options.model = kSource + "/models/demo";
  options.memory_budget = "much";
  EXPECT_EQ(LLM::Load(options).status().field(), "memory_budget");
  options.memory_budget = "auto";
  options.expert_io = "dma";
  EXPECT_EQ(LLM::Load(options).status().field(), "expert_io");
}

}  // namespace
}  // namespace deepinfer
