// SPDX-License-Identifier: Apache-2.0
#include "core/options.h"

#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/file.h"
#include "temporary_dir.h"

namespace deepinfer {
namespace {

using deepinfer::testing::TemporaryDir;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

using Variables = std::map<std::string, std::string, std::less<>>;
using Flags = std::vector<std::pair<std::string, std::string>>;

Result<ResolvedConfig> Resolve(const Flags& flags, const Variables& variables = {}) {
  std::vector<FlagValue> values;
  for (const auto& [name, text] : flags) {
    const OptionSpec* spec = FindOption(name);
    EXPECT_NE(spec, nullptr) << name;
    values.push_back({.spec = spec, .text = text, .shown = "--" + name});
  }
  return ResolveConfig(values, Environment(variables));
}

std::string ErrorOf(const Flags& flags, const Variables& variables = {}) {
  const Result<ResolvedConfig> resolved = Resolve(flags, variables);
  EXPECT_FALSE(resolved.ok());
  if (resolved.ok()) return {};
  EXPECT_EQ(resolved.status().code(), StatusCode::kInvalidArgument);
  return resolved.status().message();
}

TEST(OptionTable, NamesAreUnique) {
  std::set<std::string> flags, environment, keys;
  for (const OptionSpec& spec : OptionTable()) {
    EXPECT_TRUE(flags.insert(spec.flag()).second) << spec.name;
    EXPECT_TRUE(environment.insert(spec.env_name()).second) << spec.name;
    EXPECT_TRUE(keys.insert(spec.file_key()).second) << spec.name;
    for (const auto alias : spec.aliases) EXPECT_TRUE(flags.insert("--" + std::string(alias)).second) << alias;
    for (const auto alias : spec.env_aliases) EXPECT_TRUE(environment.insert(std::string(alias)).second) << alias;
  }
}

TEST(OptionTable, EveryRowIsComplete) {
  for (const OptionSpec& spec : OptionTable()) {
    EXPECT_FALSE(spec.help.empty()) << spec.name;
    EXPECT_FALSE(spec.group.empty()) << spec.name;
    EXPECT_FALSE(spec.commands.empty()) << spec.name;
    EXPECT_EQ(spec.kind == OptionKind::kChoice, !spec.choices.empty()) << spec.name;
    // The default of a choice is one of the choices.
    if (spec.kind == OptionKind::kChoice) {
      EXPECT_THAT(spec.choices, ::testing::Contains(OptionValueText(spec, Config{}))) << spec.name;
    }
  }
}

TEST(OptionTable, ThreeNamesOfOneOption) {
  const OptionSpec* spec = FindOption("max-model-len");
  ASSERT_NE(spec, nullptr);
  EXPECT_EQ(spec->flag(), "--max-model-len");
  EXPECT_EQ(spec->env_name(), "DEEPINFER_MAX_MODEL_LEN");
  EXPECT_EQ(spec->file_key(), "max_model_len");
}

TEST(OptionTable, GroupCoversItsSubcommands) {
  const OptionSpec* model = FindOption("model");
  EXPECT_TRUE(model->AppliesTo("debug logits"));
  EXPECT_FALSE(model->AppliesTo("debugger"));
  EXPECT_FALSE(FindOption("special")->AppliesTo("debug detokenize"));
  EXPECT_TRUE(FindOption("quiet")->AppliesTo("anything"));
}

TEST(ResolveConfig, DefaultsComeFromTheHeader) {
  const Result<ResolvedConfig> resolved = Resolve({});
  ASSERT_TRUE(resolved.ok());
  EXPECT_EQ(resolved->config.model.model, "demo");
  EXPECT_EQ(resolved->config.model.numerics, "release");
  EXPECT_FALSE(resolved->config.sampling.seed.has_value());
  EXPECT_FALSE(resolved->sources.IsSet("model"));
}

TEST(ResolveConfig, FlagOverEnvironmentOverFile) {
  const TemporaryDir dir;
  const std::string path = dir.path() + "/settings.toml";
  ASSERT_TRUE(WriteFileAtomically(path, "threads = 1\nmax_tokens = 11\ntemperature = 0.25\nmodel = \"from-file\"\n").ok());
  const Variables environment = {{"DEEPINFER_CONFIG", path}, {"DEEPINFER_MAX_TOKENS", "22"}, {"DEEPINFER_MODEL", "from-env"}};
  const Result<ResolvedConfig> resolved = Resolve({{"model", "from-flag"}}, environment);
  ASSERT_TRUE(resolved.ok()) << resolved.status().message();
  EXPECT_EQ(resolved->config.model.threads, 1);
  EXPECT_EQ(resolved->config.sampling.max_tokens, 22);
  EXPECT_EQ(resolved->config.model.model, "from-flag");
  EXPECT_EQ(resolved->config.sampling.temperature, 0.25);
  EXPECT_EQ(resolved->sources.Get("threads"), OptionSource::kFile);
  EXPECT_EQ(resolved->sources.Get("max-tokens"), OptionSource::kEnvironment);
  EXPECT_EQ(resolved->sources.Get("model"), OptionSource::kFlag);
}

TEST(ResolveConfig, ConfigFlagWinsOverItsEnvironmentName) {
  const TemporaryDir dir;
  ASSERT_TRUE(WriteFileAtomically(dir.path() + "/a.toml", "threads = 1\n").ok());
  ASSERT_TRUE(WriteFileAtomically(dir.path() + "/b.toml", "threads = 2\n").ok());
  const auto resolved = Resolve({{"config", dir.path() + "/b.toml"}}, {{"DEEPINFER_CONFIG", dir.path() + "/a.toml"}});
  ASSERT_TRUE(resolved.ok());
  EXPECT_EQ(resolved->config.model.threads, 2);
}

TEST(ResolveConfig, MissingConfigFileIsAMissingInputFile) {
  const auto resolved = Resolve({{"config", "/no/such/file.toml"}});
  ASSERT_FALSE(resolved.ok());
  EXPECT_EQ(resolved.status().code(), StatusCode::kBadModel);
  EXPECT_THAT(resolved.status().message(), HasSubstr("/no/such/file.toml"));
}

TEST(ResolveConfig, EnvironmentAliases) {
  auto resolved = Resolve({}, {{"DEEPINFER_HF_MODEL_DIR", "/models/x"}, {"DEEPINFER_ACCELERATOR", "nvidia"}, {"DEEPINFER_CPP_LOG_LEVEL", "error"}});
  ASSERT_TRUE(resolved.ok());
  EXPECT_EQ(resolved->config.model.model, "/models/x");
  EXPECT_EQ(resolved->config.model.device, "cuda");
  EXPECT_EQ(resolved->config.log.level, "error");
  // The plain name wins over the alias; an empty value is no value.
  resolved = Resolve({}, {{"DEEPINFER_HF_MODEL_DIR", "/models/x"}, {"DEEPINFER_MODEL", "/models/y"}});
  EXPECT_EQ(resolved->config.model.model, "/models/y");
  resolved = Resolve({}, {{"DEEPINFER_HF_MODEL_DIR", ""}, {"DEEPINFER_MODEL", ""}});
  EXPECT_EQ(resolved->config.model.model, "demo");
}

TEST(ResolveConfig, BoolsOfTheEnvironment) {
  const std::pair<const char*, bool> cases[] = {{"", false},  {"0", false},   {"false", false}, {"False", false}, {"no", false}, {"OFF", false},
                                                {"1", true},  {"true", true}, {"yes", true},    {"On", true}};
  for (const auto& [text, expected] : cases) {
    const auto resolved = Resolve({}, {{"DEEPINFER_QUIET", text}});
    ASSERT_TRUE(resolved.ok());
    EXPECT_EQ(resolved->config.log.quiet, expected) << text;
  }
  const auto refused = Resolve({}, {{"DEEPINFER_QUIET", "anything"}});
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(refused.status().message(), HasSubstr("DEEPINFER_QUIET is \"anything\" but must be 1, true, yes or on"));
  // The rule of 0.1.0, for the names it had.
  Config config;
  EXPECT_TRUE(SetOption(*FindOption("quiet"), "no", "DEEPINFER_QUIET", true, config).ok());
  EXPECT_TRUE(config.log.quiet);
}

TEST(ResolveConfig, UnknownEnvironmentNameIsAWarningWithASuggestion) {
  const auto resolved = Resolve({}, {{"DEEPINFER_MAX_TOKEN", "5"}, {"OTHER", "x"}});
  ASSERT_TRUE(resolved.ok());
  ASSERT_EQ(resolved->warnings.size(), 1u);
  EXPECT_THAT(resolved->warnings[0], HasSubstr("did you mean DEEPINFER_MAX_TOKENS?"));
}

TEST(ResolveConfig, ListsReplaceThoseOfALowerSource) {
  const TemporaryDir dir;
  const std::string path = dir.path() + "/settings.toml";
  ASSERT_TRUE(WriteFileAtomically(path, "stop = [\"a\", \"b\"]\n").ok());
  auto resolved = Resolve({{"config", path}});
  ASSERT_TRUE(resolved.ok());
  EXPECT_THAT(resolved->config.sampling.stop, ::testing::ElementsAre("a", "b"));
  resolved = Resolve({{"config", path}, {"stop", "x"}, {"stop", "y,z"}});
  EXPECT_THAT(resolved->config.sampling.stop, ::testing::ElementsAre("x", "y,z"));
}

TEST(ResolveConfig, IdsAreParsedAsAList) {
  for (const char* text : {"1,2,3", "[1, 2, 3]", " 1 ,2, 3"}) {
    const auto resolved = Resolve({{"ids", text}});
    ASSERT_TRUE(resolved.ok()) << text;
    EXPECT_THAT(resolved->config.debug.ids, ::testing::ElementsAre(1, 2, 3)) << text;
  }
  EXPECT_THAT(ErrorOf({{"ids", "1,,2"}}), HasSubstr("--ids"));
  EXPECT_THAT(ErrorOf({{"ids", "1,2,"}}), HasSubstr("--ids"));
  EXPECT_THAT(ErrorOf({{"ids", "1,-2"}}), HasSubstr("--ids"));
}

struct BadValue {
  const char* option;
  const char* text;
  const char* message;
};

class AbsurdValues : public ::testing::TestWithParam<BadValue> {};

TEST_P(AbsurdValues, AreRefusedByNameValueAndRange) {
  const auto& [option, text, message] = GetParam();
  const std::string error = ErrorOf({{option, text}});
  EXPECT_THAT(error, HasSubstr("--" + std::string(option)));
  EXPECT_THAT(error, HasSubstr(message));
  EXPECT_THAT(error, Not(HasSubstr("\n")));
  EXPECT_LT(error.size(), 400u);
}

INSTANTIATE_TEST_SUITE_P(Table, AbsurdValues,
                         ::testing::Values(BadValue{"max-tokens", "0", "from 1 to"}, BadValue{"max-tokens", "-5", "from 1 to"},
                                           BadValue{"max-tokens", "99999999999", "from 1 to"},
                                           BadValue{"max-tokens", "999999999999999999999999", "from 1 to"},
                                           BadValue{"max-tokens", "ten", "whole number"}, BadValue{"max-tokens", "1.5", "whole number"},
                                           BadValue{"max-tokens", "", "whole number"}, BadValue{"max-tokens", "5x", "whole number"},
                                           BadValue{"temperature", "nan", "a number"}, BadValue{"temperature", "inf", "a number"},
                                           BadValue{"temperature", "-1", "from 0 to"}, BadValue{"temperature", "1e999", "from 0 to"},
                                           BadValue{"top-p", "0", "above 0 to 1"}, BadValue{"top-p", "1.01", "above 0 to 1"},
                                           BadValue{"top-k", "0", "-1"}, BadValue{"top-k", "-2", "-1"},
                                           BadValue{"min-p", "2", "from 0 to 1"}, BadValue{"effort", "0", "from 1 to 100"},
                                           BadValue{"effort", "101", "from 1 to 100"}, BadValue{"threads", "-1", "from 0 to"},
                                           BadValue{"threads", "1000000", "from 0 to"}, BadValue{"device", "gpu", "cuda:N"},
                                           BadValue{"device", "cuda:", "cuda:N"}, BadValue{"device", "cuda:x", "cuda:N"},
                                           BadValue{"numerics", "fp16", "release, fp32, plain"}, BadValue{"log-level", "loud", "trace"},
                                           BadValue{"quiet", "maybe", "1, true, yes or on, or 0, false, no or off"}, BadValue{"stop", "", "empty"},
                                           BadValue{"model", "", "empty"}, BadValue{"seed", "1e3", "whole number"}));

TEST(ResolveConfig, AllProblemsComeTogether) {
  const std::string error = ErrorOf({{"max-tokens", "0"}, {"top-p", "7"}, {"top-k", "0"}}, {{"DEEPINFER_TEMPERATURE", "hot"}});
  EXPECT_THAT(error, HasSubstr("--max-tokens"));
  EXPECT_THAT(error, HasSubstr("--top-p"));
  EXPECT_THAT(error, HasSubstr("--top-k"));
  EXPECT_THAT(error, HasSubstr("DEEPINFER_TEMPERATURE"));
}

TEST(ResolveConfig, ControlCharactersOfValuesAreEscaped) {
  EXPECT_THAT(ErrorOf({{"numerics", "\033[31mred\n"}}), HasSubstr("\\x1b[31mred\\n"));
}

TEST(ParseConfigText, ReadsKeysOfAllTypes) {
  const auto values = ParseConfigText("model = 'm'\nquiet = true\nseed = -3\ntop_p = 0.5\nstop = 'x'\nids = [1, 2]\n", "f.toml");
  ASSERT_TRUE(values.ok()) << values.status().message();
  Config config;
  for (const FileValue& value : *values) {
    for (const std::string& text : value.texts) ASSERT_TRUE(SetOption(*value.spec, text, value.shown, false, config).ok());
  }
  EXPECT_EQ(config.model.model, "m");
  EXPECT_TRUE(config.log.quiet);
  EXPECT_EQ(config.sampling.seed, -3);
  EXPECT_EQ(config.sampling.top_p, 0.5);
  EXPECT_THAT(config.sampling.stop, ::testing::ElementsAre("x"));
  EXPECT_THAT(config.debug.ids, ::testing::ElementsAre(1, 2));
}

struct BadFile {
  const char* text;
  const char* message;
};

class BadConfigFiles : public ::testing::TestWithParam<BadFile> {};

TEST_P(BadConfigFiles, AreRefusedWithThePlace) {
  const auto& [text, message] = GetParam();
  const auto values = ParseConfigText(text, "f.toml");
  ASSERT_FALSE(values.ok()) << text;
  EXPECT_THAT(values.status().message(), HasSubstr("f.toml"));
  EXPECT_THAT(values.status().message(), HasSubstr(message));
}

INSTANTIATE_TEST_SUITE_P(Table, BadConfigFiles,
                         ::testing::Values(BadFile{"max_token = 5", "did you mean max_tokens?"}, BadFile{"a = ", "f.toml:1"},
                                           BadFile{"threads = 1\n[model]\nx = 1", "model must be a plain value, not a table"},
                                           BadFile{"threads = [1]", "plain value"}, BadFile{"seed = 1979-05-27", "plain value"},
                                           BadFile{"config = 'x'", "cannot be set"}, BadFile{"[nothing]\n", "unknown key nothing"},
                                           BadFile{"stop = [[1]]", "plain values"}, BadFile{"[=\n", "f.toml:1"},
                                           BadFile{"threads = \u03bb%t\n", "f.toml:1"}, BadFile{"\u03bb = 1\n", "f.toml:1"}, BadFile{"x = 1\nx = 2", "f.toml:2"}));

TEST(ParseConfigText, DeepNestingIsRefused) {
  EXPECT_FALSE(ParseConfigText("a = " + std::string(100000, '['), "f.toml").ok());
}

TEST(ParseConfigText, WrongTypeIsReportedOnResolve) {
  const TemporaryDir dir;
  const std::string path = dir.path() + "/settings.toml";
  ASSERT_TRUE(WriteFileAtomically(path, "# comment\nthreads = \"many\"\n").ok());
  EXPECT_THAT(ErrorOf({{"config", path}}), HasSubstr("threads (" + path + ":2) is \"many\""));
}

TEST(NearestName, FindsSwapsAndCutNames) {
  const std::vector<std::string> known = {"--temperature", "--top-p", "--top-k", "--seed"};
  EXPECT_EQ(NearestName("--temprature", known), "--temperature");
  EXPECT_EQ(NearestName("--sede", known), "--seed");
  EXPECT_EQ(NearestName("--temp", known), "--temperature");
  EXPECT_THAT(NearestName("--nothing-like-it", known), IsEmpty());
  EXPECT_THAT(NearestName("", known), IsEmpty());
  EXPECT_THAT(NearestName(std::string(100000, 'x'), known), IsEmpty());
}

}  // namespace
}  // namespace deepinfer
