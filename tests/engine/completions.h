// SPDX-License-Identifier: Apache-2.0
//
// Two runs of one request compared: everything that a Completion says except times and where its prefix came from.
#pragma once

#include <cstring>
#include <string>
#include <string_view>

#include <gtest/gtest.h>

#include "deepinfer/output.h"

namespace deepinfer::engine {

inline void ExpectSame(const Completion& got, const Completion& want, const std::string& what) {
  EXPECT_EQ(got.ids, want.ids) << what;
  EXPECT_EQ(got.text, want.text) << what;
  EXPECT_EQ(got.finish_reason, want.finish_reason) << what;
  EXPECT_EQ(got.stop_token_id, want.stop_token_id) << what;
  EXPECT_EQ(got.stop_string, want.stop_string) << what;
  EXPECT_EQ(got.prompt_logprobs, want.prompt_logprobs) << what;
  EXPECT_EQ(got.usage.prompt_tokens, want.usage.prompt_tokens) << what;
  EXPECT_EQ(got.usage.completion_tokens, want.usage.completion_tokens) << what;
  EXPECT_EQ(got.seed, want.seed) << what;
  ASSERT_EQ(got.tokens.size(), want.tokens.size()) << what;
  for (size_t i = 0; i < got.tokens.size(); ++i) {
    const TokenOutput &a = got.tokens[i], &b = want.tokens[i];
    EXPECT_EQ(std::memcmp(&a.logprob, &b.logprob, sizeof(float)), 0) << what << " token " << i << ": " << a.logprob << ", " << b.logprob;
    EXPECT_EQ(a.token_id, b.token_id) << what;
    EXPECT_EQ(a.sum_smaller_probs, b.sum_smaller_probs) << what;
    EXPECT_EQ(a.top_token_ids, b.top_token_ids) << what;
    EXPECT_EQ(a.top_logprobs, b.top_logprobs) << what;
    EXPECT_EQ(a.num_output_tokens, b.num_output_tokens) << what;
  }
}

// One line per update: token, text, reason.
inline void AddUpdate(std::string& stream, const TokenOutput* token, std::string_view text, FinishReason reason) {
  stream += (token != nullptr ? std::to_string(token->token_id) : "-") + "[" + std::string(text) + "]" + std::string(FinishReasonName(reason)) + "\n";
}

}  // namespace deepinfer::engine
