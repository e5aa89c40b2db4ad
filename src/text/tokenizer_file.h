// SPDX-License-Identifier: Apache-2.0
//
// The content of a tokenizer.json, checked: a byte-level BPE model with the pre-tokenizer this project implements. Text is
// kept in two blobs, not in one string a token, because a released file has a quarter of a million of them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/status.h"

namespace deepinfer::text {

// Token ids and merge ranks are packed into 21 bits by the merge table and the piece cache.
inline constexpr int64_t kMaxTokenIds = int64_t{1} << 21;

struct TokenizerFile {
  struct VocabEntry {
    uint32_t begin;  // spelling in vocab_text
    uint32_t length;
    int32_t id;
  };
  struct Merge {
    uint32_t begin;  // left and right spelling, one after the other, in merge_text
    uint32_t left_length;
    uint32_t right_length;
  };
  struct AddedToken {
    int32_t id;
    std::string content;
    bool special;
  };

  std::string vocab_text;
  std::vector<VocabEntry> vocab;  // in the order of the file
  std::string merge_text;
  std::vector<Merge> merges;  // by rank
  std::vector<AddedToken> added_tokens;

  std::string_view Spelling(const VocabEntry& e) const {
    return std::string_view(vocab_text).substr(e.begin, e.length);
  }
  std::string_view Left(const Merge& m) const { return std::string_view(merge_text).substr(m.begin, m.left_length); }
  std::string_view Right(const Merge& m) const {
    return std::string_view(merge_text).substr(m.begin + m.left_length, m.right_length);
  }
  std::string_view Result(const Merge& m) const {
    return std::string_view(merge_text).substr(m.begin, m.left_length + m.right_length);
  }
};

// What to do about a file that is damaged or of another model.
inline constexpr const char* kTokenizerFileRemedy = "fetch the tokenizer.json of the checkpoint again";

// Errors are kBadModel and begin with `origin`. Ids are in [0, kMaxTokenIds); uniqueness is checked by the tokenizer.
deepinfer::Result<TokenizerFile> ParseTokenizerFile(std::string_view json_text, const std::string& origin);

}  // namespace deepinfer::text
