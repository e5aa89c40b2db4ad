// SPDX-License-Identifier: Apache-2.0
//
// Completions: what a request may say, and the body of its response.
#include "protocols/completion_request.h"

#include <gtest/gtest.h>

#include "protocols/completion_response.h"
#include "protocols/debug_stream.h"
#include "protocols/golden_tokenizer.h"

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
  ASSERT_EQ(request->prompts.size(), 1u);
  EXPECT_EQ(request->prompts[0].text, "Hi");
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

std::vector<CompletionPrompt> PromptsOf(const std::string& prompt) {
  const Result<Json> body = ParseJson(R"({"model":"deepseek-flash","prompt":)" + prompt + "}");
  const auto request = ConvertCompletionRequest(*body, {});
  EXPECT_TRUE(request.ok()) << request.status().message();
  return request.ok() ? request->prompts : std::vector<CompletionPrompt>();
}

TEST(CompletionRequest, FormsOfPrompts) {
  EXPECT_EQ(PromptsOf("[1,2]").at(0).ids, (std::vector<int32_t>{1, 2}));
  EXPECT_EQ(PromptsOf("[[1,2]]").at(0).ids, (std::vector<int32_t>{1, 2}));
  const auto texts = PromptsOf(R"(["a","b"])");
  ASSERT_EQ(texts.size(), 2u);
  EXPECT_EQ(texts[1].text, "b");
  const auto mixed = PromptsOf(R"([[1],"b"])");
  ASSERT_EQ(mixed.size(), 2u);
  EXPECT_FALSE(mixed[0].text);
}

TEST(CompletionRequest, PromptIds) {
  const text::Tokenizer& tokenizer = GoldenTokenizer();
  const std::vector<int32_t> hello = tokenizer.EncodePlain("Hello");
  const auto ids = [&](const CompletionPrompt& prompt, const std::optional<std::string>& suffix) {
    Result<std::vector<int32_t>> made = CompletionPromptIds(prompt, suffix, tokenizer);
    EXPECT_TRUE(made.ok()) << made.status().message();
    return made.ok() ? *made : std::vector<int32_t>();
  };
  const auto id = [&](const char* token) { return tokenizer.FindAddedToken(token); };
  const int32_t bos = id("<｜begin▁of▁sentence｜>");
  std::vector<int32_t> expected = {bos};
  expected.insert(expected.end(), hello.begin(), hello.end());
  EXPECT_EQ(ids({"Hello", {}}, std::nullopt), expected);
  EXPECT_EQ(ids({"<｜begin▁of▁sentence｜>Hello", {}}, std::nullopt), expected);
  EXPECT_EQ(ids({std::nullopt, hello}, std::nullopt), hello);
  expected.insert(expected.begin() + 1, id("<｜fim▁begin｜>"));
  expected.push_back(id("<｜fim▁hole｜>"));
  expected.insert(expected.end(), hello.begin(), hello.end());
  expected.push_back(id("<｜fim▁end｜>"));
  EXPECT_EQ(ids({"Hello", {}}, "Hello"), expected);
  EXPECT_EQ(ids({std::nullopt, hello}, "Hello"), expected);
  EXPECT_FALSE(CompletionPromptIds({std::nullopt, {tokenizer.vocab_size()}}, std::nullopt, tokenizer).ok());
}

TEST(CompletionRequest, FaultsNameTheField) {
  for (const auto& [fields, name] : std::vector<std::pair<std::string, std::string>>{
           {R"("max_tokens":-1)", "max_tokens"}, {R"("max_tokens":1.5)", "max_tokens"}, {R"("temperature":"hot")", "temperature"},
           {R"("top_k":1e300)", "top_k"}, {R"("n":9)", "n"}, {R"("n":0)", "n"}, {R"("stop":[1])", "stop"}, {R"("stop_token_ids":[-1])", "stop_token_ids"},
           {R"("logprobs":21)", "logprobs"}, {R"("logit_bias":{"x":1})", "logit_bias"}, {R"("logit_bias":[1])", "logit_bias"},
           {R"("prompt":7)", "prompt"}, {R"("prompt":[])", "prompt"}, {R"("prompt":["a",1])", "prompt"}, {R"("prompt":[[[1]]])", "prompt"},
           {R"("prompt":"")", "prompt"}, {R"("prompt":["a",""])", "prompt"}, {R"("prompt":[99999999999])", "prompt"},
           {R"("echo":1)", "echo"}, {R"("suffix":7)", "suffix"}, {R"("stream_options":{"include_usage":true})", "stream_options"},
           {R"("cache_mode":"fast")", "cache_mode"}, {R"("model":"other")", "model"}, {R"("model":1)", "model"}}) {
    const auto request = Convert(fields);
    ASSERT_FALSE(request.ok()) << fields;
    EXPECT_NE(request.status().message().find(name), std::string::npos) << fields << ": " << request.status().message();
  }
  const Json list = Json::array();
  EXPECT_FALSE(ConvertCompletionRequest(list, {}).ok());
}

// --- responses ---

