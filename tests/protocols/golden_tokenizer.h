// SPDX-License-Identifier: Apache-2.0
//
// The released tokenizer, loaded once for all tests of the program.
#pragma once

#include <memory>
#include <string>

#include "core/check.h"
#include "text/tokenizer.h"

namespace deepinfer::protocols {

inline const text::Tokenizer& GoldenTokenizer() {
  static const std::unique_ptr<text::Tokenizer> tokenizer = [] {
    auto loaded = text::Tokenizer::Load(std::string(DEEPINFER_SOURCE_DIR) + "/tests/golden/tokenizer");
    DI_CHECK(loaded.ok()) << loaded.status().ToString();
    return std::move(loaded).value();
  }();
  return *tokenizer;
}

}  // namespace deepinfer::protocols
