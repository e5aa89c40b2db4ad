// SPDX-License-Identifier: Apache-2.0
#include "protocols/completion_logprobs.h"

#include <algorithm>

#include "protocols/json_text.h"
#include "protocols/token_text.h"

namespace deepinfer::protocols {

void CompletionLogprobs::Begin(int32_t id) {
  if (!offsets_.empty()) {
    for (std::string* list : {&offsets_, &values_, &tokens_, &tops_}) *list += ',';
  }
  const std::string_view bytes = tokenizer_.TokenBytes(id);
  AppendJsonInt(num_characters_, offsets_);
  AppendJsonString(ReadableToken(bytes), tokens_);
  // Continuation bytes of UTF-8 begin no character.
  num_characters_ += std::count_if(bytes.begin(), bytes.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; });
}

void CompletionLogprobs::Add(const TokenOutput& token) {
  Begin(token.token_id);
  AppendJsonDouble(static_cast<double>(token.logprob), values_);
  tops_ += '{';
  const size_t count = std::min(token.top_token_ids.size(), static_cast<size_t>(num_top_));
  for (size_t i = 0; i < count; ++i) {
    if (i > 0) tops_ += ',';
    AppendJsonString(ReadableToken(tokenizer_.TokenBytes(token.top_token_ids[i])), tops_);
    tops_ += ':';
    AppendJsonDouble(static_cast<double>(token.top_logprobs[i]), tops_);
  }
  tops_ += '}';
}

void CompletionLogprobs::AddPrompt(int32_t id, const float* logprob) {
  Begin(id);
  if (logprob == nullptr) {
    values_ += "null";
  } else {
    AppendJsonDouble(static_cast<double>(*logprob), values_);
  }
  tops_ += "null";
}

void CompletionLogprobs::Append(std::string& out) const {
  out += R"({"text_offset":[)";
  out += offsets_;
  out += R"(],"token_logprobs":[)";
  out += values_;
  out += R"(],"tokens":[)";
  out += tokens_;
  out += R"(],"top_logprobs":[)";
  out += tops_;
  out += "]}";
}

}  // namespace deepinfer::protocols
