// SPDX-License-Identifier: Apache-2.0
#include "cli/commands.h"

#include <vector>

namespace deepinfer::cli {

std::span<const Command> Commands() {
  static const std::vector<Command> commands = {
      DebugTokenizeCommand(),
      DebugDetokenizeCommand(),
      CompletionCommand(),
  };
  return commands;
}

}  // namespace deepinfer::cli
