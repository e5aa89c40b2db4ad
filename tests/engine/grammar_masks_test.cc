// SPDX-License-Identifier: Apache-2.0
#include "engine/grammar_masks.h"

#include <gtest/gtest.h>

#include "constrain/fake_grammar.h"

namespace deepinfer::engine {
namespace {

constexpr int kVocab = 40;
constexpr int32_t kEnd = 3;

std::shared_ptr<RequestGrammar> Grammar(const std::string& text) {
  constrain::FakeGrammarBackend backend(kVocab, {kEnd});
  auto grammar = std::make_shared<RequestGrammar>();
  grammar->spec.text = text;
  grammar->compiled = backend.Compile(grammar->spec).value();
  return grammar;
}

struct Masks : GrammarMasks {
  explicit Masks(int num_drafts = 5) : GrammarMasks(kVocab, 64, {.num_drafts = num_drafts}) {}
  void Step(int32_t slot, std::vector<int32_t> tokens, std::vector<int32_t> drafts) {
    Continue(slot, tokens, drafts);
    Launch();
    Wait();
  }
  std::vector<int32_t> Allowed(int32_t slot, int row) const {
    std::vector<int32_t> ids;
    const std::span<const uint32_t> mask = Mask(slot, row);
    for (int32_t id = 0; id < kVocab; ++id) {
      if (mask.empty() || (mask[static_cast<size_t>(id) >> 5] >> (id & 31) & 1u) != 0) ids.push_back(id);
    }
    return ids;
  }
};
using Ids = std::vector<int32_t>;

TEST(GrammarMasks, ARowBehindEveryLegalDraft) {
  Masks masks;
  const auto grammar = Grammar("4|5 6|7 8 9");
  masks.Start(2, grammar, 1, {});
  masks.Launch();
  masks.Wait();
  EXPECT_EQ(masks.status(2), GrammarStatus::kActive);
  EXPECT_EQ(masks.num_legal(2), 0);
  EXPECT_EQ(masks.Allowed(2, 0), (Ids{4, 5}));
  masks.Step(2, {4}, {7, 8, 10, 9, 9});
  EXPECT_EQ(masks.num_legal(2), 2);
  EXPECT_EQ(masks.NumUsefulDrafts(2, 5), 2);
  EXPECT_EQ(masks.Allowed(2, 0), (Ids{6, 7}));
  EXPECT_EQ(masks.Allowed(2, 1), (Ids{8}));
  EXPECT_EQ(masks.Allowed(2, 2), (Ids{9}));
  // What was not accepted is not part of the state; -1 ends the drafts.
  masks.Step(2, {6}, {8, -1, 9, 9, 9});
  EXPECT_EQ(masks.num_legal(2), 1);
  EXPECT_EQ(masks.Allowed(2, 0), (Ids{8}));
  EXPECT_EQ(masks.Allowed(2, 1), (Ids{9}));
  masks.Step(2, {8, 9}, {kEnd, 5, 6});
  EXPECT_EQ(masks.num_legal(2), 3);  // behind the end everything is free
  EXPECT_EQ(masks.Allowed(2, 0), (Ids{kEnd}));
  EXPECT_TRUE(masks.Mask(2, 1).empty());
}

TEST(GrammarMasks, ReplayTakesUpAnOutput) {
  Masks masks;
  const auto grammar = Grammar("4 5 6");
  masks.Start(1, grammar, 1, Ids{4, 5});
  masks.Start(2, grammar, 2, Ids{4, 6});
  masks.Launch();
  masks.Wait();
  EXPECT_EQ(masks.Allowed(1, 0), (Ids{6}));
  EXPECT_EQ(masks.status(2), GrammarStatus::kDead);
  EXPECT_EQ(masks.failure(2), "SO replay failed: token 6 (idx 1/2) rejected during matcher state restore");
  EXPECT_EQ(masks.NumUsefulDrafts(2, 5), 0);
}

TEST(GrammarMasks, AWrongTokenEndsItsSequenceOnly) {
  Masks masks;
  const auto grammar = Grammar("4 5 6");
  masks.Start(1, grammar, 1, {});
  masks.Start(2, grammar, 2, {});
  masks.Launch();
  masks.Wait();
  masks.Continue(1, Ids{9}, {});
  masks.Continue(2, Ids{4}, {});
  masks.Launch();
  masks.Wait();
  EXPECT_NE(masks.failure(1), "");
  EXPECT_EQ(masks.Allowed(2, 0), (Ids{5}));
}

TEST(GrammarMasks, ManySequencesAndEndedOnesAreLetGo) {
  Masks masks(0);
  auto grammar = Grammar("* 7 ...");
  for (int32_t slot = 1; slot < 64; ++slot) masks.Start(slot, grammar, static_cast<uint64_t>(slot), {});
  masks.Launch();
  masks.Wait();
  for (int32_t slot = 1; slot < 64; ++slot) masks.Continue(slot, Ids{slot % kVocab == kEnd ? 4 : slot % kVocab}, {});
  masks.Launch();
  masks.Wait();
  for (int32_t slot = 1; slot < 64; ++slot) EXPECT_EQ(masks.Allowed(slot, 0), (Ids{7}));
  masks.Begin(5);
  EXPECT_FALSE(masks.has(5));
  EXPECT_EQ(masks.num_sequences(), 62);
  for (int i = 0; i < 300; ++i) masks.Launch();
  EXPECT_EQ(masks.num_sequences(), 62);
  grammar = nullptr;
  for (int i = 0; i < 300; ++i) masks.Launch();
  EXPECT_EQ(masks.num_sequences(), 0);
  EXPECT_GE(masks.num_threads(), 1);
}

}  // namespace
}  // namespace deepinfer::engine
