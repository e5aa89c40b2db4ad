// SPDX-License-Identifier: Apache-2.0
#include "cli/command_line.h"

#include <algorithm>

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "core/escape.h"

namespace deepinfer::cli {

namespace {

bool IsFlagWord(std::string_view word) { return word.size() > 1 && word[0] == '-'; }

// The row of "--name" or "--name=value"; null for anything else.
const OptionSpec* OptionOfWord(std::string_view word) {
  if (!word.starts_with("--")) return nullptr;
  return FindOption(word.substr(2, word.find('=') == std::string_view::npos ? word.size() : word.find('=') - 2));
}

// The words of the command, taken out of `words`; flags may stand before them ("deepinfer --quiet generate").
struct CommandWords {
  std::vector<std::string> names;
  std::vector<std::string> rest;
};

bool IsGroup(const std::string& name, std::span<const Command> commands) {
  return std::any_of(commands.begin(), commands.end(), [&](const Command& command) { return command.name.starts_with(name + " "); });
}

CommandWords SplitCommandWords(std::span<const std::string> words, std::span<const Command> commands) {
  CommandWords out;
  bool in_command = true;
  for (size_t i = 0; i < words.size(); ++i) {
    if (in_command && !IsFlagWord(words[i])) {
      const bool wants_more = out.names.empty() || (out.names.size() == 1 && IsGroup(out.names[0], commands));
      // An unknown first word, or second word of a group, is a command name too: it is reported as such.
      if (wants_more && (out.names.empty() || IsGroup(out.names[0], commands))) {
        out.names.push_back(words[i]);
        in_command = out.names.size() == 1 && IsGroup(out.names[0], commands);
        continue;
      }
      in_command = false;
    }
    out.rest.push_back(words[i]);
    if (!in_command) continue;
    const OptionSpec* spec = OptionOfWord(words[i]);
    const bool takes_value = spec != nullptr && !spec->is_bool() && words[i].find('=') == std::string::npos;
    if (takes_value && i + 1 < words.size()) out.rest.push_back(words[++i]);
  }
  return out;
}

// Whether --help stands where an option can stand.
bool AsksForHelp(const std::vector<std::string>& words) {
  for (size_t i = 0; i < words.size() && words[i] != "--"; ++i) {
    if (words[i] == "--help" || words[i] == "-h") return true;
    const OptionSpec* spec = OptionOfWord(words[i]);
    if (spec != nullptr && !spec->is_bool() && words[i].find('=') == std::string::npos) ++i;
  }
  return false;
}

std::string Suggest(std::string_view name, const std::vector<std::string>& known, std::string_view otherwise) {
  const std::string near = NearestName(name, known);
  return near.empty() ? std::string(otherwise) : fmt::format("did you mean {}?", near);
}

Status UnknownCommand(const std::vector<std::string>& names, std::span<const Command> commands) {
  const std::string joined = fmt::format("{}", fmt::join(names, " "));
  std::vector<std::string> known;
  for (const Command& command : commands) known.push_back(command.name);
  for (const std::string& group : CommandGroups(commands)) known.push_back(group);
  return InvalidArgument(fmt::format("unknown command \"{}\"; {}", Escape(joined, 64),
                                     Suggest(joined, known, "run deepinfer --help for the list")));
}

Status UnknownFlag(const std::string& word, const Command& command) {
  const std::string flag = word.substr(0, word.find('='));
  std::string name = flag;
  std::vector<std::string> known = {"--help"};
  for (const OptionSpec& spec : OptionTable()) {
    if (!spec.AppliesTo(command.name)) continue;
    known.push_back(spec.flag());
    if (spec.is_bool()) known.push_back("--no-" + std::string(spec.name));
  }
  // A flag of another command is no spelling mistake.
  if (OptionOfWord(word) != nullptr) {
    return InvalidArgument(fmt::format("{} is no option of {}; see deepinfer {} --help", Escape(flag, 64), command.name, command.name));
  }
  return InvalidArgument(fmt::format("unknown option {}; {}", Escape(flag, 64),
                                     Suggest(name, known, fmt::format("see deepinfer {} --help", command.name))));
}

Status TooManyArgs(const Command& command, const std::vector<std::string>& args) {
  if (command.max_args == 0) {
    return InvalidArgument(fmt::format("{} takes no argument but got \"{}\"", command.name, Escape(args[0], 64)));
  }
  return InvalidArgument(fmt::format("{} takes at most {} argument{} but got {}; quote text with blanks", command.name,
                                     command.max_args, command.max_args == 1 ? "" : "s", args.size()));
}

// One CLI11 application for the options of one command. The callbacks take the raw texts.
class Splitter {
 public:
  Splitter(const Command& command, CommandLine& line) : command_(command), line_(line) {
    app_.set_help_flag();
    app_.add_flag("-h,--help", line_.help);
    app_.add_flag("--version", line_.version);
    for (const OptionSpec& spec : OptionTable()) {
      if (!spec.AppliesTo(command.name)) continue;
      std::vector<std::string> names = {std::string(spec.name)};
      names.insert(names.end(), spec.aliases.begin(), spec.aliases.end());
      for (const std::string& name : names) Add(spec, name);
    }
    // Positional arguments come back as extras: a positional option of CLI11 would take "[a,b]" apart.
    app_.allow_extras();
  }

