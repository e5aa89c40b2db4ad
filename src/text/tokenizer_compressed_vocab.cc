// SPDX-License-Identifier: Apache-2.0
//
// The Engram token map (checkpoint.md 5.3): tokens that read the same after folding of case, accents, width and white
// space share one compressed id.
#include <string>
#include <string_view>
#include <unordered_map>

#include "core/utf8.h"
#include "text/tokenizer.h"
#include "text/unicode.h"

namespace deepinfer::text {

namespace {

constexpr std::string_view kReplacementChar = "\xef\xbf\xbd";

// NFKC, NFD, no combining marks, lower case. NFD of an NFKC text is its NFKD, and the canonical order concerns only marks,
// so it is enough to decompose each character on its own (the table generator checks both for all of Unicode).
std::u32string Fold(std::string_view text) {
  std::u32string folded;
  while (!text.empty()) {
    const Utf8Char c = DecodeUtf8(text);
    text.remove_prefix(c.num_bytes);
    char32_t buffer[3];
    for (const char32_t part : Decompose(c.code_point, buffer)) {
      if (!IsMark(part)) folded.push_back(ToLower(part));
    }
  }
  return folded;
}

bool IsCollapsedSpace(char32_t c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; }

// Each run of [ \t\r\n] becomes one space; a text that is then one space stays it; otherwise white space at both ends goes.
std::string Key(std::string_view text) {
  std::u32string spaced;
  for (const char32_t c : Fold(text)) {
    if (!IsCollapsedSpace(c)) {
      spaced.push_back(c);
    } else if (spaced.empty() || spaced.back() != ' ') {
      spaced.push_back(' ');
    }
  }
  std::u32string_view kept = spaced;
  if (kept != U" ") {
    while (!kept.empty() && IsWhiteSpace(kept.front())) kept.remove_prefix(1);
    while (!kept.empty() && IsWhiteSpace(kept.back())) kept.remove_suffix(1);
  }
  std::string key;
  // The stand-in for a lone space in the released code; a token that holds it reads as a space there too.
  for (const char32_t c : kept) AppendUtf8(c == 0xe000 ? ' ' : c, key);
  return key;
}

}  // namespace

Tokenizer::CompressedVocab Tokenizer::BuildCompressedVocab() const {
  CompressedVocab vocab;
  std::unordered_map<std::string, int32_t> id_of_key;
  vocab.map.reserve(static_cast<size_t>(vocab_size()));
  for (int id = 0; id < vocab_size(); ++id) {
    const int32_t one[] = {id};
    std::string text = Decode(one);
    std::string key = text.find(kReplacementChar) != std::string::npos ? RawToken(id) : Key(text);
    if (key.empty()) key = std::move(text);
    const auto [at, is_new] = id_of_key.try_emplace(std::move(key), static_cast<int32_t>(id_of_key.size()));
    vocab.map.push_back(at->second);
  }
  vocab.num_ids = static_cast<int64_t>(id_of_key.size());
  return vocab;
}

}  // namespace deepinfer::text
