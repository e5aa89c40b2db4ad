// SPDX-License-Identifier: Apache-2.0
#include "cli/help.h"

#include <algorithm>
#include <vector>

#include <fmt/format.h>

#include "cli/command_line.h"

namespace deepinfer::cli {

namespace {

constexpr size_t kTextColumn = 30;
constexpr size_t kWidth = 110;

void AppendWrapped(std::string_view text, size_t indent, std::string& out) {
  size_t column = indent;
  bool first = true;
  while (!text.empty()) {
    const size_t blank = text.find(' ');
    const std::string_view word = text.substr(0, blank);
    if (!first && column + 1 + word.size() > kWidth) {
      out += "\n" + std::string(indent, ' ');
      column = indent;
      first = true;
    }
    if (!first) {
      out += ' ';
      ++column;
    }
    out += word;
    column += word.size();
    first = false;
    if (blank == std::string_view::npos) break;
    text.remove_prefix(blank + 1);
  }
  out += '\n';
}

std::string FlagText(const OptionSpec& spec) {
  const std::string value = OptionValueName(spec);
  return "--" + std::string(spec.name) + (value.empty() ? "" : " " + value);
}

std::string HelpText(const OptionSpec& spec) {
  std::string text(spec.help);
  const std::string default_text = OptionDefaultText(spec);
  if (!default_text.empty()) text += fmt::format(" (default {})", default_text);
  return text;
}

std::string EnvNames(const OptionSpec& spec) {
  std::string text = spec.env_name();
  for (const std::string_view alias : spec.env_aliases) text += fmt::format(", {}", alias);
  return text;
}

void AppendOption(const OptionSpec& spec, std::string& out) {
  const std::string flag = "  " + FlagText(spec);
  out += flag;
  if (flag.size() + 2 > kTextColumn) {
    out += "\n" + std::string(kTextColumn, ' ');
  } else {
    out += std::string(kTextColumn - flag.size(), ' ');
  }
  AppendWrapped(HelpText(spec), kTextColumn, out);
  out += std::string(kTextColumn, ' ');
  AppendWrapped(fmt::format("[{}; {}]", EnvNames(spec), spec.file_key()), kTextColumn, out);
}

// The groups of the options of `command`, in table order.
std::vector<std::string_view> Groups(std::string_view command) {
  std::vector<std::string_view> groups;
  for (const OptionSpec& spec : OptionTable()) {
    if (!spec.AppliesTo(command)) continue;
    if (std::find(groups.begin(), groups.end(), spec.group) == groups.end()) groups.push_back(spec.group);
  }
  return groups;
}

void AppendCommandLine(const Command& command, std::string& out) {
  const std::string head = fmt::format("  {}{}{}", command.name, command.usage.empty() ? "" : " ", command.usage);
  out += head;
  if (head.size() + 2 > kTextColumn) {
    out += "\n" + std::string(kTextColumn, ' ');
  } else {
    out += std::string(kTextColumn - head.size(), ' ');
  }
  AppendWrapped(command.summary, kTextColumn, out);
}

std::string MarkdownCell(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '|') out += '\\';
    out += c;
  }
  return out;
}

}  // namespace

std::string ProgramHelp(std::span<const Command> commands) {
  std::string out =
      "Usage: deepinfer COMMAND [options]\n\n"
      "Runs DeepSeek-V4.1-Flash. Try: deepinfer chat, or deepinfer generate \"Hello\".\n\nCommands\n";
  for (const Command& command : commands) AppendCommandLine(command, out);
  out +=
      "\nOptions of every command\n"
      "  -h, --help                  what a command does and its options: deepinfer COMMAND --help\n"
      "  --version [--json]          version, commit, compiler, backends built in, CPU path chosen\n";
  for (const OptionSpec& spec : OptionTable()) {
    if (spec.commands == "*") AppendOption(spec, out);
  }
  out +=
      "\nExit codes: 0 done, 1 the work failed, 2 wrong usage, 3 model or input file missing, damaged or unsupported,\n"
      "130 interrupted. Results go to stdout, messages to stderr.\n";
  return out;
}

