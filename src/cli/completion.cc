// SPDX-License-Identifier: Apache-2.0
//
// Completion scripts are static text: every command with its flags and the values of choices, no call back into the
// program, so that completion is instant and works with any version in PATH.
#include <algorithm>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "cli/command_line.h"
#include "cli/help.h"

namespace deepinfer::cli {

namespace {

std::vector<std::string> FlagsOf(const Command& command) {
  std::vector<std::string> flags = {"--help"};
  for (const OptionSpec& spec : OptionTable()) {
    if (spec.AppliesTo(command.name)) flags.push_back(spec.flag());
  }
  return flags;
}

std::vector<std::string> TopWords(std::span<const Command> commands) {
  std::vector<std::string> words;
  for (const Command& command : commands) {
    std::string word = command.name.substr(0, command.name.find(' '));
    if (std::find(words.begin(), words.end(), word) == words.end()) words.push_back(std::move(word));
  }
  return words;
}

std::vector<std::string> SubWords(const std::string& group, std::span<const Command> commands) {
  std::vector<std::string> words;
  for (const Command& command : commands) {
    if (command.name.starts_with(group + " ")) words.push_back(command.name.substr(group.size() + 1));
  }
  return words;
}

std::string Function(const std::string& name) {
  std::string out = name;
  for (char& c : out) {
    if (c == ' ' || c == '-') c = '_';
  }
  return out;
}

// Values after a flag: `flag) words` lines for a case statement, shared by bash and zsh (zsh runs the bash script).
std::string BashScript(std::span<const Command> commands) {
  std::string out =
      "# Shell completion of deepinfer. Load it with: source <(deepinfer completion bash)\n"
      "_deepinfer() {\n"
      "  local cur=\"${COMP_WORDS[COMP_CWORD]}\" prev=\"${COMP_WORDS[COMP_CWORD-1]}\" cmd=\"\" word i\n"
      "  COMPREPLY=()\n"
      "  for ((i = 1; i < COMP_CWORD; i++)); do\n"
      "    word=\"${COMP_WORDS[i]}\"\n"
      "    [[ \"$word\" == -* ]] && continue\n"
      "    case \"$cmd\" in\n";
  out += fmt::format("      '') case \"$word\" in {}) cmd=\"$word\" ;; esac ;;\n", fmt::join(TopWords(commands), "|"));
  for (const std::string& group : CommandGroups(commands)) {
    out += fmt::format("      {}) case \"$word\" in {}) cmd=\"{} $word\" ;; esac ;;\n", group,
                       fmt::join(SubWords(group, commands), "|"), group);
  }
  out += "    esac\n  done\n  case \"$prev\" in\n";
  for (const OptionSpec& spec : OptionTable()) {
    if (spec.kind == OptionKind::kChoice) {
      out += fmt::format("    --{}) mapfile -t COMPREPLY < <(compgen -W \"{}\" -- \"$cur\"); return ;;\n", spec.name,
                         fmt::join(spec.choices, " "));
    } else if (spec.name == "model") {
      out += "    --model) mapfile -t COMPREPLY < <(compgen -W \"demo\" -- \"$cur\"; compgen -d -- \"$cur\"); return ;;\n";
    } else if (spec.name == "device") {
      out += "    --device) mapfile -t COMPREPLY < <(compgen -W \"auto cpu cuda ascend\" -- \"$cur\"); return ;;\n";
    } else if (spec.kind == OptionKind::kFile || spec.kind == OptionKind::kDirectory) {
      out += fmt::format("    --{}) mapfile -t COMPREPLY < <(compgen -{} -- \"$cur\"); return ;;\n", spec.name,
                         spec.kind == OptionKind::kFile ? "f" : "d");
    } else if (!spec.is_bool()) {
      out += fmt::format("    --{}) return ;;\n", spec.name);
    }
  }
  out += "  esac\n  case \"$cmd\" in\n";
  out += fmt::format("    '') mapfile -t COMPREPLY < <(compgen -W \"{} --help --version --json\" -- \"$cur\") ;;\n",
                     fmt::join(TopWords(commands), " "));
  for (const std::string& group : CommandGroups(commands)) {
    out += fmt::format("    {}) mapfile -t COMPREPLY < <(compgen -W \"{} --help\" -- \"$cur\") ;;\n", group,
                       fmt::join(SubWords(group, commands), " "));
  }
  for (const Command& command : commands) {
    std::vector<std::string> words = command.arg_choices;
    for (std::string& flag : FlagsOf(command)) words.push_back(std::move(flag));
    out += fmt::format("    '{}') mapfile -t COMPREPLY < <(compgen -W \"{}\" -- \"$cur\") ;;\n", command.name, fmt::join(words, " "));
  }
  out += "  esac\n}\ncomplete -o default -F _deepinfer deepinfer\n";
  return out;
}

std::string ZshQuote(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '\'') {
      out += "'\\''";
    } else if (c == '[' || c == ']' || c == ':' || c == '\\') {
      out += '\\';
      out += c;
    } else {
      out += c;
    }
  }
  return out;
}

std::string ZshSpec(const OptionSpec& spec) {
  std::string action;
  if (spec.kind == OptionKind::kChoice) {
    action = fmt::format(":value:({})", fmt::join(spec.choices, " "));
  } else if (spec.name == "model") {
    action = ":model:_files -/";
  } else if (spec.kind == OptionKind::kFile) {
    action = ":file:_files";
  } else if (!spec.is_bool()) {
    action = ":value:";
  }
  const bool repeats = spec.kind == OptionKind::kTextList;
  return fmt::format("'{}--{}[{}]{}'", repeats ? "*" : "", spec.name, ZshQuote(spec.help), action);
}

