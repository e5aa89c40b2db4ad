// SPDX-License-Identifier: Apache-2.0
//
// JSON schemas before the grammar library sees them. It takes an allOf of several entries for "any value": here they are
// merged into one schema where that is possible. Patterns get their nested repetitions reduced. Keywords that the library
// ignores are listed, so that one log line can say what a schema does not enforce.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "constrain/grammar.h"
#include "core/status.h"

namespace deepinfer::constrain {

struct PreparedText {
  std::string text;
  std::vector<std::string> warnings;  // keywords without effect, each once, in order of appearance
};

// kInvalidArgument when the entries of an allOf contradict each other; names the keyword.
Result<PreparedText> PrepareSchema(std::string_view schema_text);
// The same for every schema and regex inside of a structural tag.
Result<PreparedText> PrepareStructuralTag(std::string_view tag_text);

}  // namespace deepinfer::constrain
