// SPDX-License-Identifier: Apache-2.0
//
// The byte-level BPE tokenizer of the model family, read from tokenizer.json (tokenizer.md of the specification): a
// hand-written scanner equal to the three pre-tokenizer regexes, rank-ordered merges, added tokens, and prompt encoding in
// which text from clients can never become a special token. Immutable after Load; safe to share between threads.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/status.h"
#include "core/threads.h"
#include "text/detokenizer.h"

namespace deepinfer::text {

// Half-open byte range of the UTF-8 prompt that the renderer itself wrote as one or more special tokens.
struct SpecialRange {
  size_t begin = 0;
  size_t end = 0;
};

class Tokenizer {
 public:
  // Errors are kBadModel and name the file.
  static Result<std::unique_ptr<Tokenizer>> Load(const std::string& model_dir);
  static Result<std::unique_ptr<Tokenizer>> FromJsonText(std::string_view json_text, const std::string& origin);
  ~Tokenizer();

  // Ids 0..vocab_size()-1, added tokens included.
  int vocab_size() const;
  // -1 if `content` is no added token.
  int FindAddedToken(std::string_view content) const;
  bool IsAddedToken(int id) const;
  bool IsSpecial(int id) const;  // the "special" flag of the file; matters for skip_special only
  // Bytes of one token (added token: its content). Empty for ids out of range.
  std::string_view TokenBytes(int id) const;
  // The spelling of the vocabulary file (byte-level alphabet), needed by the Engram token map.
  std::string RawToken(int id) const;

  // Text without added tokens (plain) or with added tokens matched atomically (full vocabulary). Ill-formed UTF-8 is
  // replaced by U+FFFD; *replaced tells. With a pool, long text is cut at safe points and encoded in parallel; the result
  // is the same for any number of threads.
  std::vector<int32_t> EncodePlain(std::string_view text, ThreadPool* pool = nullptr, bool* replaced = nullptr) const;
  std::vector<int32_t> EncodeFull(std::string_view text, ThreadPool* pool = nullptr, bool* replaced = nullptr) const;
  // A rendered prompt: the ranges are special tokens, everything between them is plain text. kInternal if a range is not
  // the content of an added token.
  Result<std::vector<int32_t>> EncodePrompt(std::string_view prompt, std::span<const SpecialRange> ranges,
                                            ThreadPool* pool = nullptr) const;

  std::string Decode(std::span<const int32_t> ids, bool skip_special = false) const;

  // Engram: raw id -> compressed id for ids 0..vocab_size()-1 (checkpoint.md 5.3), and the number of distinct ids.
  struct CompressedVocab {
    std::vector<int32_t> map;
    int64_t num_ids = 0;
  };
  CompressedVocab BuildCompressedVocab() const;

 private:
  Tokenizer();
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace deepinfer::text
