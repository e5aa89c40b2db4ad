// SPDX-License-Identifier: Apache-2.0
#include "cli/command_line.h"

#include <algorithm>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cli/commands.h"
#include "cli/help.h"
#include "core/file.h"

namespace deepinfer::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

using Words = std::vector<std::string>;

CommandLine Parse(const Words& words) {
  Result<CommandLine> line = ParseCommandLine(words, Commands());
  EXPECT_TRUE(line.ok()) << line.status().message();
  return line.ok() ? std::move(line).value() : CommandLine{};
}

std::string ErrorOf(const Words& words) {
  const Result<CommandLine> line = ParseCommandLine(words, Commands());
  EXPECT_FALSE(line.ok());
  if (line.ok()) return {};
  EXPECT_EQ(line.status().code(), StatusCode::kInvalidArgument);
  return line.status().message();
}

Words FlagTexts(const CommandLine& line) {
  Words out;
  for (const FlagValue& flag : line.flags) out.push_back(flag.shown + "=" + flag.text);
  return out;
}

TEST(ParseCommandLine, CommandOptionsAndArguments) {
  const CommandLine line = Parse({"generate", "--max-tokens", "5", "--top-p=0.5", "a prompt", "--json"});
  ASSERT_NE(line.command, nullptr);
  EXPECT_EQ(line.command->name, "generate");
  EXPECT_THAT(line.args, ElementsAre("a prompt"));
  EXPECT_THAT(FlagTexts(line), ::testing::UnorderedElementsAre("--max-tokens=5", "--top-p=0.5", "--json=true"));
}

TEST(ParseCommandLine, ValuesAreTakenAsTheyAre) {
  for (const char* value : {"-1", "--json", "", "{}", "[]", "a=b", "x y", "'q'", "\"", "%%", "\xff"}) {
    const CommandLine line = Parse({"generate", "--system", value, "p"});
    ASSERT_EQ(line.flags.size(), 1u) << value;
    EXPECT_EQ(line.flags[0].text, value);
    EXPECT_THAT(line.args, ElementsAre("p"));
  }
  EXPECT_EQ(Parse({"generate", "--system=a=b"}).flags[0].text, "a=b");
}

TEST(ParseCommandLine, ArgumentsAreTakenAsTheyAre) {
  for (const char* value : {"", "{}", "[]", "[1, 2]", "++", "generate", "--", "-x", "-", "/x", "a,b"}) {
    EXPECT_THAT(Parse({"generate", "--", value}).args, ElementsAre(value)) << value;
  }
  for (const char* value : {"", "{}", "[]", "[1, 2]", "%%", "-", "/x", "a,b"}) {
    EXPECT_THAT(Parse({"generate", value, "--json"}).args, ElementsAre(value)) << value;
  }
}

TEST(ParseCommandLine, ListFlagsMayBeRepeated) {
  const CommandLine line = Parse({"generate", "--stop", "a,b", "--stop", "c", "prompt"});
  EXPECT_THAT(FlagTexts(line), ElementsAre("--stop=a,b", "--stop=c"));
  EXPECT_THAT(line.args, ElementsAre("prompt"));
}

TEST(ParseCommandLine, SwitchesCanBeTurnedOff) {
  EXPECT_THAT(FlagTexts(Parse({"chat", "--no-think"})), ElementsAre("--no-think=false"));
  EXPECT_THAT(FlagTexts(Parse({"chat", "--think"})), ElementsAre("--think=true"));
  EXPECT_THAT(FlagTexts(Parse({"chat", "--think=false"})), ElementsAre("--think=false"));
}

TEST(ParseCommandLine, OptionsMayStandBeforeTheCommand) {
  const CommandLine line = Parse({"--quiet", "--log-level", "debug", "debug", "--json", "tokenize", "--special", "none"});
  ASSERT_NE(line.command, nullptr);
  EXPECT_EQ(line.command->name, "debug tokenize");
  EXPECT_EQ(line.flags.size(), 4u);
}

