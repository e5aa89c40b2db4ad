// SPDX-License-Identifier: Apache-2.0
//
// completion: scripts for shells, and the option reference page (for docs/options.md).
#include "cli/commands.h"
#include "cli/help.h"

namespace deepinfer::cli {

namespace {

Status RunCompletion(Invocation& invocation) {
  if (invocation.args[0] == "reference") {
    invocation.out.Write(OptionReference(Commands()));
    return Status::Ok();
  }
  DI_ASSIGN_OR_RETURN(const std::string script, CompletionScript(invocation.args[0], Commands()));
  invocation.out.Write(script);
  return Status::Ok();
}

}  // namespace

Command CompletionCommand() {
  return {.name = "completion",
          .summary = "shell completion script, or the option reference page as Markdown",
          .usage = "bash|zsh|fish|reference",
          .min_args = 1,
          .max_args = 1,
          .run = RunCompletion,
          .arg_choices = {"bash", "zsh", "fish", "reference"},
          .details = "bash: source <(deepinfer completion bash)    fish: deepinfer completion fish | source"};
}

}  // namespace deepinfer::cli
