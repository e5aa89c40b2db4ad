// SPDX-License-Identifier: Apache-2.0
//
// What the requests of a test got from the engine core.
#pragma once

#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

#include "engine/engine_core.h"

namespace deepinfer::engine {

struct Answer {
  std::vector<int32_t> ids;
  std::vector<float> logprobs;
  FinishReason reason = FinishReason::kNone;
  int64_t cached_tokens = 0;
  // How much of the prompt was found in the cache is no part of the answer.
  bool operator==(const Answer& other) const { return ids == other.ids && logprobs == other.logprobs && reason == other.reason; }
};

// The outputs of a request that nobody has taken yet, by sample. Tokens have to be numbered without a gap, and nothing may
// follow the end.
inline std::vector<Answer> CollectRest(RequestHandle& handle) {
  std::vector<Answer> answers(static_cast<size_t>(handle.num_samples()));
  CoreOutput output;
  while (handle.Next(output)) {
    Answer& answer = answers.at(static_cast<size_t>(output.sample));
    EXPECT_EQ(answer.reason, FinishReason::kNone) << "an output after the last one";
    if (output.token.token_id >= 0) {
      answer.ids.push_back(output.token.token_id);
      answer.logprobs.push_back(output.token.logprob);
      EXPECT_EQ(output.token.num_output_tokens, static_cast<int64_t>(answer.ids.size()));
    }
    if (output.cached_tokens >= 0) answer.cached_tokens = output.cached_tokens;
    answer.reason = output.finish_reason;
  }
  return answers;
}

// All of them: every sample has to end.
inline std::vector<Answer> Collect(RequestHandle& handle) {
  std::vector<Answer> answers = CollectRest(handle);
  for (const Answer& answer : answers) EXPECT_NE(answer.reason, FinishReason::kNone) << "a sample without an end";
  return answers;
}

}  // namespace deepinfer::engine
