// SPDX-License-Identifier: Apache-2.0
#include "text/tokenizer_bpe.h"

#include <map>
#include <random>
#include <string>
#include <thread>
#include <unordered_map>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/file.h"
#include "text/tokenizer_file.h"
#include "text/tokenizer_test_support.h"

namespace deepinfer::text {
namespace {

// A merge table over byte tokens 0..255 together with the merge procedure as it is defined, step by step.
struct Table {
  std::vector<Bpe::Merge> merges;
  std::vector<uint32_t> num_bytes = std::vector<uint32_t>(256, 1);
  std::map<std::string, int32_t> id_of;
  std::vector<std::string> text_of;

  Table() {
    for (int b = 0; b < 256; ++b) {
      text_of.push_back(std::string(1, static_cast<char>(b)));
      id_of[text_of.back()] = b;
    }
  }
  void Merge(const std::string& left, const std::string& right) {
    const auto [at, is_new] = id_of.try_emplace(left + right, static_cast<int32_t>(text_of.size()));
    if (is_new) {
      text_of.push_back(left + right);
      num_bytes.push_back(static_cast<uint32_t>(left.size() + right.size()));
    }
    merges.push_back({id_of.at(left), id_of.at(right), at->second});
  }
  Bpe MakeBpe() const {
    std::array<int32_t, 256> byte_ids;
    for (int b = 0; b < 256; ++b) byte_ids[static_cast<size_t>(b)] = b;
    return Bpe(byte_ids, merges, num_bytes);
  }
  std::vector<int32_t> Definition(const std::string& text) const {
    std::map<std::pair<int32_t, int32_t>, size_t> rank_of;
    for (size_t rank = 0; rank < merges.size(); ++rank) rank_of[{merges[rank].left, merges[rank].right}] = rank;
    const auto rank = [&](int32_t left, int32_t right) {
      const auto at = rank_of.find({left, right});
      return at != rank_of.end() ? at->second : merges.size();
    };
    std::vector<int32_t> ids;
    std::vector<size_t> ranks;  // of each id with the next one
    for (const char c : text) ids.push_back(static_cast<uint8_t>(c));
    for (size_t i = 0; i + 1 < ids.size(); ++i) ranks.push_back(rank(ids[i], ids[i + 1]));
    for (;;) {
      const auto best = std::min_element(ranks.begin(), ranks.end());
      if (best == ranks.end() || *best == merges.size()) return ids;
      const size_t at = static_cast<size_t>(best - ranks.begin());
      ids[at] = merges[*best].result;
      ids.erase(ids.begin() + (best - ranks.begin()) + 1);
      ranks.erase(best);
      if (at > 0) ranks[at - 1] = rank(ids[at - 1], ids[at]);
      if (at + 1 < ids.size()) ranks[at] = rank(ids[at], ids[at + 1]);
    }
  }
};

std::vector<int32_t> Uncached(const Bpe& bpe, const std::string& text) {
  std::vector<int32_t> ids(text.size());
  ids.resize(bpe.EncodeUncached(text, ids.data()));
  return ids;
}

std::vector<int32_t> Cached(const Bpe& bpe, const std::string& text) {
  const std::string_view pieces[] = {text};
  IdBuffer out;
  bpe.Encode(pieces, text.data() + text.size(), out);
  return out.Take();
}

TEST(Bpe, LowestRankFirstThenLeftmost) {
  Table table;
  table.Merge("b", "c");
  table.Merge("a", "b");
  table.Merge("a", "a");
  const Bpe bpe = table.MakeBpe();
  EXPECT_EQ(Uncached(bpe, "abc"), (std::vector<int32_t>{'a', 256}));
  EXPECT_EQ(Uncached(bpe, "aab"), (std::vector<int32_t>{'a', 257}));
  EXPECT_EQ(Uncached(bpe, "aaaaa"), (std::vector<int32_t>{258, 258, 'a'}));
  EXPECT_EQ(Uncached(bpe, "a"), (std::vector<int32_t>{'a'}));
}

TEST(Bpe, APieceInTheVocabularyIsNotAShortCut) {
  Table table;
  table.Merge("b", "c");  // takes the b away, so "abc" cannot come from ("ab", "c")
  table.Merge("a", "b");
  table.Merge("ab", "c");
  const Bpe bpe = table.MakeBpe();
  EXPECT_EQ(Cached(bpe, "abc"), (std::vector<int32_t>{'a', 256}));
}

TEST(Bpe, NoMergesGivesBytes) {
  const Bpe bpe = Table().MakeBpe();
  EXPECT_EQ(Uncached(bpe, std::string("\0\xff", 2)), (std::vector<int32_t>{0, 255}));
  EXPECT_EQ(Uncached(bpe, std::string(5000, 'x')), std::vector<int32_t>(5000, 'x'));
}

// Random tables over two or three letters have every kind of conflict: merges that take each other's halves, several ways
// to one token, and pairs of lower rank than the merges that make their halves.
TEST(Bpe, EqualsTheDefinitionForRandomTables) {
  std::mt19937_64 random(1);
  for (int round = 0; round < 40; ++round) {
    Table table;
    const int num_letters = 1 + static_cast<int>(random() % 3);
    for (int i = 0; i < num_letters; ++i) table.Merge(std::string(1, static_cast<char>('a' + i)), "a");
    for (int i = 0; i < 30; ++i) {
      const auto any = [&] {
        const size_t num_letter_tokens = static_cast<size_t>(num_letters);
        const size_t idx = random() % (num_letter_tokens + table.text_of.size() - 256);
        return idx < num_letter_tokens ? std::string(1, static_cast<char>('a' + idx))
                                       : table.text_of[256 + idx - num_letter_tokens];
      };
      const std::string left = any();
      const std::string right = any();
      if (left.size() + right.size() < 40) table.Merge(left, right);
    }
    std::shuffle(table.merges.begin(), table.merges.end(), random);
    const Bpe bpe = table.MakeBpe();
    for (const size_t length : {1u, 2u, 7u, 32u, 33u, 64u, 65u, 300u, 2500u}) {
      std::string text;
      const size_t period = 1 + random() % 50;
      for (size_t i = 0; i < length; ++i) {
        const bool repeat = i >= period && random() % 64 != 0;
        text.push_back(repeat ? text[i - period] : static_cast<char>('a' + static_cast<int>(random() % num_letters)));
      }
      const std::vector<int32_t> expected = table.Definition(text);
      ASSERT_EQ(Uncached(bpe, text), expected) << text;
      ASSERT_EQ(Cached(bpe, text), expected) << text;
      ASSERT_EQ(Cached(bpe, text), expected) << "second look, " << text;
    }
  }
}

// A property of the released data (not of the algorithm): whole-piece look-ups would give the same ids there.
TEST(BpeGolden, EveryVocabularyEntryIsItsOwnMergeResult) {
  const std::string path = DEEPINFER_SOURCE_DIR "/tests/golden/tokenizer/tokenizer.json";
  const TokenizerFile file = std::move(ParseTokenizerFile(ReadFile(path, int64_t{1} << 28).value(), path)).value();
  std::unordered_map<std::string_view, int32_t> id_of;
  for (const auto& entry : file.vocab) id_of[file.Spelling(entry)] = entry.id;
  std::vector<Bpe::Merge> merges;
  for (const auto& m : file.merges) merges.push_back({id_of.at(file.Left(m)), id_of.at(file.Right(m)), id_of.at(file.Result(m))});
  ASSERT_EQ(merges.size(), 127741u);

  const Tokenizer& tokenizer = ReleasedTokenizer();
  std::array<int32_t, 256> byte_ids;
  std::vector<uint32_t> num_bytes;
  for (int id = 0; id < 128000; ++id) {
    const std::string_view bytes = tokenizer.TokenBytes(id);
    if (bytes.size() == 1) byte_ids[static_cast<uint8_t>(bytes[0])] = id;
    num_bytes.push_back(static_cast<uint32_t>(bytes.size()));
    EXPECT_LE(bytes.size(), 128u);
  }
  const Bpe bpe(byte_ids, merges, num_bytes);
  for (int id = 3; id < 128000; ++id) {
    ASSERT_EQ(Uncached(bpe, std::string(tokenizer.TokenBytes(id))), std::vector<int32_t>{id}) << id;
  }
}

// One odd byte at the start shifts every token of the run, so windows that do not begin at the start disagree with it.
TEST(Bpe, WindowsFollowARunThatIsShiftedFromItsStart) {
  Table table;
  std::string token = "a";
  table.Merge("x", "a");
  for (int i = 0; i < 9; ++i) {
    table.Merge(token, token);
    token += token;
  }
  const Bpe bpe = table.MakeBpe();
  for (const std::string prefix : {"", "x", "b", "aab"}) {
    const std::string text = prefix + std::string(5000, 'a') + "b" + std::string(301, 'a');
    EXPECT_EQ(Uncached(bpe, text), table.Definition(text)) << prefix;
  }
}

// Tokens longer than the overlap of two windows.
TEST(Bpe, WindowsJoinAcrossVeryLongTokens) {
  Table table;
  std::string token = "a";
  for (int i = 0; i < 10; ++i) {
    table.Merge(token, token);
    token += token;
  }
  const Bpe bpe = table.MakeBpe();
  const std::string text(7001, 'a');
  EXPECT_EQ(Uncached(bpe, text), table.Definition(text));
}

TEST(PieceCache, FindsWhatWasInsertedAndNothingElse) {
  PieceCache cache;
  const int32_t ids[] = {1, (1 << 21) - 1, 0, 7, 8, 9, 10, 11, 12};
  int32_t found[PieceCache::kMaxIds];
  const std::string text = "abcdefghijklmnopqrstuvwxyz0123456789abcdefghijklmnopqrstuvwxyz";
  for (size_t length = 1; length <= 32; ++length) {
    const auto key = PieceCache::MakeKey(text.substr(0, length), false);
    EXPECT_EQ(cache.Find(key, found), 0u);
    cache.Insert(key, ids, 1 + length % 9);
  }
  for (size_t length = 1; length <= 32; ++length) {
    const auto key = PieceCache::MakeKey(std::string_view(text).substr(0, length), true);
    ASSERT_EQ(cache.Find(key, found), 1 + length % 9) << length;
    EXPECT_TRUE(std::equal(found, found + 1 + length % 9, ids));
  }
  // Zeros at the end are part of the piece, not padding.
  cache.Insert(PieceCache::MakeKey("a", false), ids, 1);
  EXPECT_EQ(cache.Find(PieceCache::MakeKey(std::string_view("a\0", 2), false), found), 0u);
}

TEST(PieceCache, ThreadsNeverSeeATornEntry) {
  PieceCache cache;
  // Many more pieces than places, each with ids that follow from it.
  const auto work = [&](uint64_t seed) {
    std::mt19937_64 random(seed);
    for (int i = 0; i < 200000; ++i) {
      const uint32_t number = static_cast<uint32_t>(random() % 300000);
      const std::string piece = "piece number " + std::to_string(number);
      const auto key = PieceCache::MakeKey(piece, false);
      int32_t ids[PieceCache::kMaxIds];
      const size_t num_ids = cache.Find(key, ids);
      if (num_ids == 0) {
        for (size_t j = 0; j < PieceCache::kMaxIds; ++j) ids[j] = static_cast<int32_t>(number + j);
        cache.Insert(key, ids, 1 + number % PieceCache::kMaxIds);
      } else {
        ASSERT_EQ(num_ids, 1 + number % PieceCache::kMaxIds);
        for (size_t j = 0; j < num_ids; ++j) ASSERT_EQ(ids[j], static_cast<int32_t>(number + j));
      }
    }
  };
  std::vector<std::thread> threads;
  for (uint64_t seed = 0; seed < 3; ++seed) threads.emplace_back(work, seed);
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace deepinfer::text
