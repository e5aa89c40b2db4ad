// SPDX-License-Identifier: Apache-2.0
#include "text/tokenizer_test_support.h"

#include <sstream>

#include "core/file.h"
#include "core/utf8.h"

namespace deepinfer::text {

namespace {

const std::string kGoldenDir = DEEPINFER_SOURCE_DIR "/tests/golden";

std::unique_ptr<Tokenizer> LoadOrDie(const std::string& dir) { return std::move(Tokenizer::Load(dir)).value(); }

}  // namespace

const Tokenizer& ReleasedTokenizer() {
  static const std::unique_ptr<Tokenizer> tokenizer = LoadOrDie(kGoldenDir + "/tokenizer");
  return *tokenizer;
}

const Tokenizer& NanoTokenizer() {
  static const std::unique_ptr<Tokenizer> tokenizer = LoadOrDie(kGoldenDir + "/model/nano");
  return *tokenizer;
}

std::vector<Json> GoldenLines(const std::string& file_name) {
  std::istringstream text(ReadFile(kGoldenDir + "/tokenizer/" + file_name, int64_t{1} << 24).value());
  std::vector<Json> lines;
  for (std::string line; std::getline(text, line);) lines.push_back(ParseJson(line).value());
  return lines;
}

Json SmallTokenizerJson(const std::vector<std::pair<std::string, std::string>>& merges,
                        const std::vector<std::string>& added_tokens) {
  Json root = ParseJson(ReadFile(kGoldenDir + "/model/nano/tokenizer.json", int64_t{1} << 24).value()).value();
  Json vocab = Json::object();
  int next_id = 0;
  for (uint32_t b = 0, other = 0x100; b < 256; ++b) {
    const bool is_printable = (b >= 0x21 && b <= 0x7e) || (b >= 0xa1 && b <= 0xac) || b >= 0xae;
    std::string spelling;
    AppendUtf8(is_printable ? b : other++, spelling);
    vocab[spelling] = next_id++;
  }
  Json merge_list = Json::array();
  for (const auto& [left, right] : merges) {
    if (!vocab.contains(left + right)) vocab[left + right] = next_id++;
    merge_list.push_back({left, right});
  }
  root["added_tokens"] = Json::array();
  for (const std::string& content : added_tokens) {
    root["added_tokens"].push_back({{"id", next_id++},
                                    {"content", content},
                                    {"single_word", false},
                                    {"lstrip", false},
                                    {"rstrip", false},
                                    {"normalized", false},
                                    {"special", false}});
  }
  root["model"]["vocab"] = std::move(vocab);
  root["model"]["merges"] = std::move(merge_list);
  return root;
}

std::string RandomText(std::mt19937_64& random, int num_chars) {
  static const std::vector<std::string> kParts = {
      " ", "  ", "\t", "\n", "\r", "\r\n", "\n\n", "a", "B", "the", " word", "é", "ß", "и", "ا", "ह", "\u0301", "\u093f",
      "\u3099", "1", "23", "4567", "٣", "Ⅷ", "½", "中", "文字", "カ", "ひら", "・", "ー", "゛", "\u3040", "龥", "龦", "㐀",
      "𠮷", "!", ".", "-", "--", "(", "$", "~", "«", "，", "。", "€", "😀", "👨\u200d👩", "\ufe0f", "\u200b", "\u00a0",
      "\u3000", "\u2028", "\u0085", "\u180e", "\ufeff", "\x01", "\x7f", "\u0378", "<think>", "</think>", "｜DSML｜",
      "<｜User｜>", "<｜", "｜>", "\U000e0001", "\U0010ffff", std::string(1, '\0'), "한글", "ก็"};
  std::string text;
  for (int i = 0; i < num_chars; ++i) {
    if (random() % 8 == 0) {
      uint32_t code_point;
      do {
        code_point = static_cast<uint32_t>(random() % (random() % 2 == 0 ? 0x3000 : 0x110000));
      } while (code_point >= 0xd800 && code_point < 0xe000);
      AppendUtf8(code_point, text);
    } else {
      const std::string& part = kParts[random() % kParts.size()];
      const int repeats = random() % 6 == 0 ? static_cast<int>(random() % 6) : 1;
      for (int r = 0; r < repeats; ++r) text += part;
    }
  }
  return text;
}

}  // namespace deepinfer::text
