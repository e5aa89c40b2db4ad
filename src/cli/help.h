// SPDX-License-Identifier: Apache-2.0
//
// Texts made from the option table and the command list: --help, the shell completions, docs/options.md.
#pragma once

#include <span>
#include <string>

#include "cli/command.h"

namespace deepinfer::cli {

std::string ProgramHelp(std::span<const Command> commands);
std::string GroupHelp(const std::string& group, std::span<const Command> commands);
std::string CommandHelp(const Command& command);

// The page docs/options.md.
std::string OptionReference(std::span<const Command> commands);

// shell: bash, zsh or fish.
Result<std::string> CompletionScript(const std::string& shell, std::span<const Command> commands);

}  // namespace deepinfer::cli
