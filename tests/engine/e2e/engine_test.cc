// SPDX-License-Identifier: Apache-2.0
//
// The public Engine on the demo model: requests of several threads, streaming, cancelling, draining, refusals by name.
#include "deepinfer/engine.h"

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "deepinfer/llm.h"

namespace deepinfer {
namespace {

const std::string kDemo = std::string(DEEPINFER_SOURCE_DIR) + "/models/demo";

EngineOptions Options() {
  EngineOptions options;
  options.model = kDemo;
  options.max_model_len = 512;
  options.max_num_seqs = 8;
  return options;
}

SamplingParams Greedy(int64_t max_tokens) {
  SamplingParams params;
  params.temperature = 0;
  params.max_tokens = max_tokens;
  return params;
}

Engine& Demo() {
  static const std::unique_ptr<Engine> engine = std::move(Engine::Start(Options())).value();
  return *engine;
}

TEST(Engine, SeveralThreadsGetWhatTheLibraryGives) {
  const std::vector<std::string> prompts = {"The capital of France is", "Two plus two is", "Hello", "The sun is", "A cat", "Once upon a time"};
  std::vector<std::string> texts(prompts.size());
  std::vector<std::thread> threads;
  for (size_t i = 0; i < prompts.size(); ++i) {
    threads.emplace_back([&, i] {
      auto request = Demo().Submit(prompts[i], Greedy(12));
      ASSERT_TRUE(request.ok()) << request.status().message();
      if (i % 2 == 0) {
        Piece piece;
        while (request->Next(piece)) texts[i] += piece.text;
        EXPECT_EQ(piece.finish_reason, FinishReason::kLength);
      } else {
        texts[i] = request->TakeCompletions().front().text;
      }
      EXPECT_TRUE(request->is_done());
    });
  }
  for (std::thread& thread : threads) thread.join();
  const auto llm = LLM::Load(Options());
  ASSERT_TRUE(llm.ok());
  for (size_t i = 0; i < prompts.size(); ++i) EXPECT_EQ(texts[i], (*llm)->Generate(prompts[i], Greedy(12))->text) << prompts[i];
}

TEST(Engine, CallbacksSeeTheCompletion) {
  SamplingParams params = Greedy(5);
  std::atomic<int> num_updates = 0;
  std::vector<int32_t> ids;
  auto request = Demo().Submit("The capital of France is", params, [&](int sample, const StreamUpdate& update) {
    EXPECT_EQ(sample, 0);
    EXPECT_NE(update.completion, nullptr);
    ids = update.completion->ids;
    ++num_updates;
    return StreamAction::kContinue;
  });
  ASSERT_TRUE(request.ok());
  EXPECT_TRUE(request->WaitFor(60));
  EXPECT_EQ(num_updates, 5);
  EXPECT_EQ(request->TakeCompletions().front().ids, ids);
}

TEST(Engine, CancelledRequestsEnd) {
  SamplingParams params = Greedy(500);
  params.ignore_eos = true;
  auto request = Demo().Submit("Hello", params);
  ASSERT_TRUE(request.ok());
  Piece piece;
  ASSERT_TRUE(request->Next(piece));
  Request copy = *request;
  copy.Cancel();
  const std::vector<Completion> completions = request->TakeCompletions();
  EXPECT_EQ(completions.front().finish_reason, FinishReason::kAbort);
  copy.Cancel();  // after the end
}

TEST(Engine, RefusalsNameTheField) {
  const auto field = [](GenerationRequest request) {
    const auto submitted = Demo().Submit(std::move(request));
    return submitted.ok() ? std::string("none") : submitted.status().field();
  };
  EXPECT_EQ(field({}), "prompt");
  EXPECT_EQ(field({.prompt_ids = {-1}}), "prompt_token_ids");
  EXPECT_EQ(field({.prompt_ids = std::vector<int32_t>(513, 5)}), "prompt_length");
  SamplingParams params;
  params.cache_mode = "sometimes";
  EXPECT_EQ(field({.prompt_ids = {5}, .params = params}), "cache_mode");
  EXPECT_EQ(field({.prompt_ids = {5}, .cache_salt = std::string(129, 'x')}), "cache_salt");
  EXPECT_EQ(field({.prompt_ids = {5}, .chunk_checkpoints = {0}}), "chunk_checkpoints");
}

TEST(Engine, TooManyRequestsAndDraining) {
  EngineOptions options = Options();
  options.max_queued_requests = 2;
  const auto engine = Engine::Start(options);
  ASSERT_TRUE(engine.ok()) << engine.status().message();
  SamplingParams params = Greedy(64);
  params.ignore_eos = true;
  auto first = (*engine)->Submit("A", params);
  auto second = (*engine)->Submit("B", params);
  ASSERT_TRUE(first.ok() && second.ok());
  const auto third = (*engine)->Submit("C", params);
  ASSERT_FALSE(third.ok());
  EXPECT_EQ(third.status().code(), StatusCode::kResourceExhausted);
  (*engine)->Drain();
  EXPECT_TRUE(first->is_done() && second->is_done());
  EXPECT_EQ((*engine)->Submit("D", params).status().code(), StatusCode::kUnavailable);
  const EngineStats stats = (*engine)->Stats();
  EXPECT_EQ(stats.num_unfinished, 0);
  EXPECT_EQ(stats.num_used_blocks, 0);
  EXPECT_EQ(stats.num_output_tokens, 128);
  EXPECT_TRUE(stats.is_healthy);
}

TEST(Engine, TheEndAbortsWhatRuns) {
  auto engine = Engine::Start(Options());
  ASSERT_TRUE(engine.ok());
  SamplingParams params = Greedy(400);
  params.ignore_eos = true;
  auto request = (*engine)->Submit("Hello", params);
  ASSERT_TRUE(request.ok());
  engine->reset();
  EXPECT_TRUE(request->is_done());
  EXPECT_EQ(request->TakeCompletions().front().finish_reason, FinishReason::kAbort);
  request->Cancel();
}

}  // namespace
}  // namespace deepinfer