TEST(ParseCommandLine, HelpAndVersion) {
  EXPECT_TRUE(Parse({"--help"}).help);
  EXPECT_TRUE(Parse({"-h"}).help);
  EXPECT_TRUE(Parse({"--version", "--json"}).version);
  EXPECT_TRUE(Parse({"generate", "--bogus", "--help"}).help);
  EXPECT_FALSE(Parse({"generate", "--system", "--help"}).help);
  EXPECT_FALSE(Parse({"generate", "--", "--help"}).help);
  EXPECT_EQ(Parse({"debug", "--help"}).group, "debug");
  EXPECT_EQ(Parse({}).command, nullptr);
}

struct BadLine {
  Words words;
  const char* message;
};

TEST(ParseCommandLine, MistakesNameTheNearestName) {
  const BadLine cases[] = {
      {{"generat"}, "did you mean generate?"},
      {{"debug", "tokenise"}, "did you mean debug tokenize?"},
      {{"debug"}, "needs a subcommand"},
      {{"xyzzyplugh"}, "deepinfer --help"},
      {{"generate", "--max-token", "5"}, "did you mean --max-tokens?"},
      {{"generate", "--no-strem"}, "unknown option --no-strem"},
      {{"generate", "-x"}, "unknown option -x"},
      {{"generate", "--skip-special"}, "no option of generate"},
      {{"generate", "--seed"}, "--seed needs a value"},
      {{"generate", "a", "b"}, "quote text with blanks"},
      {{"completion"}, "needs bash|zsh|fish"},
      {{"completion", "tcsh"}, "does not know \"tcsh\""},
      {{"completion", "bash", "extra"}, "at most 1 argument"},
      {{"doctor", "now"}, "takes no argument"},
      {{"gene\033[31mrate"}, "\\x1b"},
      {{std::string("a\0b", 3)}, "zero byte"},
  };
  for (const BadLine& one : cases) EXPECT_THAT(ErrorOf(one.words), HasSubstr(one.message)) << one.words[0];
}

TEST(Commands, AreCompleteAndUnique) {
  std::vector<std::string> names;
  for (const Command& command : Commands()) {
    EXPECT_NE(command.run, nullptr) << command.name;
    EXPECT_FALSE(command.summary.empty()) << command.name;
    EXPECT_THAT(names, ::testing::Not(::testing::Contains(command.name)));
    names.push_back(command.name);
  }
}

TEST(Commands, EveryOptionRowNamesKnownCommands) {
  for (const OptionSpec& spec : OptionTable()) {
    std::string_view rest = spec.commands;
    while (!rest.empty() && rest != "*" && rest != kNoCommand) {
      const std::string one(rest.substr(0, rest.find(',')));
      rest = rest.size() > one.size() ? rest.substr(one.size() + 1) : std::string_view();
      const bool known = std::any_of(Commands().begin(), Commands().end(), [&](const Command& command) {
        return command.name == one || command.name.starts_with(one + " ");
      });
      EXPECT_TRUE(known) << spec.name << " names the command " << one;
    }
  }
}

TEST(Help, ShowsAllThreeNames) {
  for (const Command& command : Commands()) {
    if (command.name != "generate") continue;
    const std::string help = CommandHelp(command);
    for (const char* text : {"--max-tokens N", "DEEPINFER_MAX_TOKENS; max_tokens", "DEEPINFER_HF_MODEL_DIR", "Sampling\n"}) {
      EXPECT_THAT(help, HasSubstr(text));
    }
  }
}

TEST(Help, ReferencePageIsCurrent) {
  const std::string path = std::string(DEEPINFER_SOURCE_DIR) + "/docs/options.md";
  const Result<std::string> page = ReadFile(path, 1 << 22);
  ASSERT_TRUE(page.ok()) << page.status().message();
  EXPECT_TRUE(*page == OptionReference(Commands()))
      << "docs/options.md is not current; run: deepinfer completion reference > docs/options.md";
}

}  // namespace
}  // namespace deepinfer::cli
