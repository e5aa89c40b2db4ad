// SPDX-License-Identifier: Apache-2.0
//
// The option table: every setting once, with its flag, environment name, key in the configuration file, range, group and
// help. Flags, environment, file, --help, shell completion and docs/options.md are all made from it.
// Order: default < configuration file < environment < flag.
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "core/config.h"
#include "core/config_env.h"
#include "core/status.h"

namespace deepinfer {

// The field of a Config that a row sets; its type is the option's type.
using OptionField =
    std::variant<bool& (*)(Config&), int64_t& (*)(Config&), double& (*)(Config&), std::string& (*)(Config&),
                 std::vector<std::string>& (*)(Config&), std::vector<int64_t>& (*)(Config&), std::optional<bool>& (*)(Config&),
                 std::optional<int64_t>& (*)(Config&), std::optional<double>& (*)(Config&)>;

// OptionSpec::commands of a row without a flag: environment and configuration file only.
inline constexpr std::string_view kNoCommand = "-";
// It sends requests to a server: of its group's options, which are about engines and models, it has those that name it.
inline constexpr std::string_view kNoEngineCommand = "bench serve";

enum class OptionKind { kBool, kInt, kFloat, kText, kFile, kDirectory, kChoice, kTextList, kIntList };

struct OptionSpec {
  std::string_view name;      // flag without the dashes: "max-tokens"
  std::string_view group;     // heading in --help
  std::string_view commands;  // comma list of command names; a group's name covers its subcommands but kNoEngineCommand; "*" = all
  OptionField field;
  std::string_view help;      // one line: what it does and when to change it
  OptionKind kind = OptionKind::kText;
  std::string_view value_name = {};     // shown in --help; empty = from the kind
  std::vector<std::string_view> choices = {};
  double min = -std::numeric_limits<double>::infinity();
  double max = std::numeric_limits<double>::infinity();
  bool min_exclusive = false;
  std::string_view default_text = {};       // what an unset value means, for --help
  std::vector<std::string_view> aliases = {};      // further flags
  std::vector<std::string_view> env_aliases = {};  // further environment names, full spelling
  std::string_view key = {};                       // key in the file; empty = name with underscores
  // A bool that existed in 0.1.0: in the environment everything but "", 0, false and False means true (engine.md 4).
  bool lax_env_bool = false;
  bool has_effect = true;  // false: read and checked, then ignored in this version

  std::string flag() const;      // "--max-tokens"
  std::string env_name() const;  // "DEEPINFER_MAX_TOKENS"
  std::string file_key() const;  // "max_tokens", "kv.root"
  bool is_bool() const { return kind == OptionKind::kBool; }
  bool AppliesTo(std::string_view command) const;
};

// In the order of --help.
std::span<const OptionSpec> OptionTable();
// By flag name (without dashes) or alias; nullptr when unknown.
const OptionSpec* FindOption(std::string_view name);

// Parses `text` and stores it. Errors name `shown` ("--max-tokens", "DEEPINFER_MAX_TOKENS", "max_tokens in FILE"), the
// value and what is accepted. Bools are 1, true, yes, on or 0, false, no, off; with `lax_bool` everything but "", 0, false and
// False is true.
Status SetOption(const OptionSpec& spec, std::string_view text, std::string_view shown, bool lax_bool, Config& config);
// The current value as text; "" for an unset optional.
std::string OptionValueText(const OptionSpec& spec, const Config& config);
// "(default 0.9)"-style text; "" if there is none worth showing.
std::string OptionDefaultText(const OptionSpec& spec);
std::string OptionValueName(const OptionSpec& spec);

// The known name closest to `name` within a small edit distance; "" if none is close.
std::string NearestName(std::string_view name, std::span<const std::string> known);

enum class OptionSource { kDefault, kFile, kEnvironment, kFlag };

class OptionSources {
 public:
  void Set(std::string_view name, OptionSource source, std::string shown);
  OptionSource Get(std::string_view name) const;
  bool IsSet(std::string_view name) const { return Get(name) != OptionSource::kDefault; }
  // The spelling that set it, for messages: "DEEPINFER_TOP_K", "--top-k", "top_k in FILE". The flag if nothing did.
  std::string Shown(std::string_view name) const;

 private:
  struct Origin {
    OptionSource source = OptionSource::kDefault;
    std::string shown;
  };
  std::map<std::string, Origin, std::less<>> origins_;
};

// One flag as given: the row, the text, and the spelling for messages. A repeated list flag comes several times.
struct FlagValue {
  const OptionSpec* spec = nullptr;
  std::string text;
  std::string shown;
};

struct ResolvedConfig {
  Config config;
  OptionSources sources;
  std::vector<std::string> warnings;  // unknown DEEPINFER_* names, settings without effect
};

// Applies file (from --config or DEEPINFER_CONFIG), environment and flags over the defaults and validates everything;
// all problems come in one message, separated by "; ". kBadModel if the configuration file cannot be read.
Result<ResolvedConfig> ResolveConfig(std::span<const FlagValue> flags, const Environment& environment);

// Rules between fields. `problems` collects one line each.
void ValidateConfig(const Config& config, const OptionSources& sources, std::vector<std::string>& problems);

// Token ids and ranges of them, "3,7-9". Errors begin with `shown`. `vocab_size` 0: any id.
Result<std::vector<int32_t>> ParseIdRanges(std::string_view text, std::string_view shown, int64_t vocab_size);

// The keys and values of a TOML text, flattened ("kv.root"). Errors name `origin`, line and column.
struct FileValue {
  const OptionSpec* spec = nullptr;
  std::vector<std::string> texts;  // several for a list
  std::string shown;
};
Result<std::vector<FileValue>> ParseConfigText(std::string_view text, const std::string& origin);

}  // namespace deepinfer
