// SPDX-License-Identifier: Apache-2.0
//
// Any bytes as tokenizer.json: refused with a message, or a tokenizer that encodes and decodes without harm.
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string_view>

#include "text/tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view json(reinterpret_cast<const char*>(data), size);
  const auto tokenizer = deepinfer::text::Tokenizer::FromJsonText(json, "fuzz");
  if (!tokenizer.ok()) {
    if (tokenizer.status().message().rfind("fuzz: ", 0) != 0) std::abort();
    return 0;
  }
  constexpr std::string_view kText = "Hello <a> \xf0\x9f\x98\x80 12345  中文\n\n";
  if ((*tokenizer)->Decode((*tokenizer)->EncodePlain(kText)) != kText) std::abort();
  if ((*tokenizer)->Decode((*tokenizer)->EncodeFull(kText)) != kText) std::abort();
  (*tokenizer)->BuildCompressedVocab();
  return 0;
}