  Status Parse(std::vector<std::string> words) {
    const std::vector<std::string> literal = TakeLiteralWords(words);
    std::reverse(words.begin(), words.end());  // CLI11 takes them from the back
    try {
      app_.parse(std::move(words));
    } catch (const CLI::ArgumentMismatch& error) {
      return Mismatch(error.what());
    } catch (const CLI::Error& error) {
      return InvalidArgument(Escape(error.what()));
    } catch (const std::exception& error) {
      return InvalidArgument(Escape(error.what()));
    }
    line_.args = app_.remaining();
    for (const std::string& word : line_.args) {
      if (IsFlagWord(word)) return UnknownFlag(word, command_);
    }
    line_.args.insert(line_.args.end(), literal.begin(), literal.end());
    return Status::Ok();
  }

 private:
  // Cuts `words` at the first "--" that is no option's value and returns what follows it.
  static std::vector<std::string> TakeLiteralWords(std::vector<std::string>& words) {
    std::vector<std::string> literal;
    for (size_t i = 0; i < words.size(); ++i) {
      if (words[i] == "--") {
        literal.assign(words.begin() + static_cast<ptrdiff_t>(i) + 1, words.end());
        words.resize(i);
        break;
      }
      const OptionSpec* spec = OptionOfWord(words[i]);
      if (spec != nullptr && !spec->is_bool() && words[i].find('=') == std::string::npos) ++i;
    }
    return literal;
  }

  void Add(const OptionSpec& spec, const std::string& name) {
    const auto take = [this, &spec, name](bool negate) {
      return [this, &spec, name, negate](const CLI::results_t& texts) {
        const std::string shown = "--" + std::string(negate ? "no-" : "") + name;
        for (const std::string& text : texts) {
          const std::string value = !negate ? text : (text == "true" ? "false" : (text == "false" ? "true" : text));
          line_.flags.push_back({.spec = &spec, .text = value, .shown = shown});
        }
        return true;
      };
    };
    if (spec.is_bool()) {
      for (const bool negate : {false, true}) {
        app_.add_option("--" + std::string(negate ? "no-" : "") + name, take(negate))
            ->type_size(0)
            ->expected(0)
            ->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
      }
      return;
    }
    app_.add_option("--" + name, take(false))
        ->type_size(1)
        ->expected(1)
        ->allow_extra_args(false)
        ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  }

  Status Mismatch(const std::string& what) {
    // "--seed: 1 required TEXT missing" and similar: the name stands before the colon.
    const std::string flag = what.substr(0, what.find(':'));
    if (const OptionSpec* spec = OptionOfWord(flag)) {
      return InvalidArgument(fmt::format("{} needs a value: {}", Escape(flag, 64), OptionValueName(*spec)));
    }
    return InvalidArgument(Escape(what));
  }

  const Command& command_;
  CommandLine& line_;
  CLI::App app_;
};

}  // namespace

std::vector<std::string> CommandGroups(std::span<const Command> commands) {
  std::vector<std::string> groups;
  for (const Command& command : commands) {
    const size_t blank = command.name.find(' ');
    if (blank == std::string::npos) continue;
    std::string group = command.name.substr(0, blank);
    if (std::find(groups.begin(), groups.end(), group) == groups.end()) groups.push_back(std::move(group));
  }
  return groups;
}

Result<CommandLine> ParseCommandLine(std::span<const std::string> words, std::span<const Command> commands) {
  for (const std::string& word : words) {
    if (word.find('\0') != std::string::npos) return InvalidArgument("an argument contains a zero byte");
  }
  CommandLine line;
  CommandWords split = SplitCommandWords(words, commands);
  // A group name in front of an unknown second word.
  const std::string joined = fmt::format("{}", fmt::join(split.names, " "));
  for (const Command& command : commands) {
    if (command.name == joined) line.command = &command;
  }
  static const Command kProgram{.name = "deepinfer", .summary = "", .usage = "", .arg_choices = {}, .details = ""};
  if (line.command == nullptr) {
    const bool is_group = split.names.size() == 1 && IsGroup(split.names[0], commands);
    if (!split.names.empty() && !is_group) return UnknownCommand(split.names, commands);
    if (is_group) line.group = split.names[0];
    Splitter splitter(kProgram, line);
    DI_RETURN_IF_ERROR(splitter.Parse(std::move(split.rest)));
    if (!line.help && !line.version && !line.group.empty()) {
      return InvalidArgument(fmt::format("{} needs a subcommand; see deepinfer {} --help", line.group, line.group));
    }
    return line;
  }
  const Command& command = *line.command;
  if (AsksForHelp(split.rest)) {
    line.help = true;  // whatever else is wrong, help is what the user needs
    return line;
  }
  Splitter splitter(command, line);
  DI_RETURN_IF_ERROR(splitter.Parse(std::move(split.rest)));
  if (line.version) return line;
  const int num_args = static_cast<int>(line.args.size());
  if (command.max_args >= 0 && num_args > command.max_args) return TooManyArgs(command, line.args);
  if (num_args < command.min_args) {
    return InvalidArgument(fmt::format("{} needs {}; see deepinfer {} --help", command.name, command.usage, command.name));
  }
  if (num_args > 0 && !command.arg_choices.empty() &&
      std::find(command.arg_choices.begin(), command.arg_choices.end(), line.args[0]) == command.arg_choices.end()) {
    return InvalidArgument(fmt::format("{} does not know \"{}\"; use one of {}", command.name, Escape(line.args[0], 64),
                                       fmt::join(command.arg_choices, ", ")));
  }
  return line;
}

}  // namespace deepinfer::cli
