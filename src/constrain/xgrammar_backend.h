// SPDX-License-Identifier: Apache-2.0
//
// The grammar library behind GrammarBackend. Without it (DEEPINFER_XGRAMMAR=OFF) creation fails with kUnimplemented and a
// message that says so; everything else of the program works.
#pragma once

#include <memory>

#include "constrain/grammar.h"
#include "constrain/tokenizer_view.h"
#include "core/status.h"

namespace deepinfer::constrain {

bool HasXgrammar();

// plain serves json, regex, ebnf, choice and lark; tags serves structural tags. num_threads: inside one compilation.
Result<std::shared_ptr<GrammarBackend>> MakeXgrammarBackend(TokenizerView plain, TokenizerView tags, int num_threads = 2);

}  // namespace deepinfer::constrain