void AppendZshArguments(const Command& command, std::string& out) {
  out += fmt::format("_deepinfer_{}() {{\n  _arguments '--help[show help]'", Function(command.name));
  for (const OptionSpec& spec : OptionTable()) {
    if (spec.AppliesTo(command.name)) out += " \\\n    " + ZshSpec(spec);
  }
  if (!command.arg_choices.empty()) {
    out += fmt::format(" \\\n    '1:argument:({})'", fmt::join(command.arg_choices, " "));
  } else if (command.max_args != 0) {
    out += " \\\n    '*:argument:_files'";
  }
  out += "\n}\n";
}

std::string ZshScript(std::span<const Command> commands) {
  std::string out =
      "#compdef deepinfer\n"
      "# Shell completion of deepinfer. Load it with: source <(deepinfer completion zsh)\n";
  for (const Command& command : commands) AppendZshArguments(command, out);
  const auto append_choice = [&out](const std::string& function, const std::vector<std::pair<std::string, std::string>>& words,
                                    const std::vector<std::pair<std::string, std::string>>& calls) {
    out += fmt::format("{}() {{\n  local -a words_list=(\n", function);
    for (const auto& [word, help] : words) out += fmt::format("    '{}:{}'\n", word, ZshQuote(help));
    out += "  )\n  if (( CURRENT == 2 )); then _describe command words_list; return; fi\n  local word=$words[2]\n  shift words\n  (( CURRENT-- ))\n  case $word in\n";
    for (const auto& [word, call] : calls) out += fmt::format("    {}) {} ;;\n", word, call);
    out += "  esac\n}\n";
  };
  std::vector<std::pair<std::string, std::string>> top, top_calls;
  const std::vector<std::string> groups = CommandGroups(commands);
  for (const std::string& word : TopWords(commands)) {
    std::string help = word + " commands";
    for (const Command& command : commands) {
      if (command.name == word) help = command.summary;
    }
    top.emplace_back(word, help);
    top_calls.emplace_back(word, "_deepinfer_" + Function(word));
  }
  for (const std::string& group : groups) {
    std::vector<std::pair<std::string, std::string>> words, calls;
    for (const Command& command : commands) {
      if (!command.name.starts_with(group + " ")) continue;
      const std::string word = command.name.substr(group.size() + 1);
      words.emplace_back(word, command.summary);
      calls.emplace_back(word, "_deepinfer_" + Function(command.name));
    }
    append_choice("_deepinfer_" + Function(group), words, calls);
  }
  append_choice("_deepinfer", top, top_calls);
  out += "if [ \"$funcstack[1]\" = _deepinfer ]; then _deepinfer \"$@\"; else compdef _deepinfer deepinfer; fi\n";
  return out;
}

std::string FishQuote(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '\'' || c == '\\') out += '\\';
    out += c;
  }
  return out;
}

std::string FishScript(std::span<const Command> commands) {
  std::string out =
      "# Shell completion of deepinfer. Load it with: deepinfer completion fish | source\n"
      "complete -c deepinfer -f\n";
  const std::string top = fmt::format("{}", fmt::join(TopWords(commands), " "));
  for (const std::string& word : TopWords(commands)) {
    std::string help = word + " commands";
    for (const Command& command : commands) {
      if (command.name == word) help = command.summary;
    }
    out += fmt::format("complete -c deepinfer -n 'not __fish_seen_subcommand_from {}' -a {} -d '{}'\n", top, word, FishQuote(help));
  }
  for (const Command& command : commands) {
    const size_t blank = command.name.find(' ');
    const std::string first = command.name.substr(0, blank);
    std::string condition = "__fish_seen_subcommand_from " + first;
    if (blank != std::string::npos) {
      const std::string word = command.name.substr(blank + 1);
      out += fmt::format("complete -c deepinfer -n '__fish_seen_subcommand_from {}; and not __fish_seen_subcommand_from {}' -a {} -d '{}'\n",
                         first, fmt::join(SubWords(first, commands), " "), word, FishQuote(command.summary));
      condition += "; and __fish_seen_subcommand_from " + word;
    }
    for (const std::string& choice : command.arg_choices) out += fmt::format("complete -c deepinfer -n '{}' -a {}\n", condition, choice);
    for (const OptionSpec& spec : OptionTable()) {
      if (!spec.AppliesTo(command.name)) continue;
      std::string value;
      if (spec.kind == OptionKind::kChoice) {
        value = fmt::format(" -x -a '{}'", fmt::join(spec.choices, " "));
      } else if (spec.kind == OptionKind::kFile || spec.name == "model") {
        value = " -r -F";
      } else if (!spec.is_bool()) {
        value = " -x";
      }
      out += fmt::format("complete -c deepinfer -n '{}' -l {}{} -d '{}'\n", condition, spec.name, value, FishQuote(spec.help));
    }
  }
  return out;
}

}  // namespace

Result<std::string> CompletionScript(const std::string& shell, std::span<const Command> commands) {
  if (shell == "bash") return BashScript(commands);
  if (shell == "zsh") return ZshScript(commands);
  if (shell == "fish") return FishScript(commands);
  return InvalidArgument("completion knows bash, zsh and fish");
}

}  // namespace deepinfer::cli
