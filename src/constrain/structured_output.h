// SPDX-License-Identifier: Apache-2.0
//
// so_args in its three forms: JSON (Python, the wire), StructuredOutput (the public C++ form) and GrammarSpec (what grammars
// are compiled from). All checks are those of ParseSoArgs.
#pragma once

#include <string_view>

#include "constrain/grammar.h"
#include "core/status.h"
#include "deepinfer/sampling_params.h"

namespace deepinfer::constrain {

// Mistakes are in GrammarSpec::invalid.
GrammarSpec GrammarSpecOf(const StructuredOutput& so_args);
StructuredOutput StructuredOutputOf(const GrammarSpec& spec);
Result<StructuredOutput> ParseStructuredOutput(std::string_view so_args_json);

// What an engine without a grammar compiler answers.
inline Status NoStructuredOutput() {
  return Unimplemented("structured outputs are not in this build; leave so_args out, or build with DEEPINFER_XGRAMMAR=ON");
}

}  // namespace deepinfer::constrain
