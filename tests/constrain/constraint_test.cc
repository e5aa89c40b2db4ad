// SPDX-License-Identifier: Apache-2.0
#include "constrain/constraint.h"

#include <random>

#include <gtest/gtest.h>

#include "constrain/fake_grammar.h"

namespace deepinfer::constrain {
namespace {

constexpr int kVocab = 70;  // no multiple of 32: the last word has unused bits
constexpr int32_t kStop = 69;

class FakeConstraint {
 public:
  explicit FakeConstraint(std::string grammar, std::vector<int32_t> trigger = {}, std::optional<int32_t> bound = {},
                          int num_drafts = 5)
      : backend_(kVocab, {kStop, 68}) {
    backend_.on_step = [this] { clock.AdvanceMs(step_ms); };
    spec_.text = std::move(grammar);
    spec_.trigger_token_ids = std::move(trigger);
    spec_.bound_token_id = bound;
    options_.num_drafts = num_drafts;
    options_.clock = &clock;
  }
  std::unique_ptr<Constraint> Make() {
    auto grammar = backend_.Compile(spec_);
    EXPECT_TRUE(grammar.ok());
    return std::make_unique<Constraint>(spec_, *grammar, options_);
  }
  FakeClock clock;
  int64_t step_ms = 0;

 private:
  FakeGrammarBackend backend_;
  GrammarSpec spec_;
  ConstraintOptions options_;
};

// The allowed ids; empty optional = everything.
std::optional<std::vector<int32_t>> Allowed(Constraint* constraint) {
  std::vector<uint32_t> row(static_cast<size_t>(MaskWords(kVocab)), 0xABABABAB);
  const auto constrained = constraint->Fill(row);
  EXPECT_TRUE(constrained.ok()) << constrained.status().ToString();
  if (!constrained.ok() || !*constrained) return std::nullopt;
  std::vector<int32_t> out;
  for (int32_t t = 0; t < kVocab; ++t) {
    if ((row[static_cast<size_t>(t) / 32] >> (t % 32) & 1u) != 0) out.push_back(t);
  }
  return out;
}

bool Accept(Constraint* constraint, int32_t token) {
  const auto accepted = constraint->Accept(token);
  EXPECT_TRUE(accepted.ok()) << accepted.status().ToString();
  return accepted.ok() && *accepted;
}

using Ids = std::vector<int32_t>;

TEST(Constraint, GrammarFromTheFirstTokenToTheStop) {
  FakeConstraint fake("5|6 7");
  const auto constraint = fake.Make();
  EXPECT_TRUE(constraint->constrained());
  EXPECT_EQ(Allowed(constraint.get()), (Ids{5, 6}));
  EXPECT_FALSE(Accept(constraint.get(), 7));
  EXPECT_TRUE(Accept(constraint.get(), 6));
  EXPECT_EQ(constraint->ForcedTokens(3), (Ids{7}));
  EXPECT_TRUE(Accept(constraint.get(), 7));
  EXPECT_EQ(Allowed(constraint.get()), (Ids{68, kStop}));  // both stop ids
  EXPECT_TRUE(Accept(constraint.get(), 68));
  EXPECT_TRUE(constraint->is_finished());
  EXPECT_EQ(Allowed(constraint.get()), std::nullopt);  // a request may ignore the end
  EXPECT_TRUE(Accept(constraint.get(), 3));
  EXPECT_EQ(constraint->tokens_in_grammar(), 3);
}

TEST(Constraint, FreeBeforeTheTriggerAndForcedBehindTheBound) {
  FakeConstraint fake("5", {10, 11, 12}, 20);
  const auto constraint = fake.Make();
  EXPECT_FALSE(constraint->constrained());
  EXPECT_EQ(Allowed(constraint.get()), std::nullopt);
  EXPECT_TRUE(Accept(constraint.get(), 10));
  EXPECT_TRUE(Accept(constraint.get(), 11));
  EXPECT_TRUE(Accept(constraint.get(), 20));  // breaks the trigger, fires the bound
  EXPECT_TRUE(constraint->constrained());
  EXPECT_EQ(constraint->ForcedTokens(9), (Ids{10, 11, 12}));
  EXPECT_EQ(constraint->ForcedTokens(2), (Ids{10, 11}));
  for (const int32_t forced : {10, 11, 12}) {
    EXPECT_EQ(Allowed(constraint.get()), (Ids{forced}));
    EXPECT_FALSE(Accept(constraint.get(), forced + 1));
    EXPECT_TRUE(Accept(constraint.get(), forced));
  }
  EXPECT_EQ(Allowed(constraint.get()), (Ids{5}));  // the token that completes the trigger is not the grammar's
  EXPECT_EQ(constraint->tokens_in_grammar(), 0);
}

TEST(Constraint, BoundInsideOfTheTriggerGoesOnFromThere) {
  FakeConstraint fake("5", {10, 11, 12}, 11);
  const auto constraint = fake.Make();
  EXPECT_TRUE(Accept(constraint.get(), 10));
  EXPECT_TRUE(Accept(constraint.get(), 11));
  EXPECT_EQ(Allowed(constraint.get()), (Ids{12}));
}

TEST(Constraint, OverlappingTriggersAreFoundLikeASubstring) {
  std::mt19937 random(7);
  for (const Ids& trigger : {Ids{1, 1, 2}, Ids{1, 2, 1, 2, 3}, Ids{1, 1, 1}, Ids{1, 2, 1, 1, 2, 1, 2}, Ids{4}}) {
    for (int round = 0; round < 200; ++round) {
      FakeConstraint fake("5", trigger, {}, 30);
      const auto constraint = fake.Make();
      Ids seen;
      for (int i = 0; i < 30 && constraint->is_trigger_pending(); ++i) {
        seen.push_back(static_cast<int32_t>(random() % 4 + 1));
        ASSERT_TRUE(Accept(constraint.get(), seen.back()));
        const bool ends_with = seen.size() >= trigger.size() && std::equal(trigger.begin(), trigger.end(), seen.end() -
                                                                           static_cast<std::ptrdiff_t>(trigger.size()));
        ASSERT_EQ(constraint->is_trigger_pending(), !ends_with);
        ASSERT_EQ(constraint->constrained(), ends_with);
      }
    }
  }
}

// After any walk of accepts and rollbacks the constraint is where a fresh one is that saw only the tokens that stayed.
TEST(Constraint, RollbackIsAsIfTheTokensHadNeverCome) {
  std::mt19937 random(11);
  for (int round = 0; round < 300; ++round) {
    FakeConstraint fake("5|6 7|8 5|6 7", {1, 2, 1, 3}, round % 2 == 0 ? std::optional<int32_t>(4) : std::nullopt);
    const auto constraint = fake.Make();
    Ids kept;
    int since_start = 0;
    for (int i = 0; i < 40; ++i) {
      if (random() % 3 == 0 && since_start > 0) {
        const int n = static_cast<int>(random() % static_cast<uint32_t>(std::min(since_start, 7) + 1));
        ASSERT_TRUE(constraint->Rollback(n).ok());
        kept.resize(kept.size() - static_cast<size_t>(n));
        since_start -= n;
        if (n > 0) since_start = std::min(since_start, 7 - n);
      } else {
        const int32_t token = random() % 12 == 0 ? kStop : static_cast<int32_t>(random() % 8 + 1);
        if (Accept(constraint.get(), token)) {
          kept.push_back(token);
          since_start = std::min(since_start + 1, 7);
        }
      }
      const auto fresh = constraint->Fresh();
      ASSERT_TRUE(fresh->Replay(kept).ok());
      ASSERT_EQ(fresh->constrained(), constraint->constrained());
      ASSERT_EQ(fresh->is_finished(), constraint->is_finished());
      ASSERT_EQ(fresh->tokens_in_grammar(), constraint->tokens_in_grammar());
      ASSERT_EQ(Allowed(fresh.get()), Allowed(constraint.get()));
    }
  }
}

TEST(Constraint, RollbackBeyondTheHistoryAborts) {
  FakeConstraint fake("* ...", {}, {}, 1);
  const auto constraint = fake.Make();
  for (int i = 0; i < 10; ++i) ASSERT_TRUE(Accept(constraint.get(), 1));
  EXPECT_TRUE(constraint->Rollback(3).ok());  // num_drafts + 2
  for (int i = 0; i < 10; ++i) ASSERT_TRUE(Accept(constraint.get(), 1));
  EXPECT_FALSE(constraint->Rollback(4).ok());
  EXPECT_TRUE(constraint->is_aborted());
}

TEST(Constraint, ReplaySaysWhichTokenDoesNotFit) {
  FakeConstraint fake("5 6");
  const auto constraint = fake.Make();
  const Status status = constraint->Replay(Ids{5, 9});
  EXPECT_EQ(status.message(), "SO replay failed: token 9 (idx 1/2) rejected during matcher state restore");
  EXPECT_EQ(constraint->abort_message(), status.message());
}

TEST(Constraint, ForkGoesItsOwnWay) {
  FakeConstraint fake("5 6|7 8", {1});
  const auto constraint = fake.Make();
  for (const int32_t t : {1, 5}) ASSERT_TRUE(Accept(constraint.get(), t));
  const auto fork = constraint->Fork();
  EXPECT_TRUE(Accept(fork.get(), 6));
  EXPECT_EQ(Allowed(fork.get()), (Ids{8}));
  EXPECT_EQ(Allowed(constraint.get()), (Ids{6, 7}));
  EXPECT_TRUE(fork->Rollback(3).ok());  // the history came along
  EXPECT_EQ(Allowed(fork.get()), std::nullopt);
  EXPECT_EQ(Allowed(constraint->Fresh().get()), std::nullopt);
}

TEST(Constraint, InvalidSpecsGrammarsAndMatchersAbort) {
  GrammarSpec spec;
  spec.invalid = "so_args.bound_token_id needs trigger_token_ids";
  Constraint invalid(spec, nullptr, {});
  EXPECT_EQ(invalid.abort_message(), spec.invalid);
  EXPECT_EQ(invalid.Accept(1).status().message(), spec.invalid);
  EXPECT_TRUE(invalid.Fork()->is_aborted());
  EXPECT_TRUE(Constraint(GrammarSpec(), nullptr, {}).is_aborted());

  FakeConstraint dead("dead");
  const auto constraint = dead.Make();
  std::vector<uint32_t> row(static_cast<size_t>(MaskWords(kVocab)));
  const auto behind_draft = constraint->Fill(row, /*is_behind_draft=*/true);
  ASSERT_TRUE(behind_draft.ok());
  EXPECT_TRUE(*behind_draft);
  EXPECT_FALSE(constraint->Fill(row).ok());  // an empty row is never sampled from
  EXPECT_TRUE(constraint->is_aborted());

  FakeConstraint throwing("throw");
  const auto fails = throwing.Make();
  EXPECT_FALSE(fails->Accept(1).ok());
  EXPECT_TRUE(fails->is_aborted());
}

TEST(Constraint, SlowMatchingEndsTheRequest) {
  FakeConstraint fake("* ...");
  const auto constraint = fake.Make();
  fake.step_ms = 20;
  constraint->BeginStep();
  EXPECT_TRUE(Accept(constraint.get(), 1));
  EXPECT_TRUE(Accept(constraint.get(), 1));
  constraint->BeginStep();  // a new step, a new budget
  EXPECT_TRUE(Accept(constraint.get(), 1));
  EXPECT_TRUE(Accept(constraint.get(), 1));
  const auto third = constraint->Accept(1);
  ASSERT_FALSE(third.ok());
  EXPECT_EQ(third.status().message().rfind(kConstraintFailed, 0), 0u) << third.status().message();
  EXPECT_TRUE(constraint->is_aborted());
}

TEST(Constraint, TotalTimeIsLimitedToo) {
  FakeConstraint fake("* ...");
  const auto constraint = fake.Make();
  fake.step_ms = 40;
  int steps = 0;
  while (!constraint->is_aborted() && steps < 100) {
    constraint->BeginStep();
    (void)constraint->Accept(1);
    ++steps;
  }
  EXPECT_EQ(steps, 51);  // 2 s
  // Replaying is not held against a step, but against the total.
  fake.step_ms = 10;
  EXPECT_TRUE(constraint->Fresh()->Replay(Ids(100, 1)).ok());
  EXPECT_FALSE(constraint->Fresh()->Replay(Ids(300, 1)).ok());
}

}  // namespace
}  // namespace deepinfer::constrain
