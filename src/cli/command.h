// SPDX-License-Identifier: Apache-2.0
//
// A command of the program: one file per command in cli/commands/NAME.cc that defines a factory `Command NameCommand()`,
// declared and listed in cli/commands.h and cli/commands.cc (an explicit list: a linker never drops it).
// A command reads its options from `invocation.config` (core/config.h; its rows in core/option_table.cc name the command),
// its positional arguments from `invocation.args`, prints results through `invocation.out` and returns a Status.
// Exit codes: OK 0, kInvalidArgument 2, kBadModel 3, kCancelled 130, everything else 1; main prints the error line.
#pragma once

#include <string>
#include <vector>

#include "cli/output.h"
#include "core/config.h"
#include "core/config_env.h"
#include "core/options.h"
#include "core/status.h"

namespace deepinfer::cli {

struct Invocation {
  const Config& config;
  const OptionSources& sources;    // where each option's value came from; sources.IsSet("seed")
  const Environment& environment;  // HF_HOME and the like; never call getenv
  std::vector<std::string> args;   // positional arguments, count already checked
  Output& out;                     // stdout; write errors are sticky and reported by main
  int exit_code = 0;               // used when the returned Status is OK
};

struct Command {
  std::string name;     // "generate", "debug logits"; two words make it a subcommand of a group
  std::string summary;  // one line, for --help and the reference page
  std::string usage;    // positional arguments as shown: "[PROMPT]"
  int min_args = 0;
  int max_args = 0;  // -1 = any number
  Status (*run)(Invocation& invocation) = nullptr;
  std::vector<std::string> arg_choices;  // values of the first positional argument, for shell completion
  std::string details;                   // further lines for --help
};

}  // namespace deepinfer::cli
