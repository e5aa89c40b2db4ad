// SPDX-License-Identifier: Apache-2.0
#include "protocols/completion_response.h"

#include <algorithm>

#include "protocols/token_text.h"

namespace deepinfer::protocols {

namespace {

Json LogprobsJson(const Completion& sample, int num_top, const text::Tokenizer& tokenizer) {
  Json offsets = Json::array(), values = Json::array(), tokens = Json::array(), tops = Json::array();
  int64_t num_characters = 0;
  for (const TokenOutput& token : sample.tokens) {
    const std::string_view bytes = tokenizer.TokenBytes(token.token_id);
    tokens.push_back(ReadableToken(bytes));
    values.push_back(token.logprob);
    offsets.push_back(num_characters);
    // Continuation bytes of UTF-8 begin no character.
    num_characters += std::count_if(bytes.begin(), bytes.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; });
    Json top = Json::object();
    const size_t count = std::min(token.top_token_ids.size(), static_cast<size_t>(num_top));
    for (size_t i = 0; i < count; ++i) {
      top[ReadableToken(tokenizer.TokenBytes(token.top_token_ids[i]))] = token.top_logprobs[i];
    }
    tops.push_back(std::move(top));
  }
  return Json{{"text_offset", std::move(offsets)},
              {"token_logprobs", std::move(values)},
              {"tokens", std::move(tokens)},
              {"top_logprobs", std::move(tops)}};
}

}  // namespace

Json CompletionResponse(const CompletionResponseInfo& info, std::span<const Completion> samples, const text::Tokenizer& tokenizer) {
  Json choices = Json::array();
  int64_t num_output = 0, num_cached = 0;
  for (size_t i = 0; i < samples.size(); ++i) {
    const Completion& sample = samples[i];
    Json choice = Json::object();
    choice["text"] = sample.text;
    choice["index"] = i;
    choice["logprobs"] = nullptr;
    if (info.logprobs) choice["logprobs"] = LogprobsJson(sample, *info.logprobs, tokenizer);
    choice["finish_reason"] = std::string(FinishReasonName(sample.finish_reason));
    choices.push_back(std::move(choice));
    num_output += sample.usage.completion_tokens;
    // Further samples find the first one's prompt: only its own hit came from before.
    if (i == 0) num_cached = sample.usage.cached_tokens;
  }
  const int64_t num_prompt = samples.empty() ? 0 : samples[0].usage.prompt_tokens;
  Json usage = Json::object();
  usage["prompt_tokens"] = num_prompt;
  usage["completion_tokens"] = num_output;
  usage["total_tokens"] = num_prompt + num_output;
  usage["prompt_tokens_details"]["cached_tokens"] = num_cached;
  return Json{{"id", info.id},         {"object", "text_completion"},   {"created", info.created},
              {"model", info.model},   {"choices", std::move(choices)}, {"usage", std::move(usage)}};
}

}  // namespace deepinfer::protocols