Completion Sample(const std::string& text, const std::vector<std::string>& tokens, deepinfer::FinishReason reason) {
  Completion sample;
  const std::vector<int32_t> prompt = GoldenTokenizer().EncodePlain("Hi");
  sample.prompt_ids = {GoldenTokenizer().FindAddedToken("<｜begin▁of▁sentence｜>")};
  sample.prompt_ids.insert(sample.prompt_ids.end(), prompt.begin(), prompt.end());
  sample.prompt_logprobs = {-1.5f};
  sample.text = text;
  sample.finish_reason = reason;
  for (const std::string& token : tokens) {
    TokenOutput output;
    output.token_id = GoldenTokenizer().EncodePlain(token).at(0);
    output.logprob = -0.5f;
    output.top_token_ids = {output.token_id, 5};
    output.top_logprobs = {-0.5f, -2.0f};
    sample.tokens.push_back(output);
    sample.ids.push_back(output.token_id);
  }
  sample.usage = {static_cast<int64_t>(sample.prompt_ids.size()), 1, static_cast<int64_t>(tokens.size())};
  return sample;
}

CompletionResponseInfo Info(const std::string& fields) {
  const auto request = Convert(fields);
  EXPECT_TRUE(request.ok()) << request.status().message();
  return MakeCompletionResponseInfo(*request, "cmpl-1", 7, {}, GoldenTokenizer());
}

TEST(CompletionBody, ChoicesUsageAndEcho) {
  const std::vector<Completion> samples = {Sample(" there", {" there"}, deepinfer::FinishReason::kStop), Sample("!", {"!"}, deepinfer::FinishReason::kLength)};
  const Json body = ParseJson(CompletionBody(Info(R"("n":2,"echo":true)"), samples, GoldenTokenizer())).value();
  EXPECT_EQ(body, Json::parse(R"({"id":"cmpl-1","object":"text_completion","created":7,"model":"deepseek-flash","choices":[
    {"text":"Hi there","index":0,"logprobs":null,"finish_reason":"stop"},
    {"text":"Hi!","index":1,"logprobs":null,"finish_reason":"length"}],
    "usage":{"prompt_tokens":2,"completion_tokens":2,"total_tokens":4,"prompt_tokens_details":{"cached_tokens":1}}})"));
}

TEST(CompletionBody, Logprobs) {
  const std::vector<Completion> samples = {Sample("!", {"!"}, deepinfer::FinishReason::kStop)};
  const Json echo = ParseJson(CompletionBody(Info(R"("echo":true,"logprobs":1)"), samples, GoldenTokenizer())).value();
  EXPECT_EQ(echo["choices"][0]["logprobs"], Json::parse(R"({"text_offset":[0,2],"token_logprobs":[-1.5,-0.5],"tokens":["Hi","!"],
                                                            "top_logprobs":[null,{"!":-0.5}]})"));
  const Json plain = ParseJson(CompletionBody(Info(R"("logprobs":0)"), samples, GoldenTokenizer())).value();
  EXPECT_EQ(plain["choices"][0]["logprobs"], Json::parse(R"({"text_offset":[0],"token_logprobs":[-0.5],"tokens":["!"],"top_logprobs":[{}]})"));
}

// Chunks folded are the body; the end of the last choice ends the stream.
TEST(CompletionStream, FoldsToTheBody) {
  const CompletionResponseInfo info = Info(R"("n":2,"echo":true,"logprobs":1,"stream":true,"stream_options":{"include_usage":true})");
  const std::vector<Completion> samples = {Sample(" there!", {" there", "!"}, deepinfer::FinishReason::kStop), Sample("!", {"!"}, deepinfer::FinishReason::kLength)};
  CompletionStream stream(info, GoldenTokenizer());
  std::string out;
  const auto write = [&](size_t choice, size_t token, std::string_view text, deepinfer::FinishReason reason) {
    StreamUpdate update;
    update.token = &samples[choice].tokens[token];
    update.text = text;
    update.finish_reason = reason;
    update.completion = &samples[choice];
    stream.Write(choice, update, out);
  };
  write(0, 0, " there", deepinfer::FinishReason::kNone);
  write(1, 0, "!", deepinfer::FinishReason::kLength);
  EXPECT_FALSE(stream.is_finished());
  EXPECT_EQ(out.find("[DONE]"), std::string::npos);
  write(0, 1, "!", deepinfer::FinishReason::kStop);
  EXPECT_TRUE(stream.is_finished());
  const std::vector<Json> lines = ReadServerSentEvents(out);
  EXPECT_EQ(lines.back()["data"], "[DONE]");
  const Json body = ParseJson(CompletionBody(info, samples, GoldenTokenizer())).value();
  for (size_t choice = 0; choice < 2; ++choice) {
    std::string text;
    Json logprobs = Json::parse(R"({"text_offset":[],"token_logprobs":[],"tokens":[],"top_logprobs":[]})");
    Json reason;
    for (const Json& line : lines) {
      if (!line["data"].is_object()) continue;
      const Json& data = line["data"];
      for (const char* key : {"id", "object", "created", "model"}) EXPECT_EQ(data[key], body[key]);
      ASSERT_TRUE(data.contains("usage"));
      if (data["choices"][0]["index"] != choice) continue;
      text += data["choices"][0]["text"].get<std::string>();
      for (auto& [key, list] : logprobs.items()) {
        for (const Json& entry : data["choices"][0]["logprobs"][key]) list.push_back(entry);
      }
      reason = data["choices"][0]["finish_reason"];
    }
    EXPECT_EQ(text, body["choices"][choice]["text"]);
    EXPECT_EQ(logprobs, body["choices"][choice]["logprobs"]);
    EXPECT_EQ(reason, body["choices"][choice]["finish_reason"]);
  }
  EXPECT_EQ(lines[lines.size() - 2]["data"]["usage"], body["usage"]);
}

}  // namespace
}  // namespace deepinfer::protocols
