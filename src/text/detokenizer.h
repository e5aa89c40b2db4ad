// SPDX-License-Identifier: Apache-2.0
//
// Streaming detokenizer (tokenizer.md 6.2): O(1) per token, releases text as soon as it is certain. Text that ends inside a
// character waits from the start of the token in which the character begins; ill-formed bytes print as U+FFFD. Added tokens
// stand alone: bytes on their two sides never join into one character.
#pragma once

#include <cstdint>
#include <string>

namespace deepinfer::text {

class Tokenizer;

// One per stream; not shared between threads. The tokenizer must outlive it.
class Detokenizer {
 public:
  explicit Detokenizer(const Tokenizer& tokenizer, bool skip_special = false);
  // Appends the released text to `out`.
  void Push(int32_t id, std::string& out);
  // The end of the stream: complete characters that were held are released, an incomplete one is dropped. The detokenizer
  // can be used for another stream afterwards.
  void Finish(std::string& out);

 private:
  const Tokenizer& tokenizer_;
  bool skip_special_;
  std::string held_;  // begins at a character border; at most one token and 3 bytes
};

}  // namespace deepinfer::text
