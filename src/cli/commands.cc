// SPDX-License-Identifier: Apache-2.0
#include "cli/commands.h"

#include <vector>

namespace deepinfer::cli {

std::span<const Command> Commands() {
  static const std::vector<Command> commands = {
      GenerateCommand(),
      ChatCommand(),
      DoctorCommand(),
      DebugTokenizeCommand(),
      DebugDetokenizeCommand(),
      DebugRenderCommand(),
      DebugParseStreamCommand(),
      CompletionCommand(),
  };
  return commands;
}

}  // namespace deepinfer::cli
