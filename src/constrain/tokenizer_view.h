// SPDX-License-Identifier: Apache-2.0
//
// What a grammar sees of the vocabulary. Control tokens are blank there, whatever their text: their spelling is legal
// content of a JSON string, so a grammar over the raw vocabulary would let a model write them. The flag "special" of the
// vocabulary file does not tell; the list of added tokens does.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/status.h"
#include "text/tokenizer.h"

namespace deepinfer::constrain {

struct TokenizerView {
  int vocab_size = 0;                // the width of a row of logits
  std::vector<std::string> tokens;   // [vocab_size] bytes of a token; empty = never allowed
  std::vector<int32_t> stop_ids;     // allowed where the grammar is complete; either one ends it
};

// kPlain (json, regex, ebnf, choice) blanks every added token. kTags (structural tags) keeps those that a turn of the model
// consists of: <think>, </think>, the DSML mark and the grounding tokens.
enum class ViewKind { kPlain, kTags };

// logit_width: vocab_size of the model's configuration; ids without a token are blank. The stop ids are the end token and
// <|EOT|>, as far as the vocabulary has them, and `extra_stop_ids` (the model's own end token).
TokenizerView MakeTokenizerView(const text::Tokenizer& tokenizer, ViewKind kind, int logit_width,
                                const std::vector<int32_t>& extra_stop_ids = {});

}  // namespace deepinfer::constrain
