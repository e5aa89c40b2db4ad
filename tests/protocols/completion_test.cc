// SPDX-License-Identifier: Apache-2.0
//
// Completions: what a request may say, and the body of its response.
#include "protocols/completion_request.h"

#include <gtest/gtest.h>

namespace deepinfer::protocols {
namespace {

Result<CompletionRequest> Convert(const std::string& fields) {
  const Result<Json> body = ParseJson(R"({"model":"deepseek-flash","prompt":"Hi")" + (fields.empty() ? "" : "," + fields) + "}");
  EXPECT_TRUE(body.ok()) << body.status().message();
  return ConvertCompletionRequest(*body, {});
}

TEST(CompletionRequest, DefaultsAreTheEngines) {
  const auto request = Convert("");
  ASSERT_TRUE(request.ok()) << request.status().message();
  EXPECT_EQ(request->prompt, "Hi");
  EXPECT_FALSE(request->has_max_tokens);
  EXPECT_EQ(request->params.max_tokens, 16);
  EXPECT_EQ(request->params.temperature, 1.0);
  EXPECT_FALSE(request->params.seq_seed);
}

TEST(CompletionRequest, FieldsReachTheEngine) {
  const auto request = Convert(
      R"("max_tokens":7,"temperature":0.5,"top_p":0.25,"top_k":-1,"min_p":0.1,"seed":18446744073709551615,"n":2,"stop":["a","b"],)"
      R"("stop_token_ids":[5],"logprobs":3,"logit_bias":{"7":-1.5},"presence_penalty":1,"repetition_penalty":1.5,"ignore_eos":true,)"
      R"("min_tokens":2,"cache_mode":"exact","cache_salt":"s","priority":2)");
  ASSERT_TRUE(request.ok()) << request.status().message();
  const SamplingParams& p = request->params;
  EXPECT_EQ(p.max_tokens, 7);
  EXPECT_EQ(p.temperature, 0.5);
  EXPECT_EQ(p.top_p, 0.25);
  EXPECT_EQ(p.top_k, -1);
  EXPECT_EQ(p.min_p, 0.1);
  EXPECT_EQ(p.seq_seed, UINT64_MAX);
  EXPECT_EQ(p.n, 2);
  EXPECT_EQ(p.stop, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(p.stop_token_ids, std::vector<int32_t>{5});
  EXPECT_EQ(p.top_logprobs, 3);
  EXPECT_EQ(p.logit_bias.at(7), -1.5);
  EXPECT_EQ(p.presence_penalty, 1);
  EXPECT_EQ(p.repetition_penalty, 1.5);
  EXPECT_TRUE(p.ignore_eos);
  EXPECT_EQ(p.min_tokens, 2);
  EXPECT_EQ(p.priority, 2);
  EXPECT_EQ(request->cache_mode, CacheMode::kExact);
  EXPECT_EQ(request->cache_salt, "s");
}

TEST(CompletionRequest, PromptsOfIds) {
  const Result<Json> ids = ParseJson(R"({"model":"deepseek-flash","prompt":[1,2]})"), list = ParseJson(R"({"model":"deepseek-flash","prompt":[[1,2]]})");
  EXPECT_EQ(ConvertCompletionRequest(*ids, {})->prompt_ids, (std::vector<int32_t>{1, 2}));
  EXPECT_EQ(ConvertCompletionRequest(*list, {})->prompt_ids, (std::vector<int32_t>{1, 2}));
}

TEST(CompletionRequest, FaultsNameTheField) {
  for (const auto& [fields, name] : std::vector<std::pair<std::string, std::string>>{
           {R"("max_tokens":-1)", "max_tokens"}, {R"("max_tokens":1.5)", "max_tokens"}, {R"("temperature":"hot")", "temperature"},
           {R"("top_k":1e300)", "top_k"}, {R"("n":9)", "n"}, {R"("n":0)", "n"}, {R"("stop":[1])", "stop"}, {R"("stop_token_ids":[-1])", "stop_token_ids"},
           {R"("logprobs":21)", "logprobs"}, {R"("logit_bias":{"x":1})", "logit_bias"}, {R"("logit_bias":[1])", "logit_bias"},
           {R"("prompt":7)", "prompt"}, {R"("prompt":[])", "prompt"}, {R"("prompt":["a","b"])", "prompt"}, {R"("prompt":[[1],[2]])", "prompt"},
           {R"("prompt":"")", "prompt"}, {R"("prompt":[99999999999])", "prompt"}, {R"("echo":true)", "echo"}, {R"("suffix":"x")", "suffix"},
           {R"("cache_mode":"fast")", "cache_mode"}, {R"("model":"other")", "model"}, {R"("model":1)", "model"}}) {
    const auto request = Convert(fields);
    ASSERT_FALSE(request.ok()) << fields;
    EXPECT_NE(request.status().message().find(name), std::string::npos) << fields << ": " << request.status().message();
  }
  const Json list = Json::array();
  EXPECT_FALSE(ConvertCompletionRequest(list, {}).ok());
}

}  // namespace
}  // namespace deepinfer::protocols
