// SPDX-License-Identifier: Apache-2.0
#include "server/key_limits.h"

#include <fstream>

#include <gtest/gtest.h>

#include "temporary_dir.h"

namespace deepinfer::server {
namespace {

using Verdict = KeyLedger::Verdict;
constexpr int64_t kSecond = 1'000'000'000;

ApiKey Key(int64_t requests, int64_t tokens, int64_t budget) {
  ApiKey key;
  key.id = "k";
  key.requests_per_minute = requests;
  key.tokens_per_minute = tokens;
  key.budget_tokens = budget;
  return key;
}

TEST(KeyLimits, NoLimit) {
  KeyLedger ledger;
  for (int i = 0; i < 1000; ++i) EXPECT_EQ(ledger.Admit(Key(0, 0, 0), true, 0).verdict, Verdict::kOk);
}

TEST(KeyLimits, RequestsPerMinute) {
  KeyLedger ledger;
  const ApiKey key = Key(2, 0, 0);
  int64_t now = 100 * kSecond;
  EXPECT_EQ(ledger.Admit(key, true, now).verdict, Verdict::kOk);
  EXPECT_EQ(ledger.Admit(key, false, now).verdict, Verdict::kOk);
  const KeyLedger::Answer refused = ledger.Admit(key, false, now);
  EXPECT_EQ(refused.verdict, Verdict::kTooManyRequests);
  EXPECT_EQ(refused.retry_after_s, 30);
  // The told time is enough, and not much less is.
  EXPECT_EQ(ledger.Admit(key, true, now + 29 * kSecond).verdict, Verdict::kTooManyRequests);
  EXPECT_EQ(ledger.Admit(key, true, now + 30 * kSecond).verdict, Verdict::kOk);
  EXPECT_EQ(ledger.Admit(key, true, now + 31 * kSecond).verdict, Verdict::kTooManyRequests);
  // A pause gives a minute's worth, not more.
  now += 100'000 * kSecond;
  EXPECT_EQ(ledger.Admit(key, true, now).verdict, Verdict::kOk);
  EXPECT_EQ(ledger.Admit(key, true, now).verdict, Verdict::kOk);
  EXPECT_EQ(ledger.Admit(key, true, now).verdict, Verdict::kTooManyRequests);
  // A larger limit of a file that was read again counts from now on.
  EXPECT_EQ(ledger.Admit(Key(600, 0, 0), true, now + kSecond).verdict, Verdict::kOk);
}

TEST(KeyLimits, TokensPerMinute) {
  KeyLedger ledger;
  const ApiKey key = Key(0, 600, 0);
  EXPECT_EQ(ledger.Admit(key, true, 0).verdict, Verdict::kOk);
  ledger.Charge(key, 900, 0);
  const KeyLedger::Answer refused = ledger.Admit(key, true, 0);
  EXPECT_EQ(refused.verdict, Verdict::kTooManyTokens);
  EXPECT_EQ(refused.retry_after_s, 31);  // 301 tokens at 10 a second
  EXPECT_EQ(ledger.Admit(key, false, 0).verdict, Verdict::kOk);  // it generates nothing
  EXPECT_EQ(ledger.Admit(key, true, 31 * kSecond).verdict, Verdict::kOk);
  // What was charged too much comes back.
  ledger.Charge(key, 5000, 31 * kSecond);
  ledger.Charge(key, -5000, 31 * kSecond);
  EXPECT_EQ(ledger.Admit(key, true, 31 * kSecond).verdict, Verdict::kOk);
}

TEST(KeyLimits, Budget) {
  KeyLedger ledger;
  const ApiKey key = Key(0, 0, 100);
  EXPECT_EQ(ledger.Admit(key, true, 0).verdict, Verdict::kOk);
  ledger.Charge(key, 99, 0);
  EXPECT_EQ(ledger.Admit(key, true, 0).verdict, Verdict::kOk);
  ledger.Charge(key, 1, 0);
  EXPECT_EQ(ledger.Admit(key, true, 1'000'000 * kSecond).verdict, Verdict::kNoBudget);
  EXPECT_EQ(ledger.Admit(key, false, 0).verdict, Verdict::kOk);
  EXPECT_EQ(ledger.Admit(Key(0, 0, 200), true, 0).verdict, Verdict::kOk);
}

TEST(KeyLimits, UsageOfEarlierRuns) {
  const testing::TemporaryDir dir;
  const std::string path = dir.path() + "/usage.log";
  KeyLedger ledger;
  EXPECT_TRUE(ledger.ReadUsage(path).ok());
  std::ofstream(path) << R"({"id":"a","key_id":"k","hit":10,"miss":20,"out":3})" << "\n"
                      << R"({"id":"b","key_id":"","hit":1000,"miss":20,"out":3})" << "\n"
                      << R"({"id":"c","key_id":"k","hit":0,"miss":1,"out":"x"})" << "\n"
                      << R"({"id":"d","key_id":"k","hi)";
  ASSERT_TRUE(ledger.ReadUsage(path).ok());
  EXPECT_EQ(ledger.num_used("k"), 34);
  EXPECT_EQ(ledger.Admit(Key(0, 0, 34), true, 0).verdict, Verdict::kNoBudget);
  EXPECT_EQ(ledger.num_used("other"), 0);
}

}  // namespace
}  // namespace deepinfer::server
