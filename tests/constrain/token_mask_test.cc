// SPDX-License-Identifier: Apache-2.0
//
// Masks over the released vocabulary: which tokens a grammar lets through.
#include <random>

#include <gtest/gtest.h>

#include "constrain/compile_service.h"
#include "constrain/grammar_fixture.h"
#include "constrain/structural_tags.h"

namespace deepinfer::constrain {
namespace {

int Id(const char* content) { return ReleasedTokenizer().FindAddedToken(content); }

TEST(TokenizerView, BlanksAddedTokens) {
  const TokenizerView plain = MakeTokenizerView(ReleasedTokenizer(), ViewKind::kPlain, kReleasedVocab);
  const TokenizerView tags = MakeTokenizerView(ReleasedTokenizer(), ViewKind::kTags, kReleasedVocab + 40, {5});
  EXPECT_EQ(plain.stop_ids, (std::vector<int32_t>{Id("<｜end▁of▁sentence｜>"), Id("<|EOT|>")}));
  EXPECT_EQ(tags.stop_ids.size(), 3u);
  ASSERT_EQ(tags.tokens.size(), static_cast<size_t>(kReleasedVocab + 40));
  int num_kept = 0;
  for (int id = 0; id < kReleasedVocab; ++id) {
    const std::string& in_plain = plain.tokens[static_cast<size_t>(id)];
    const std::string& in_tags = tags.tokens[static_cast<size_t>(id)];
    if (!ReleasedTokenizer().IsAddedToken(id)) {
      ASSERT_EQ(in_plain, ReleasedTokenizer().TokenBytes(id));
      ASSERT_EQ(in_tags, in_plain);
    } else {
      ASSERT_EQ(in_plain, "") << id;
      if (!in_tags.empty()) ++num_kept;
    }
  }
  EXPECT_EQ(num_kept, 11);
  for (const char* kept : {"<think>", "</think>", "｜DSML｜", "<｜ref｜>", "<｜/polygon｜>"}) {
    EXPECT_EQ(tags.tokens[static_cast<size_t>(Id(kept))], kept);
  }
  EXPECT_EQ(tags.tokens[static_cast<size_t>(kReleasedVocab + 1)], "");
}

#if DEEPINFER_HAVE_XGRAMMAR

// Their text would be legal inside of a string, so only a blank entry keeps them out.
TEST(TokenMask, ControlTokensAreNeverInsideStrings) {
  const GrammarSpec specs[] = {Spec(GrammarKind::kJsonSchema, R"({"type":"string"})"),
                               Spec(GrammarKind::kJsonSchema, R"({"type":"string","maxLength":900})"),
                               Spec(GrammarKind::kJsonSchema, R"({"type":"string","pattern":".*"})"),
                               Spec(GrammarKind::kRegex, "\".*\""),
                               Spec(GrammarKind::kEbnf, "root ::= \"\\\"\" [^\\\"]* \"\\\"\"")};
  for (const GrammarSpec& spec : specs) {
    const auto matcher = Matcher(ReleasedBackend(), spec);
    ASSERT_TRUE(*matcher->AcceptText("\"some text"));
    const std::vector<uint32_t> row = Row(matcher.get(), kReleasedVocab);
    int num_allowed = 0;
    for (int id = 0; id < kReleasedVocab; ++id) {
      if (!IsAllowed(row, id)) continue;
      ASSERT_FALSE(ReleasedTokenizer().IsAddedToken(id)) << id;
      ++num_allowed;
    }
    EXPECT_GT(num_allowed, 100000);  // the rest of the vocabulary is text
    EXPECT_TRUE(*matcher->AcceptText("\""));
    const std::vector<uint32_t> end = Row(matcher.get(), kReleasedVocab);
    EXPECT_TRUE(IsAllowed(end, Id("<｜end▁of▁sentence｜>")));
    EXPECT_TRUE(IsAllowed(end, Id("<|EOT|>")));
  }
}

TEST(TokenMask, TagsLetTheMarksOfATurnThroughAndNoOthers) {
  TagRequest request;
  request.tools = {{"f", Json()}};
  request.is_thinking = true;
  const auto matcher = Matcher(ReleasedBackend(), StructuralTagSpec(request));
  std::vector<uint32_t> row = Row(matcher.get(), kReleasedVocab);
  EXPECT_TRUE(IsAllowed(row, Id("</think>")));
  EXPECT_FALSE(IsAllowed(row, Id("<think>")));
  for (const char* control : {"<｜User｜>", "<｜Assistant｜>", "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"}) {
    EXPECT_FALSE(IsAllowed(row, Id(control))) << control;
  }
  ASSERT_TRUE(*matcher->Accept(Id("</think>")));
  ASSERT_TRUE(*matcher->AcceptText("\n\n<"));
  row = Row(matcher.get(), kReleasedVocab);
  EXPECT_TRUE(IsAllowed(row, Id("｜DSML｜")));
  ASSERT_TRUE(*matcher->Accept(Id("｜DSML｜")));
  EXPECT_TRUE(*matcher->AcceptText(" calls>\n<"));
  EXPECT_TRUE(*matcher->Accept(Id("｜DSML｜")));
  EXPECT_FALSE(*matcher->AcceptText(" invoke name=\"g\""));
  EXPECT_TRUE(*matcher->AcceptText(" invoke name=\"f\">\n"));
}

// Accept and the mask say the same, at random places of random texts.
TEST(TokenMask, AllowedIsWhatIsAccepted) {
  const auto matcher = Matcher(ReleasedBackend(), Spec(GrammarKind::kJsonSchema,
                                                       R"({"type":"object","properties":{"n":{"type":"integer","minimum":-20},
                                                           "s":{"enum":["日本","né"]},"l":{"type":"array"}},"required":["n","l"]})"));
  std::mt19937 random(5);
  for (const char* text : {"", "{", "{\"n\": -", "{\"n\": -1", "{\"n\":5,\"s\":\"\xE6", "{\"n\":5, \"l\": [[\"a"}) {
    const auto here = matcher->Fork();
    ASSERT_TRUE(*here->AcceptText(text)) << text;
    const std::vector<uint32_t> row = Row(here.get(), kReleasedVocab);
    for (int i = 0; i < 3000; ++i) {
      const auto id = static_cast<int32_t>(random() % kReleasedVocab);
      const auto accepted = here->Accept(id);
      ASSERT_TRUE(accepted.ok());
      ASSERT_EQ(*accepted, IsAllowed(row, id)) << text << " token " << id;
      ASSERT_TRUE(here->Rollback(*accepted ? 1 : 0).ok());
    }
  }
}

TEST(TokenMask, ForcedTokensAreTheOnlyWay) {
  const auto matcher =
      Matcher(ReleasedBackend(), Spec(GrammarKind::kRegex, "\\{\"temperature_celsius\": [0-9]\\}"));
  const std::vector<int32_t> forced = matcher->ForcedTokens(5);
  ASSERT_FALSE(forced.empty());
  EXPECT_LE(forced.size(), 5u);
  for (const int32_t id : forced) EXPECT_TRUE(*matcher->Accept(id));
}

TEST(TokenMask, ASecondRequestFindsItsGrammarCompiled) {
  CompileServiceOptions options;
  options.cache_limit_bytes = 8 << 20;
  CompileService service([] { return MakeXgrammarBackend(ByteView(), ByteView()); }, options);
  for (int i = 0; i < 60; ++i) {
    const GrammarSpec spec = Spec(GrammarKind::kJsonSchema, R"({"type":"string","maxLength":)" + std::to_string(i + 1) + "}");
    ASSERT_TRUE(service.Compile(spec).ok());
    ASSERT_LE(service.stats().cache_bytes, options.cache_limit_bytes);
    ASSERT_TRUE(service.Submit(spec)->is_done());  // at once, without a thread
  }
  EXPECT_EQ(service.stats().num_compiled, 60);
  EXPECT_EQ(service.stats().num_cache_hits, 60);
}

#endif

}  // namespace
}  // namespace deepinfer::constrain
