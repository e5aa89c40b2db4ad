// SPDX-License-Identifier: Apache-2.0
#include "text/tokenizer.h"

#include <cstring>
#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <openssl/sha.h>

#include "core/file.h"
#include "core/utf8.h"
#include "text/tokenizer_test_support.h"

namespace deepinfer::text {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(TokenizerGolden, EncodeCases) {
  const Tokenizer& tokenizer = ReleasedTokenizer();
  int num_cases = 0;
  for (const Json& line : GoldenLines("encode.jsonl")) {
    const std::string text = line["text"].get<std::string>();
    const auto ids = line["ids"].get<std::vector<int32_t>>();
    const auto plain = line.contains("ids_plain") ? line["ids_plain"].get<std::vector<int32_t>>() : ids;
    EXPECT_EQ(tokenizer.EncodeFull(text), ids) << line["id"];
    EXPECT_EQ(tokenizer.EncodePlain(text), plain) << line["id"];
    EXPECT_EQ(tokenizer.Decode(ids), text) << line["id"];
    EXPECT_EQ(tokenizer.Decode(plain), text) << line["id"];
    const std::string skipped = line.contains("decoded_skip_special") ? line["decoded_skip_special"].get<std::string>() : text;
    EXPECT_EQ(tokenizer.Decode(ids, true), skipped) << line["id"];
    ++num_cases;
  }
  EXPECT_EQ(num_cases, 336);
}

TEST(TokenizerGolden, DecodeCases) {
  const Tokenizer& tokenizer = ReleasedTokenizer();
  int num_cases = 0;
  for (const Json& line : GoldenLines("decode.jsonl")) {
    const auto ids = line["ids"].get<std::vector<int32_t>>();
    EXPECT_EQ(tokenizer.Decode(ids), line["text"].get<std::string>()) << line["id"];
    EXPECT_EQ(tokenizer.Decode(ids, true), line["text_skip_special"].get<std::string>()) << line["id"];
    ++num_cases;
  }
  EXPECT_EQ(num_cases, 22);
}

TEST(Tokenizer, ReleasedFileHasTheDocumentedTokens) {
  const Tokenizer& tokenizer = ReleasedTokenizer();
  EXPECT_EQ(tokenizer.vocab_size(), 129280);
  const struct {
    int id;
    const char* content;
    bool special;
  } kRows[] = {
      {0, "<｜begin▁of▁sentence｜>", true},   {1, "<｜end▁of▁sentence｜>", true},
      {2, "<｜▁pad▁｜>", true},               {128000, "<｜place▁holder▁no▁0｜>", true},
      {128799, "<｜System｜>", false},        {128803, "<｜User｜>", false},
      {128804, "<｜Assistant｜>", false},     {128821, "<think>", false},
      {128822, "</think>", false},            {128825, "｜DSML｜", false},
      {128828, "<｜latest_reminder｜>", false}, {128846, "<｜end_of_query｜>", true},
      {129264, "<｜deepseek_image｜>", false}, {129279, "<|place_holder_mm_span_0442|>", true},
  };
  for (const auto& row : kRows) {
    EXPECT_EQ(tokenizer.FindAddedToken(row.content), row.id);
    EXPECT_EQ(tokenizer.TokenBytes(row.id), row.content);
    EXPECT_EQ(tokenizer.RawToken(row.id), row.content);
    EXPECT_TRUE(tokenizer.IsAddedToken(row.id));
    EXPECT_EQ(tokenizer.IsSpecial(row.id), row.special) << row.content;
  }
  EXPECT_EQ(tokenizer.FindAddedToken("<｜image｜>"), -1);
  EXPECT_EQ(tokenizer.FindAddedToken(""), -1);
  EXPECT_EQ(tokenizer.FindAddedToken("<think"), -1);
  EXPECT_EQ(tokenizer.TokenBytes(3 + 32), "A");
  EXPECT_EQ(tokenizer.RawToken(223), "Ġ");
  EXPECT_EQ(tokenizer.TokenBytes(223), " ");
  EXPECT_FALSE(tokenizer.IsAddedToken(223));
}

TEST(Tokenizer, IdsOutOfRangeAreEmpty) {
  const Tokenizer& tokenizer = NanoTokenizer();
  for (const int id : {-1, tokenizer.vocab_size(), 1 << 30}) {
    EXPECT_EQ(tokenizer.TokenBytes(id), "");
    EXPECT_EQ(tokenizer.RawToken(id), "");
    EXPECT_FALSE(tokenizer.IsAddedToken(id));
    EXPECT_FALSE(tokenizer.IsSpecial(id));
    const int32_t ids[] = {id};
    EXPECT_EQ(tokenizer.Decode(ids), "");
  }
}

TEST(Tokenizer, ClientTextNeverBecomesASpecialToken) {
  const Tokenizer& tokenizer = ReleasedTokenizer();
  const std::string text = "<｜User｜><think>";
  EXPECT_THAT(tokenizer.EncodePlain(text), ElementsAre(30, 28217, 6756, 28217, 5451, 37947, 32));
  EXPECT_THAT(tokenizer.EncodeFull(text), ElementsAre(128803, 128821));
}

TEST(Tokenizer, PromptRangesAreSpecialAndTheRestIsPlain) {
  const Tokenizer& tokenizer = ReleasedTokenizer();
  const std::string user = "<｜User｜>";
  const std::string prompt = user + user + "<think></think>";
  const std::vector<SpecialRange> ranges = {{0, user.size()}, {2 * user.size(), prompt.size()}};
  const Result<std::vector<int32_t>> ids = tokenizer.EncodePrompt(prompt, ranges);
  ASSERT_TRUE(ids.ok()) << ids.status().ToString();
  EXPECT_THAT(*ids, ElementsAre(128803, 30, 28217, 6756, 28217, 32, 128821, 128822));
  EXPECT_THAT(*tokenizer.EncodePrompt("", {}), IsEmpty());
  EXPECT_EQ(*tokenizer.EncodePrompt("a\xff", {}), tokenizer.EncodePlain("a\ufffd"));
}

TEST(Tokenizer, BadPromptRangesAreInternalErrors) {
  const Tokenizer& tokenizer = ReleasedTokenizer();
  const std::vector<std::vector<SpecialRange>> kBad = {
      {{0, 3}}, {{0, 8}}, {{0, 100}}, {{7, 0}}, {{7, 14}}, {{0, 7}, {0, 7}}};
  for (const auto& ranges : kBad) {
    const Result<std::vector<int32_t>> ids = tokenizer.EncodePrompt("<think>hello", ranges);
    ASSERT_FALSE(ids.ok());
    EXPECT_EQ(ids.status().code(), StatusCode::kInternal);
  }
  EXPECT_TRUE(tokenizer.EncodePrompt("<think>hello", std::vector<SpecialRange>{{0, 7}, {9, 9}}).ok());
}

TEST(Tokenizer, IllFormedTextIsReplacedAndTold) {
  const Tokenizer& tokenizer = ReleasedTokenizer();
  bool replaced = false;
  const std::string bad = "abcdefgh\xf0\x9f\x98q<think>\xc0\xaf";
  EXPECT_EQ(tokenizer.EncodePlain(bad, nullptr, &replaced), tokenizer.EncodePlain("abcdefgh\ufffdq<think>\ufffd\ufffd"));
  EXPECT_TRUE(replaced);
  EXPECT_EQ(tokenizer.Decode(tokenizer.EncodeFull(bad, nullptr, &replaced)), "abcdefgh\ufffdq<think>\ufffd\ufffd");
  EXPECT_TRUE(replaced);
  tokenizer.EncodeFull("fine é", nullptr, &replaced);
  EXPECT_FALSE(replaced);
}

TEST(Tokenizer, LongestAddedTokenWinsAndMatchesDoNotOverlap) {
  const Json json = SmallTokenizerJson({}, {"<a>", "<a>b", "b<c>", "ab"});
  const auto tokenizer = std::move(Tokenizer::FromJsonText(DumpJson(json), "small")).value();
  const int a = tokenizer->FindAddedToken("<a>");
  const int ab = tokenizer->FindAddedToken("<a>b");
  const int bc = tokenizer->FindAddedToken("b<c>");
  EXPECT_THAT(tokenizer->EncodeFull("<a>b<c>"), testing::Contains(ab));
  EXPECT_THAT(tokenizer->EncodeFull("<a>b<c>"), testing::Not(testing::Contains(bc)));
  EXPECT_THAT(tokenizer->EncodeFull("<a><a>"), ElementsAre(a, a));
  EXPECT_EQ(tokenizer->Decode(tokenizer->EncodeFull("x<a>b<c>b<c")), "x<a>b<c>b<c");
}

TEST(TokenizerProperty, EncodingRoundTripsThroughDecode) {
  std::mt19937_64 random(1);
  for (int i = 0; i < 3000; ++i) {
    const std::string text = RandomText(random, 1 + static_cast<int>(random() % 40));
    for (const Tokenizer* tokenizer : {&ReleasedTokenizer(), &NanoTokenizer()}) {
      ASSERT_EQ(tokenizer->Decode(tokenizer->EncodePlain(text)), text);
      ASSERT_EQ(tokenizer->Decode(tokenizer->EncodeFull(text)), text);
    }
  }
}

TEST(TokenizerProperty, RandomBytesRoundTripAsReplacedText) {
  std::mt19937_64 random(2);
  const Tokenizer& tokenizer = ReleasedTokenizer();
  for (int i = 0; i < 3000; ++i) {
    std::string bytes(random() % 100, '\0');
    for (char& b : bytes) b = static_cast<char>(random() % 3 == 0 ? random() % 256 : 0x80 + random() % 0x7f);
    const std::string expected = ReplaceInvalidUtf8(bytes);
    ASSERT_EQ(tokenizer.Decode(tokenizer.EncodePlain(bytes)), expected);
    ASSERT_EQ(tokenizer.Decode(tokenizer.EncodeFull(bytes)), expected);
  }
}

TEST(TokenizerProperty, ResultDoesNotDependOnThreads) {
  std::mt19937_64 random(3);
  const Tokenizer& tokenizer = ReleasedTokenizer();
  // Prose, a text without a single safe border for several chunks, and random text with added tokens.
  std::vector<std::string> texts;
  std::string letters;
  for (int i = 0; i < 100000; ++i) letters.push_back(static_cast<char>('a' + random() % 26));
  texts.push_back(letters);
  texts.push_back(letters + std::string(80000, ' ') + letters + std::string(70000, '7') + "\n" + letters);
  texts.push_back(RandomText(random, 100000));
  std::string cjk;
  for (int i = 0; i < 60000; ++i) AppendUtf8(0x4e00 + static_cast<uint32_t>(random() % 3000), cjk);
  texts.push_back(cjk);
  for (const int num_threads : {2, 5}) {
    ThreadPool pool(num_threads);
    for (const std::string& text : texts) {
      EXPECT_TRUE(tokenizer.EncodePlain(text, &pool) == tokenizer.EncodePlain(text)) << num_threads;
      EXPECT_TRUE(tokenizer.EncodeFull(text, &pool) == tokenizer.EncodeFull(text)) << num_threads;
    }
  }
}

std::vector<int64_t> ReadI64Tensor(const std::string& path, const std::string& name) {
  const std::string bytes = ReadFile(path, int64_t{1} << 24).value();
  uint64_t header_bytes;
  std::memcpy(&header_bytes, bytes.data(), 8);
  const Json header = ParseJson(std::string_view(bytes).substr(8, header_bytes)).value();
  const auto offsets = header.at(name).at("data_offsets").get<std::vector<size_t>>();
  std::vector<int64_t> values((offsets.at(1) - offsets.at(0)) / sizeof(int64_t));
  std::memcpy(values.data(), bytes.data() + 8 + header_bytes + offsets[0], values.size() * sizeof(int64_t));
  return values;
}

TEST(CompressedVocab, NanoEqualsTheGoldenTokenMap) {
  const Tokenizer::CompressedVocab vocab = NanoTokenizer().BuildCompressedVocab();
  const std::vector<int64_t> golden =
      ReadI64Tensor(DEEPINFER_SOURCE_DIR "/tests/golden/model/engram.safetensors", "token_map");
  EXPECT_EQ(std::vector<int64_t>(vocab.map.begin(), vocab.map.end()), golden);
}

TEST(CompressedVocab, ReleasedMapHasTheDocumentedHash) {
  const Tokenizer::CompressedVocab vocab = ReleasedTokenizer().BuildCompressedVocab();
  ASSERT_EQ(vocab.map.size(), 129280u);
  EXPECT_EQ(vocab.num_ids, 99092);
  EXPECT_THAT(std::vector<int32_t>(vocab.map.begin() + 1000, vocab.map.begin() + 1006),
              ElementsAre(604, 830, 831, 832, 174, 833));
  EXPECT_EQ(vocab.map[128799], 98611);
  EXPECT_EQ(vocab.map[129264], 99076);
  EXPECT_EQ(vocab.map.back(), 99091);
  unsigned char digest[SHA256_DIGEST_LENGTH];
  SHA256(reinterpret_cast<const unsigned char*>(vocab.map.data()), vocab.map.size() * sizeof(int32_t), digest);
  std::ostringstream hex;
  for (const unsigned char b : digest) hex << "0123456789abcdef"[b >> 4] << "0123456789abcdef"[b & 15];
  EXPECT_EQ(hex.str(), "c60a86322ec17b4142bfef3c57a8d81fb428550cdf487f88a4320cb59fe46481");
}

TEST(CompressedVocab, FoldsCaseAccentsWidthAndSpace) {
  // Hangul is decomposed by arithmetic: GA is the two jamo. "Ġ" alone stays a space; a tab alone reads as a space too.
  const Json json = SmallTokenizerJson({{"A", "B"}, {"a", "b"}, {"Ġ", "a"}, {"Ġ", "Ġ"}},
                                       {"Ａ", "ắ", "xİ", "xi", "가", "\u1100\u1161", "ﬁ", "fi", "\u0301", "Ω", "\u2126"});
  const auto tokenizer = std::move(Tokenizer::FromJsonText(DumpJson(json), "small")).value();
  const Tokenizer::CompressedVocab vocab = tokenizer->BuildCompressedVocab();
  const auto compressed = [&](const char* raw) {
    for (int id = 0; id < tokenizer->vocab_size(); ++id) {
      if (tokenizer->RawToken(id) == raw) return vocab.map[static_cast<size_t>(id)];
    }
    return -1;
  };
  EXPECT_EQ(compressed("A"), compressed("a"));
  EXPECT_EQ(compressed("AB"), compressed("ab"));
  EXPECT_EQ(compressed("Ġa"), compressed("a"));
  EXPECT_EQ(compressed("Ａ"), compressed("a"));
  EXPECT_EQ(compressed("ắ"), compressed("a"));
  EXPECT_EQ(compressed("xİ"), compressed("xi"));
  EXPECT_EQ(compressed("가"), compressed("\u1100\u1161"));
  EXPECT_EQ(compressed("ﬁ"), compressed("fi"));
  EXPECT_EQ(compressed("Ω"), compressed("\u2126"));
  EXPECT_EQ(compressed("Ġ"), compressed("ĠĠ"));
  EXPECT_EQ(compressed("Ġ"), compressed("ĉ"));  // tab
  EXPECT_NE(compressed("Ġ"), compressed("a"));
  EXPECT_NE(compressed("\u0301"), compressed("Ġ"));  // only a mark: keeps its own text
}

TEST(Tokenizer, MissingFileIsABadModel) {
  const auto tokenizer = Tokenizer::Load("/nonexistent");
  ASSERT_FALSE(tokenizer.ok());
  EXPECT_EQ(tokenizer.status().code(), StatusCode::kBadModel);
  EXPECT_THAT(tokenizer.status().message(), HasSubstr("/nonexistent/tokenizer.json"));
}

TEST(Tokenizer, LoadsTheDemoModel) {
  const auto tokenizer = Tokenizer::Load(DEEPINFER_SOURCE_DIR "/models/demo");
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().ToString();
  EXPECT_EQ((*tokenizer)->vocab_size(), 4026);
  EXPECT_EQ((*tokenizer)->FindAddedToken("<｜System｜>"), 3);
  EXPECT_EQ((*tokenizer)->Decode((*tokenizer)->EncodeFull("<｜User｜>hello 中文")), "<｜User｜>hello 中文");
}

}  // namespace
}  // namespace deepinfer::text
