// SPDX-License-Identifier: Apache-2.0
//
// What a grammar may be before it is compiled. Compiling takes time and memory that grow faster than the text; these limits
// are checked in linear time, first.
#pragma once

#include <cstdint>

#include "constrain/grammar.h"
#include "core/status.h"

namespace deepinfer::constrain {

struct GrammarLimits {
  int64_t max_text_bytes = 1 << 20;
  int max_json_depth = 256;
  int64_t max_properties = 5000;    // per object
  int64_t max_optional_properties = 500;  // of all objects: root of the sum of squares; not with any_order
  int64_t max_enum_entries = 10000;
  int64_t max_schema_nodes = 50000;
  int64_t max_regex_bytes = 64 << 10;
  int64_t max_repetition = 100000;
  int64_t max_ebnf_rules = 10000;
};

// kInvalidArgument whose message begins with the limit's name ("grammar limit max_properties: ...").
Status CheckLimits(const GrammarSpec& spec, const GrammarLimits& limits);

}  // namespace deepinfer::constrain
