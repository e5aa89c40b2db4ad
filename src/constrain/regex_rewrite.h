// SPDX-License-Identifier: Apache-2.0
//
// Regexes before they are compiled. A repetition of a repetition of one character or class ("(a+)+", "([a-z]*)*") says what
// a single one says, but the matcher tries every way of dividing the text between the two and needs cubic time and worse.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "core/status.h"

namespace deepinfer::constrain {

// The same language with such nestings reduced ("a+", "[a-z]*"); everything else, and what is no regex, stays as it is.
std::string ReduceNestedRepetition(std::string_view regex);

// Faults that the grammar library reports without a position of the pattern, or after much work: nothing to repeat, bounds
// the wrong way round, groups nested too deeply. "Regex parsing error at position p: ..."; empty = none of these.
std::string FindRegexFault(std::string_view regex);

// The largest number in a repetition "{m,n}" outside of classes; numbers beyond 64 bits count as the largest. Works for
// EBNF too (is_ebnf: string literals are skipped as well).
int64_t LargestRepetition(std::string_view text, bool is_ebnf);

}  // namespace deepinfer::constrain
