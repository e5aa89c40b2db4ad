// SPDX-License-Identifier: Apache-2.0
//
// Backends for tests: over single bytes (ids 0..255, stop ids 256 and 257), and over the released vocabulary.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include "constrain/grammar.h"
#include "constrain/tokenizer_view.h"
#include "constrain/xgrammar_backend.h"
#include "text/tokenizer.h"

namespace deepinfer::constrain {

inline constexpr int kReleasedVocab = 129280;

inline TokenizerView ByteView() {
  TokenizerView view;
  view.vocab_size = 258;
  view.stop_ids = {256, 257};
  for (int i = 0; i < 256; ++i) view.tokens.push_back(std::string(1, static_cast<char>(i)));
  view.tokens.resize(258);
  return view;
}

inline GrammarBackend& ByteBackend() {
  static const auto backend = MakeXgrammarBackend(ByteView(), ByteView());
  return *backend.value();
}

inline const text::Tokenizer& ReleasedTokenizer() {
  static const auto tokenizer = text::Tokenizer::Load(std::string(DEEPINFER_SOURCE_DIR) + "/tests/golden/tokenizer");
  return *tokenizer.value();
}

inline GrammarBackend& ReleasedBackend() {
  static const auto backend = MakeXgrammarBackend(MakeTokenizerView(ReleasedTokenizer(), ViewKind::kPlain, kReleasedVocab),
                                                  MakeTokenizerView(ReleasedTokenizer(), ViewKind::kTags, kReleasedVocab));
  return *backend.value();
}

inline GrammarSpec Spec(GrammarKind kind, std::string text) {
  GrammarSpec spec;
  spec.kind = kind;
  spec.text = std::move(text);
  return spec;
}

inline std::unique_ptr<GrammarMatcher> Matcher(GrammarBackend& backend, const GrammarSpec& spec) {
  const auto grammar = backend.Compile(spec);
  EXPECT_TRUE(grammar.ok()) << grammar.status().ToString() << "\n" << spec.text;
  if (!grammar.ok()) return nullptr;
  auto matcher = (*grammar)->NewMatcher();
  EXPECT_TRUE(matcher.ok()) << matcher.status().ToString();
  return matcher.ok() ? std::move(*matcher) : nullptr;
}

// Where `text` leaves the grammar: its size if nowhere, then *complete tells whether it may end there.
inline size_t MatchedBytes(GrammarMatcher* matcher, std::string_view text, bool* complete = nullptr) {
  size_t at = 0;
  while (at < text.size()) {
    const auto accepted = matcher->AcceptText(text.substr(at, 1));
    EXPECT_TRUE(accepted.ok()) << accepted.status().ToString();
    if (!accepted.ok() || !*accepted) break;
    ++at;
  }
  if (complete != nullptr) *complete = at == text.size() && matcher->IsCompleted();
  return at;
}

inline bool Accepts(const GrammarSpec& spec, std::string_view text) {
  const auto matcher = Matcher(ByteBackend(), spec);
  bool complete = false;
  if (matcher != nullptr) MatchedBytes(matcher.get(), text, &complete);
  return complete;
}

inline bool IsAllowed(const std::vector<uint32_t>& row, int32_t id) {
  return (row[static_cast<size_t>(id) / 32] >> (id % 32) & 1u) != 0;
}

inline std::vector<uint32_t> Row(GrammarMatcher* matcher, int vocab_size) {
  std::vector<uint32_t> row(static_cast<size_t>(MaskWords(vocab_size)));
  const auto result = matcher->Fill(row);
  EXPECT_TRUE(result.ok()) << result.status().ToString();
  return row;
}

}  // namespace deepinfer::constrain