std::string GroupHelp(const std::string& group, std::span<const Command> commands) {
  std::string out = fmt::format("Usage: deepinfer {} COMMAND [options]\n\nCommands\n", group);
  for (const Command& command : commands) {
    if (command.name.starts_with(group + " ")) AppendCommandLine(command, out);
  }
  out += fmt::format("\nOptions: deepinfer {} COMMAND --help\n", group);
  return out;
}

std::string CommandHelp(const Command& command) {
  std::string out = fmt::format("Usage: deepinfer {}{}{} [options]\n\n", command.name, command.usage.empty() ? "" : " ", command.usage);
  out += command.summary + "\n";
  if (!command.details.empty()) out += "\n" + command.details + "\n";
  for (const std::string_view group : Groups(command.name)) {
    out += fmt::format("\n{}\n", group);
    for (const OptionSpec& spec : OptionTable()) {
      if (spec.group == group && spec.AppliesTo(command.name)) AppendOption(spec, out);
    }
  }
  out +=
      "\nIn brackets: the environment name and the key of the --config file. A flag wins over the environment, the\n"
      "environment over the file. A switch --x is turned off by --no-x.\n";
  return out;
}

std::string OptionReference(std::span<const Command> commands) {
  std::string out =
      "<!-- Generated by `deepinfer completion reference`; change src/core/option_table.cc instead. -->\n"
      "# Options\n\n"
      "Every option is a flag, an environment variable and a key of the TOML file named by `--config`. Order: default <\n"
      "file < environment < flag. A switch `--x` is turned off by `--no-x`; in the environment a switch is on for `1`,\n"
      "`true`, `yes`, `on`, off for `0`, `false`, `no`, `off`, and an empty value counts as not set. Switches that 0.1.0 had\n"
      "(`DEEPINFER_BATCH_INVARIANT`, `DEEPINFER_DETERMINISTIC` and the like) are off for an empty value, `0`, `false` and `False` and on for anything\n"
      "else. Unknown flags and keys are errors that name the nearest known one.\n\n## Commands\n\n| command | what it does |\n|---|---|\n";
  for (const Command& command : commands) {
    out += fmt::format("| `{}{}{}` | {} |\n", command.name, command.usage.empty() ? "" : " ", MarkdownCell(command.usage),
                       MarkdownCell(command.summary));
  }
  std::vector<std::string_view> groups;
  for (const OptionSpec& spec : OptionTable()) {
    if (std::find(groups.begin(), groups.end(), spec.group) == groups.end()) groups.push_back(spec.group);
  }
  for (const std::string_view group : groups) {
    out += fmt::format("\n## {}\n\n| flag | environment | key | default | what it does | commands |\n|---|---|---|---|---|---|\n", group);
    for (const OptionSpec& spec : OptionTable()) {
      if (spec.group != group) continue;
      std::string env = fmt::format("`{}`", spec.env_name());
      for (const std::string_view alias : spec.env_aliases) env += fmt::format(", `{}`", alias);
      const bool has_flag = spec.commands != kNoCommand;
      const std::string_view shown_commands = spec.commands == "*" ? "all" : has_flag ? spec.commands : "no flag";
      std::string applies(shown_commands);
      for (size_t at = applies.find(','); at != std::string::npos; at = applies.find(',', at + 2)) applies.insert(at + 1, " ");
      const std::string default_text = spec.is_bool() && spec.default_text.empty() ? "off" : OptionDefaultText(spec);
      std::string flag;
      if (has_flag) flag = fmt::format("`{}`", MarkdownCell(FlagText(spec)));
      out += fmt::format("| {} | {} | `{}` | {} | {} | {} |\n", flag, env, spec.file_key(),
                         MarkdownCell(default_text), MarkdownCell(spec.help), applies);
    }
  }
  return out;
}

}  // namespace deepinfer::cli
