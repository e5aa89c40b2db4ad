// SPDX-License-Identifier: Apache-2.0
//
// From argv to a command, its flags and its positional arguments. CLI11 splits the words; types and ranges belong to the
// option table. Unknown commands and flags are kInvalidArgument with the nearest known name.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "cli/command.h"

namespace deepinfer::cli {

struct CommandLine {
  const Command* command = nullptr;  // null: none given (help or version of the program)
  std::string group;                 // "debug" when help of a group is asked for
  std::vector<FlagValue> flags;
  std::vector<std::string> args;
  bool help = false;
  bool version = false;
};

// `words` without the program's name.
Result<CommandLine> ParseCommandLine(std::span<const std::string> words, std::span<const Command> commands);

// First words of the two-word commands, in order of appearance.
std::vector<std::string> CommandGroups(std::span<const Command> commands);

}  // namespace deepinfer::cli
