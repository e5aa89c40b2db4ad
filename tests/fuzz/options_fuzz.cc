// SPDX-License-Identifier: Apache-2.0
//
// Command line, environment and configuration file. Input: words, one a line; a line "%env" begins NAME=value lines; a
// line "%toml" makes the rest a configuration file.
#include <cstdlib>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "cli/command_line.h"
#include "cli/help.h"

namespace {

using deepinfer::cli::Command;

std::vector<Command> FuzzCommands() {
  const auto run = [](deepinfer::cli::Invocation&) { return deepinfer::Status::Ok(); };
  std::vector<Command> commands;
  for (const char* name : {"generate", "chat", "doctor", "inspect", "debug tokenize", "debug logits", "debug draft", "debug parse-stream",
                           "eval nll", "bench steps"}) {
    Command command;
    command.name = name;
    command.max_args = 1;
    command.run = run;
    commands.push_back(command);
  }
  return commands;
}

// An error is one line of bounded length, whatever the input.
void CheckError(const deepinfer::Status& status) {
  if (status.message().empty() || status.code() == deepinfer::StatusCode::kInternal) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const std::vector<Command> commands = FuzzCommands();
  std::string_view rest(reinterpret_cast<const char*>(data), size);
  std::vector<std::string> words;
  std::map<std::string, std::string, std::less<>> variables;
  bool in_environment = false;
  while (!rest.empty()) {
    const size_t end = rest.find('\n');
    const std::string_view line = rest.substr(0, end);
    rest = end == std::string_view::npos ? std::string_view() : rest.substr(end + 1);
    if (line == "%toml") break;
    if (line == "%env") {
      in_environment = true;
    } else if (!in_environment) {
      words.emplace_back(line);
    } else if (const size_t equals = line.find('='); equals != std::string_view::npos) {
      variables["DEEPINFER_" + std::string(line.substr(0, equals))] = std::string(line.substr(equals + 1));
    }
  }
  // No file of the machine is read.
  variables.erase("DEEPINFER_CONFIG");

  if (const auto values = deepinfer::ParseConfigText(rest, "fuzz.toml"); values.ok()) {
    deepinfer::Config config;
    for (const deepinfer::FileValue& value : *values) {
      for (const std::string& text : value.texts) {
        const deepinfer::Status status = deepinfer::SetOption(*value.spec, text, value.shown, false, config);
        if (!status.ok()) CheckError(status);
      }
    }
  } else {
    CheckError(values.status());
  }

  const auto line = deepinfer::cli::ParseCommandLine(words, commands);
  if (!line.ok()) {
    CheckError(line.status());
    return 0;
  }
  std::vector<deepinfer::FlagValue> flags;
  for (const deepinfer::FlagValue& flag : line->flags) {
    if (flag.spec->name != "config") flags.push_back(flag);
  }
  const auto resolved = deepinfer::ResolveConfig(flags, deepinfer::Environment(variables));
  if (!resolved.ok()) {
    CheckError(resolved.status());
    return 0;
  }
  for (const deepinfer::OptionSpec& spec : deepinfer::OptionTable()) {
    const std::string text = deepinfer::OptionValueText(spec, resolved->config);
    if (text.size() > size + 100) std::abort();
  }
  return 0;
}
