// SPDX-License-Identifier: Apache-2.0
//
// The program: words -> command and options -> run -> exit code. Every error is one line on stderr: "error: ...".
#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <exception>
#include <new>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "cli/command_line.h"
#include "cli/commands.h"
#include "cli/exit_code.h"
#include "cli/help.h"
#include "cli/version.h"
#include "core/escape.h"
#include "core/log.h"
#include "core/signals.h"
#include "core/terminal.h"

namespace deepinfer::cli {

namespace {

// One line; a long message keeps its end, where the remedy stands.
void PrintError(std::string_view message) {
  const std::string line = "error: " + Escape(message, 8192) + "\n";
  EndStatusLine();
  std::fflush(stdout);
  std::fwrite(line.data(), 1, line.size(), stderr);
}

Result<int> Run(std::span<const std::string> words, Output& out) {
  DI_ASSIGN_OR_RETURN(const CommandLine line, ParseCommandLine(words, Commands()));
  if (line.help) {
    out.Write(line.command != nullptr ? CommandHelp(*line.command)
                                      : (line.group.empty() ? ProgramHelp(Commands()) : GroupHelp(line.group, Commands())));
    return 0;
  }
  const Environment environment = Environment::FromProcess();
  DI_ASSIGN_OR_RETURN(const ResolvedConfig resolved, ResolveConfig(line.flags, environment));
  const Config& config = resolved.config;
  if (line.version) {
    PrintVersion(config.output.json, out);
    return 0;
  }
  if (line.command == nullptr) {
    std::fputs(ProgramHelp(Commands()).c_str(), stderr);
    return InvalidArgument("no command given; try deepinfer chat");
  }
  DI_RETURN_IF_ERROR(InitLogging(config.log.level, config.log.format == "json" ? LogFormat::kJson : LogFormat::kText));
  if (!config.log.quiet) {
    for (const std::string& warning : resolved.warnings) DI_LOG(warn, "{}", warning);
  }
  Invocation invocation{.config = config, .sources = resolved.sources, .environment = environment, .args = line.args, .out = out};
  DI_RETURN_IF_ERROR(line.command->run(invocation));
  return invocation.exit_code;
}

int Main(std::span<const std::string> words) {
  Output out;
  const Result<int> result = Run(words, out);
  const Status written = out.Finish();
  if (!result.ok()) {
    // A reader that has gone is no error of ours, whatever the command made of it.
    if (out.reader_gone()) return 0;
    if (result.status().code() != StatusCode::kCancelled) PrintError(result.status().message());
    return ExitCode(result.status());
  }
  if (!written.ok()) {
    PrintError(written.message());
    return ExitCode(written);
  }
  return *result;
}

}  // namespace

}  // namespace deepinfer::cli

namespace {

// A file opened while one of them is closed would take its number, and logs or results would go into it. Writing to stdout
// still fails.
void OccupyStandardFiles() {
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (::fcntl(fd, F_GETFD) >= 0) continue;
    if (::open("/dev/null", fd == STDERR_FILENO ? O_WRONLY : O_RDONLY) < 0) return;
  }
}

}  // namespace

int main(int argc, char** argv) {
  OccupyStandardFiles();
  deepinfer::InstallSignalHandlers();
  // Exceptions of the standard library (memory) that reach this point become the one line, too.
  try {
    const std::vector<std::string> words(argv + (argc > 0 ? 1 : 0), argv + argc);
    const int code = deepinfer::cli::Main(words);
    return code;
  } catch (const std::bad_alloc&) {
    std::fputs("error: not enough memory; close other programs, lower --max-model-len or use a machine with more\n", stderr);
  } catch (const std::exception& error) {
    const std::string text = "error: internal: " + deepinfer::Escape(error.what(), 1024) + "\n";
    std::fputs(text.c_str(), stderr);
  }
  return 1;
}
