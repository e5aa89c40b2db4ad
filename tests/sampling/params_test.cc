// SPDX-License-Identifier: Apache-2.0
#include "sampling/params.h"

#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace deepinfer::sampling {
namespace {

struct BadCase {
  std::string field;
  std::string value;  // must be named by the message
  std::function<void(SamplingParams&)> set;
};

TEST(SamplingParams, DefaultsAreValid) {
  EXPECT_TRUE(ValidateSamplingParams(SamplingParams{}).ok());
  SamplingParams p;
  p.max_tokens = 0;
  EXPECT_TRUE(ValidateSamplingParams(p).ok());
  EXPECT_EQ(Normalized(p).max_tokens, 1);
}

// Names and defaults that callers of 0.1.0 rely on, and those added.
TEST(SamplingParams, Defaults) {
  const SamplingParams p;
  EXPECT_EQ(p.temperature, 1.0);
  EXPECT_EQ(p.top_p, 1.0);
  EXPECT_EQ(p.top_k, -1);
  EXPECT_FALSE(p.ignore_eos);
  EXPECT_EQ(p.max_tokens, 16);
  EXPECT_FALSE(p.logprobs);
  EXPECT_FALSE(p.prompt_logprobs);
  EXPECT_EQ(p.top_logprobs, 0);
  EXPECT_EQ(p.first_n_token_no_eos, 0);
  EXPECT_TRUE(p.golden_token_ids.empty());
  EXPECT_FALSE(p.seq_seed);
  EXPECT_EQ(p.min_p, 0.0);
  EXPECT_EQ(p.presence_penalty, 0.0);
  EXPECT_EQ(p.frequency_penalty, 0.0);
  EXPECT_EQ(p.repetition_penalty, 1.0);
  EXPECT_TRUE(p.logit_bias.empty());
  EXPECT_FALSE(p.allowed_token_ids);
  EXPECT_TRUE(p.stop.empty());
  EXPECT_TRUE(p.stop_token_ids.empty());
  EXPECT_FALSE(p.include_stop_str_in_output);
  EXPECT_EQ(p.min_tokens, 0);
  EXPECT_EQ(p.n, 1);
  EXPECT_FALSE(p.skip_special_tokens);
  EXPECT_TRUE(p.detokenize);
  EXPECT_EQ(p.priority, 0);
  EXPECT_TRUE(p.cache_mode.empty());
  EXPECT_FALSE(p.max_output_bytes);
  EXPECT_FALSE(p.timeout_s);
}

TEST(SamplingParams, EveryBadValueIsNamed) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const double inf = std::numeric_limits<double>::infinity();
  const std::vector<BadCase> cases = {
      {"temperature", "-0.5", [](auto& p) { p.temperature = -0.5; }},
      {"temperature", "nan", [=](auto& p) { p.temperature = nan; }},
      {"temperature", "inf", [=](auto& p) { p.temperature = inf; }},
      {"top_p", "0", [](auto& p) { p.top_p = 0; }},
      {"top_p", "1.5", [](auto& p) { p.top_p = 1.5; }},
      {"top_p", "nan", [=](auto& p) { p.top_p = nan; }},
      {"top_k", "0", [](auto& p) { p.top_k = 0; }},
      {"top_k", "-2", [](auto& p) { p.top_k = -2; }},
      {"top_k", "2147483648", [](auto& p) { p.top_k = int64_t{1} << 31; }},
      {"min_p", "1.01", [](auto& p) { p.min_p = 1.01; }},
      {"max_tokens", "-1", [](auto& p) { p.max_tokens = -1; }},
      {"max_tokens", "2147483648", [](auto& p) { p.max_tokens = int64_t{1} << 31; }},
      {"min_tokens", "17", [](auto& p) { p.min_tokens = 17; }},
      {"min_tokens", "-1", [](auto& p) { p.min_tokens = -1; }},
      {"top_logprobs", "1001", [](auto& p) { p.top_logprobs = 1001; }},
      {"top_logprobs", "-1", [](auto& p) { p.top_logprobs = -1; }},
      {"presence_penalty", "2.5", [](auto& p) { p.presence_penalty = 2.5; }},
      {"frequency_penalty", "-3", [](auto& p) { p.frequency_penalty = -3; }},
      {"repetition_penalty", "0", [](auto& p) { p.repetition_penalty = 0; }},
      {"repetition_penalty", "inf", [=](auto& p) { p.repetition_penalty = inf; }},
      {"logit_bias", "100", [](auto& p) { p.logit_bias[100] = 1; }},
      {"logit_bias", "nan", [=](auto& p) { p.logit_bias[1] = nan; }},
      {"allowed_token_ids", "empty", [](auto& p) { p.allowed_token_ids = std::vector<int32_t>{}; }},
      {"allowed_token_ids", "-4", [](auto& p) { p.allowed_token_ids = std::vector<int32_t>{-4}; }},
      {"stop", "empty", [](auto& p) { p.stop = {"a", ""}; }},
      {"stop", "17", [](auto& p) { p.stop.assign(17, "x"); }},
      {"stop", "UTF-8", [](auto& p) { p.stop = {"\xff"}; }},
      {"stop", "detokenize", [](auto& p) { p.stop = {"a"}, p.detokenize = false; }},
      {"stop_token_ids", "100", [](auto& p) { p.stop_token_ids = {100}; }},
      {"golden_token_ids", "-2", [](auto& p) { p.golden_token_ids = {-1, -2}; }},
      {"cache_mode", "sometimes", [](auto& p) { p.cache_mode = "sometimes"; }},
      {"n", "0", [](auto& p) { p.n = 0; }},
      {"n", "16385", [](auto& p) { p.n = 16385; }},
      {"n", "greedy", [](auto& p) { p.n = 2, p.temperature = 0; }},
      {"max_output_bytes", "0", [](auto& p) { p.max_output_bytes = 0; }},
      {"timeout_s", "-1", [](auto& p) { p.timeout_s = -1; }},
  };
  for (const BadCase& c : cases) {
    SamplingParams p;
    c.set(p);
    const Status status = ValidateSamplingParams(p, 100);
    ASSERT_FALSE(status.ok()) << c.field << " " << c.value;
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(status.field(), c.field);
    EXPECT_EQ(status.message().rfind(c.field, 0), 0u) << status.message();
    EXPECT_NE(status.message().find(c.value), std::string::npos) << status.message();
  }
}

TEST(SamplingParams, GreedySwitchesTheFiltersOff) {
  SamplingParams p;
  p.temperature = 1e-6;
  p.top_p = 0.5;
  p.top_k = 3;
  p.min_p = 0.5;
  const SamplingParams n = Normalized(p);
  EXPECT_TRUE(n.is_greedy());
  EXPECT_EQ(n.top_p, 1.0);
  EXPECT_EQ(n.top_k, -1);
  EXPECT_EQ(n.min_p, 0.0);
  p.temperature = 1e-5;
  EXPECT_FALSE(Normalized(p).is_greedy());
}

}  // namespace
}  // namespace deepinfer::sampling
