// SPDX-License-Identifier: Apache-2.0
//
// The rows of structured outputs: how their grammars are compiled (specification, structured-outputs 8).
#include "core/option_rows.h"

namespace deepinfer {

std::vector<OptionSpec> GrammarRows() {
  using enum OptionKind;
  constexpr std::string_view kAnswers = "generate,chat,serve,batch,bench";
  return {
      {.name = "xgrammar-timeout",
       .group = "Structured outputs",
       .commands = kAnswers,
       .field = DI_FIELD(grammar.xgrammar_timeout),
       .help = "how long a request waits for its grammar to be compiled before it fails",
       .kind = kInt,
       .value_name = "S",
       .min = 1,
       .max = kMaxInt32},
      {.name = "xgrammar-cache-limit-bytes",
       .group = "Structured outputs",
       .commands = kAnswers,
       .field = DI_FIELD(grammar.xgrammar_cache_limit_bytes),
       .help = "memory for compiled grammars that are kept; 0 or less = no limit, which clients can "
               "use to exhaust the memory",
       .kind = kInt,
       .value_name = "BYTES"},
      {.name = "xgrammar-disable-cache",
       .group = "Structured outputs",
       .commands = kAnswers,
       .field = DI_FIELD(grammar.xgrammar_disable_cache),
       .help = "compile the grammar of every request anew",
       .kind = kBool,
       .lax_env_bool = true},
      {.name = "so-builder-cpus",
       .group = "Structured outputs",
       .commands = kAnswers,
       .field = DI_FIELD(grammar.so_builder_cpus),
       .help = "threads that compile grammars; they exist once a request needs one",
       .kind = kInt,
       .min = 1,
       .max = 4096},
  };
}

}  // namespace deepinfer
