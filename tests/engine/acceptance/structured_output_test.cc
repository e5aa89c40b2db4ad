// SPDX-License-Identifier: Apache-2.0
//
// S9 and S10 on the demo model with real grammars: greedy tokens are the same with and without drafts, asynchronous steps and
// preemption, and a text that ended satisfies its grammar.
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "constrain/xgrammar_backend.h"
#include "engine/demo_grammars.h"
#include "engine/real_models.h"

namespace deepinfer::engine {
namespace {

const text::Tokenizer& Words() {
  static const std::unique_ptr<text::Tokenizer> words = text::Tokenizer::Load(DemoDir()).value();
  return *words;
}

std::shared_ptr<constrain::CompileService> Grammars() { return DemoGrammars(); }

struct Grammar {
  const char* type;
  const char* schema;
};
constexpr Grammar kGrammars[] = {
    {"regex", R"([0-9]{4}-[0-9]{2}-[0-9]{2}( [a-z]+){3,8})"},
    {"json", R"({"type":"object","properties":{"name":{"type":"string","maxLength":10},"age":{"type":"integer"},)"
             R"("tags":{"type":"array","items":{"type":"string","maxLength":6},"maxItems":3}},"required":["name","tags"]})"},
    {"json_object", ""},
    {"ebnf", "root ::= item (\", \" item)*\nitem ::= [A-Z] [a-z]{1,9} | [0-9]+"},
    {"choice", R"(["The capital of France is Paris.","The capital of Italy is Rome.","nothing"])"},
};

std::vector<EngineRequest> Requests(std::vector<const char*> prompts) {
  std::vector<EngineRequest> requests;
  for (const char* prompt : prompts) {
    for (const Grammar& grammar : kGrammars) {
      EngineRequest& request = requests.emplace_back();
      request.prompt_ids = Words().EncodeFull(prompt);
      request.params.temperature = 0;
      request.params.max_tokens = 40;
      StructuredOutput& so_args = request.params.so_args.emplace();
      so_args.schema_type = grammar.type;
      so_args.schema = grammar.schema;
      so_args.max_whitespace_cnt = 2;
    }
    requests.emplace_back(requests.back()).params.so_args.reset();
  }
  return requests;
}

struct Outcome {
  std::vector<Answer> answers;
  EngineCore::Snapshot stats;
};
Outcome RunAll(model::Model& model, EngineCoreOptions options, const std::vector<EngineRequest>& requests) {
  options.grammars = Grammars();
  RealEngine engine(model, std::move(options));
  std::vector<std::shared_ptr<RequestHandle>> handles;
  for (const EngineRequest& request : requests) handles.push_back(engine.core->Submit(request).value());
  Outcome run;
  for (const auto& handle : handles) run.answers.push_back(Collect(*handle)[0]);
  run.stats = engine.Drain();
  return run;
}

TEST(S9, GreedyTokensDoNotDependOnDraftsOrSteps) {
  if (!constrain::HasXgrammar()) GTEST_SKIP() << "this build has no grammar library";
  const auto model = LoadDemo({.keep = kDemoKeep, .num_threads = 2, .with_draft = true});
  const std::vector<EngineRequest> requests = Requests({"The capital of France is", "def f(x):"});
  EngineCoreOptions options = RealModelOptions(kDemoKeep);
  options.is_async = false;
  const Outcome plain = RunAll(*model, options, requests);
  for (size_t i = 0; i < requests.size(); ++i) {
    const Answer& answer = plain.answers[i];
    EXPECT_TRUE(answer.reason == FinishReason::kStop || answer.reason == FinishReason::kLength);
    if (!requests[i].params.so_args) continue;
    // What was emitted is what the grammar allows, token by token.
    constrain::GrammarSpec spec = constrain::ParseSoArgs(Json{{"schema_type", requests[i].params.so_args->schema_type},
                                                             {"schema", requests[i].params.so_args->schema},
                                                             {"max_whitespace_cnt", 2}})
                                      .value();
    const auto matcher = Grammars()->Compile(spec).value()->NewMatcher().value();
    for (const int32_t id : answer.ids) EXPECT_TRUE(matcher->Accept(id).value()) << "request " << i;
    EXPECT_EQ(matcher->IsTerminated(), answer.reason == FinishReason::kStop);
  }
  for (const int num_drafts : {0, 5}) {
    for (const bool is_async : {false, true}) {
      options.scheduler.num_drafts = num_drafts;
      options.is_async = is_async;
      const Outcome run = RunAll(*model, options, requests);
      for (size_t i = 0; i < requests.size(); ++i)
        EXPECT_EQ(run.answers[i].ids, plain.answers[i].ids) << "request " << i << ", " << num_drafts << " drafts, async " << is_async;
      EXPECT_EQ(run.stats.stats.num_accepted_drafts > 0, num_drafts > 0);
    }
  }
}

TEST(S10, PreemptionChangesNothing) {
  if (!constrain::HasXgrammar()) GTEST_SKIP() << "this build has no grammar library";
  const auto model = LoadDemo({.keep = kDemoKeep, .num_threads = 2, .with_draft = true});
  std::vector<EngineRequest> requests = Requests({"Once upon a time"});
  for (EngineRequest& request : requests) {
    // Every answer crosses the border of a block.
    const std::vector<int32_t> start = request.prompt_ids;
    while (request.prompt_ids.size() < 110) request.prompt_ids.insert(request.prompt_ids.end(), start.begin(), start.end());
    request.prompt_ids.resize(110);
    request.params.max_tokens = 30;
    request.params.ignore_eos = true;
  }
  EngineCoreOptions options = RealModelOptions(kDemoKeep);
  const Outcome plain = RunAll(*model, options, requests);
  for (const int num_drafts : {0, 5}) {
    options.scheduler.num_drafts = num_drafts;
    options.scheduler.num_blocks = 6;
    const Outcome run = RunAll(*model, options, requests);
    EXPECT_GT(run.stats.stats.num_preempted, 0);
    for (size_t i = 0; i < requests.size(); ++i)
      EXPECT_EQ(run.answers[i].ids, plain.answers[i].ids) << "request " << i << ", " << num_drafts << " drafts";
  }
}

}  // namespace
}  // namespace deepinfer::engine
