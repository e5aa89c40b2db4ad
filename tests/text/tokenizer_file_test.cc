// SPDX-License-Identifier: Apache-2.0
#include "text/tokenizer_file.h"

#include <functional>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/file.h"
#include "text/tokenizer_test_support.h"

namespace deepinfer::text {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

Result<std::unique_ptr<Tokenizer>> FromJson(const Json& json) { return Tokenizer::FromJsonText(DumpJson(json), "dir/tokenizer.json"); }

TEST(TokenizerFile, MergesAsPairsOrStringsAreTheSame) {
  Json json = SmallTokenizerJson({{"a", "b"}, {"ab", "c"}});
  const auto pairs = FromJson(json);
  for (Json& merge : json["model"]["merges"]) merge = merge[0].get<std::string>() + " " + merge[1].get<std::string>();
  const auto strings = FromJson(json);
  ASSERT_TRUE(pairs.ok() && strings.ok());
  EXPECT_EQ((*pairs)->EncodePlain("abcab"), (*strings)->EncodePlain("abcab"));
  EXPECT_EQ((*pairs)->EncodePlain("abc").size(), 1u);
}

TEST(TokenizerFile, MergesMayStandBeforeTheVocabulary) {
  Json json = SmallTokenizerJson({{"a", "b"}});
  Json vocab = json["model"]["vocab"];
  json["model"].erase("vocab");
  json["model"]["vocab"] = vocab;
  ASSERT_EQ(json["model"].rbegin().key(), "vocab");
  const auto tokenizer = FromJson(json);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().ToString();
  EXPECT_EQ((*tokenizer)->EncodePlain("ab").size(), 1u);
}

TEST(TokenizerFile, RefusalsNameTheFileAndTheCause) {
  const struct {
    const char* cause;
    std::function<void(Json&)> bend;
  } kCases[] = {
      {"step 0 has another pattern", [](Json& j) { j["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = "\\p{N}"; }},
      {"step 1 is not an Isolated split", [](Json& j) { j["pre_tokenizer"]["pretokenizers"][1]["behavior"] = "Removed"; }},
      {"step 2 is not an Isolated split", [](Json& j) { j["pre_tokenizer"]["pretokenizers"][2]["invert"] = true; }},
      {"step 3 is not ByteLevel", [](Json& j) { j["pre_tokenizer"]["pretokenizers"][3]["use_regex"] = true; }},
      {"does not have 4 steps", [](Json& j) { j["pre_tokenizer"]["pretokenizers"].erase(3); }},
      {"is not a Sequence", [](Json& j) { j["pre_tokenizer"] = nullptr; }},
      {"is not a Sequence", [](Json& j) { j.erase("pre_tokenizer"); }},
      {"unsupported normalizer", [](Json& j) { j["normalizer"] = {{"type", "NFC"}}; }},
      {"unsupported post_processor", [](Json& j) { j["post_processor"] = {{"type", "TemplateProcessing"}}; }},
      {"unsupported decoder", [](Json& j) { j["decoder"] = {{"type", "WordPiece"}}; }},
      {"only BPE", [](Json& j) { j["model"]["type"] = "Unigram"; }},
      {"model.dropout", [](Json& j) { j["model"]["dropout"] = 0.1; }},
      {"model.unk_token", [](Json& j) { j["model"]["unk_token"] = "<unk>"; }},
      {"model.ignore_merges", [](Json& j) { j["model"]["ignore_merges"] = true; }},
      {"model.byte_fallback", [](Json& j) { j["model"]["byte_fallback"] = true; }},
      {"\"model.vocab\" is missing", [](Json& j) { j["model"].erase("vocab"); }},
      {"\"model.vocab\" is missing", [](Json& j) { j["model"]["vocab"] = Json::array(); }},
      {"\"model.merges\" is missing", [](Json& j) { j["model"]["merges"] = nullptr; }},
      {"the id of token \"a\" must be", [](Json& j) { j["model"]["vocab"]["a"] = -1; }},
      {"the id of token \"a\" must be", [](Json& j) { j["model"]["vocab"]["a"] = int64_t{1} << 40; }},
      {"the id of token \"a\" must be", [](Json& j) { j["model"]["vocab"]["a"] = "x"; }},
      {"the id of token \"a\" must be", [](Json& j) { j["model"]["vocab"]["a"] = Json::object(); }},
      {"belongs to another token", [](Json& j) { j["model"]["vocab"]["zz"] = 3; }},
      {"no token for byte 0x61", [](Json& j) { j["model"]["vocab"].erase("a"); }},
      {"merge 0 must be", [](Json& j) { j["model"]["merges"] = {"ab"}; }},
      {"merge 0 must be", [](Json& j) { j["model"]["merges"] = {"a b c"}; }},
      {"merge 1 must be", [](Json& j) { j["model"]["merges"] = Json::array({"a b", " b"}); }},
      {"merge 0 must be", [](Json& j) { j["model"]["merges"] = {{"a"}}; }},
      {"merge 0 must be", [](Json& j) { j["model"]["merges"] = Json::array({Json::array({"a", "b", "c"})}); }},
      {"merge 0 must be", [](Json& j) { j["model"]["merges"] = {7}; }},
      {"merge 0 needs the token \"c\xc3\xa9\"", [](Json& j) { j["model"]["merges"] = {"c\xc3\xa9 b"}; }},
      {"merge 0 needs the token \"zy\"", [](Json& j) { j["model"]["merges"] = {"z y"}; }},
      {"\"lstrip\" must be false", [](Json& j) { j["added_tokens"][0]["lstrip"] = true; }},
      {"\"single_word\" must be false", [](Json& j) { j["added_tokens"][0]["single_word"] = true; }},
      {"\"content\" must be", [](Json& j) { j["added_tokens"][0]["content"] = ""; }},
      {"\"id\" must be", [](Json& j) { j["added_tokens"][0]["id"] = 1 << 21; }},
      {"\"special\" must be", [](Json& j) { j["added_tokens"][0].erase("special"); }},
      {"belongs to another token", [](Json& j) { j["added_tokens"][0]["id"] = 5; }},
      {"has two ids", [](Json& j) { j["added_tokens"].push_back(j["added_tokens"][0]); }},
      {"has two ids", [](Json& j) { j["added_tokens"][0]["content"] = "ab"; }},
      {"is not an array", [](Json& j) { j["added_tokens"] = 1; }},
  };
  const Json good = SmallTokenizerJson({{"a", "b"}}, {"<x>"});
  ASSERT_TRUE(FromJson(good).ok());
  for (const auto& row : kCases) {
    Json json = good;
    row.bend(json);
    const auto result = FromJson(json);
    ASSERT_FALSE(result.ok()) << row.cause;
    EXPECT_EQ(result.status().code(), StatusCode::kBadModel);
    EXPECT_THAT(result.status().message(), StartsWith("dir/tokenizer.json: "));
    EXPECT_THAT(result.status().message(), HasSubstr(row.cause));
  }
}

TEST(TokenizerFile, DamagedTextIsRefused) {
  const std::string good = DumpJson(SmallTokenizerJson({{"a", "b"}}, {"<x>"}));
  std::string wide = "{";
  for (int i = 0; i < 5000; ++i) wide += "\"k" + std::to_string(i) + "\":0,";
  wide += "\"z\":0}";
  const std::string kBad[] = {"",    "{",        "[]",       "null", "\xff", good.substr(0, good.size() / 2), good + "x",
                              "{\"model\":{\"vocab\":{\"a\":0},\"vocab\":{}}}", std::string(100000, '['), wide,
                              "{\"a\":" + std::string(100, '[') + std::string(100, ']') + "}"};
  for (const std::string& text : kBad) {
    const auto result = Tokenizer::FromJsonText(text, "f");
    ASSERT_FALSE(result.ok()) << text.substr(0, 50);
    EXPECT_EQ(result.status().code(), StatusCode::kBadModel);
    EXPECT_THAT(result.status().message(), StartsWith("f: "));
  }
}

TEST(TokenizerFile, EveryTruncationIsRefused) {
  const std::string good = DumpJson(SmallTokenizerJson({{"a", "b"}}, {"<x>"}));
  for (size_t length = 0; length < good.size(); length += 7) {
    ASSERT_FALSE(Tokenizer::FromJsonText(std::string_view(good).substr(0, length), "f").ok()) << length;
  }
}

}  // namespace
}  // namespace deepinfer::text
