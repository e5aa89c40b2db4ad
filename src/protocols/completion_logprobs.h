// SPDX-License-Identifier: Apache-2.0
//
// Log probabilities in the form of Completions: four lists of equal length (protocols.md 8).
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "deepinfer/output.h"
#include "text/tokenizer.h"

namespace deepinfer::protocols {

class CompletionLogprobs {
 public:
  // `num_characters`: of the text before the first token.
  CompletionLogprobs(const text::Tokenizer& tokenizer, int num_top, int64_t num_characters)
      : tokenizer_(tokenizer), num_top_(num_top), num_characters_(num_characters) {}

  void Add(const TokenOutput& token);
  // A token of the prompt; `logprob` null if there is none.
  void AddPrompt(int32_t id, const float* logprob);

  // {"text_offset","token_logprobs","tokens","top_logprobs"}
  void Append(std::string& out) const;
  int64_t num_characters() const { return num_characters_; }

 private:
  void Begin(int32_t id);

  const text::Tokenizer& tokenizer_;
  const int num_top_;
  int64_t num_characters_;
  std::string offsets_, values_, tokens_, tops_;
};

}  // namespace deepinfer::protocols
