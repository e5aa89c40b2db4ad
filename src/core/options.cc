// SPDX-License-Identifier: Apache-2.0
#include "core/options.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <type_traits>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "core/escape.h"
#include "core/number_list.h"
#include "core/file.h"

namespace deepinfer {

namespace {

std::string Replaced(std::string_view text, char from, char to) {
  std::string out(text);
  std::replace(out.begin(), out.end(), from, to);
  return out;
}

std::string_view Trim(std::string_view text) {
  const auto blank = [](char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; };
  while (!text.empty() && blank(text.front())) text.remove_prefix(1);
  while (!text.empty() && blank(text.back())) text.remove_suffix(1);
  return text;
}

std::string RangeText(const OptionSpec& spec) {
  const bool has_min = std::isfinite(spec.min);
  const bool has_max = std::isfinite(spec.max);
  if (has_min && has_max) {
    return fmt::format("{} {} to {}", spec.min_exclusive ? "above" : "from", spec.min, spec.max);
  }
  if (has_min) return fmt::format("{} {}", spec.min_exclusive ? "above" : "at least", spec.min);
  if (has_max) return fmt::format("at most {}", spec.max);
  return {};
}

bool InRange(const OptionSpec& spec, double value) {
  return (spec.min_exclusive ? value > spec.min : value >= spec.min) && value <= spec.max;
}

Status OutOfRange(const OptionSpec& spec, std::string_view shown, std::string_view text) {
  return InvalidArgument(fmt::format("{} is {} but must be {}", shown, Escape(text, 64), RangeText(spec)), std::string(spec.name));
}

Status NotA(const OptionSpec& spec, std::string_view shown, std::string_view text, std::string_view what) {
  const std::string range = RangeText(spec);
  return InvalidArgument(
      fmt::format("{} is \"{}\" but must be {}{}{}", shown, Escape(text, 64), what, range.empty() ? "" : " ", range),
      std::string(spec.name));
}

Result<int64_t> ParseInt(const OptionSpec& spec, std::string_view text, std::string_view shown) {
  int64_t value = 0;
  const std::string_view trimmed = Trim(text);
  const char* begin = trimmed.data() + (trimmed.size() > 1 && trimmed[0] == '+' && trimmed[1] != '-' ? 1 : 0);
  const char* end = trimmed.data() + trimmed.size();
  const auto [stop, error] = std::from_chars(begin, end, value);
  if (error == std::errc::result_out_of_range && stop == end) {
    if (RangeText(spec).empty()) return NotA(spec, shown, text, "a whole number of at most 64 bits");
    return OutOfRange(spec, shown, text);
  }
  if (error != std::errc() || stop != end) return NotA(spec, shown, text, "a whole number");
  if (!InRange(spec, static_cast<double>(value))) return OutOfRange(spec, shown, text);
  return value;
}

Result<double> ParseFloat(const OptionSpec& spec, std::string_view text, std::string_view shown) {
  double value = 0;
  const std::string_view trimmed = Trim(text);
  const char* begin = trimmed.data() + (trimmed.size() > 1 && trimmed[0] == '+' && trimmed[1] != '-' ? 1 : 0);
  const char* end = trimmed.data() + trimmed.size();
  const auto [stop, error] = std::from_chars(begin, end, value);
  if (error == std::errc::result_out_of_range && stop == end) return OutOfRange(spec, shown, text);
  if (error != std::errc() || stop != end || !std::isfinite(value)) return NotA(spec, shown, text, "a number");
  if (!InRange(spec, value)) return OutOfRange(spec, shown, text);
  return value;
}

Result<bool> ParseBool(const OptionSpec& spec, std::string_view text, std::string_view shown, bool lax) {
  if (lax) return !(text.empty() || text == "0" || text == "false" || text == "False");
  std::string word(Trim(text));
  for (char& c : word) c = static_cast<char>(c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c);
  for (const std::string_view yes : {"true", "1", "yes", "on"}) {
    if (word == yes) return true;
  }
  for (const std::string_view no : {"false", "0", "no", "off"}) {
    if (word == no) return false;
  }
  return NotA(spec, shown, text, "1, true, yes or on, or 0, false, no or off");
}

Result<std::vector<int64_t>> ParseIntList(const OptionSpec& spec, std::string_view text, std::string_view shown) {
  std::string_view rest = Trim(text);
  if (rest.size() >= 2 && rest.front() == '[' && rest.back() == ']') rest = Trim(rest.substr(1, rest.size() - 2));
  std::vector<int64_t> values;
  while (!rest.empty()) {
    const size_t comma = rest.find(',');
    DI_ASSIGN_OR_RETURN(const int64_t value, ParseInt(spec, rest.substr(0, comma), shown));
    values.push_back(value);
    if (comma == std::string_view::npos) break;
    rest.remove_prefix(comma + 1);
    if (rest.empty()) return NotA(spec, shown, text, "numbers separated by commas; each");
  }
  return values;
}

Status CheckText(const OptionSpec& spec, std::string_view text, std::string_view shown) {
  if (text.find('\0') != std::string_view::npos) return InvalidArgument(fmt::format("{} contains a zero byte", shown));
  if (spec.kind != OptionKind::kChoice) return Status::Ok();
  if (std::find(spec.choices.begin(), spec.choices.end(), text) != spec.choices.end()) return Status::Ok();
  const std::vector<std::string> known(spec.choices.begin(), spec.choices.end());
  const std::string near = NearestName(text, known);
  return InvalidArgument(fmt::format("{} is \"{}\" but must be one of {}{}", shown, Escape(text, 64), fmt::join(spec.choices, ", "),
                                     near.empty() ? "" : fmt::format("; did you mean {}?", near)),
                         std::string(spec.name));
}

// Optimal string alignment distance: swaps of neighbours count one.
size_t EditDistance(std::string_view a, std::string_view b) {
  std::vector<size_t> before(b.size() + 1);
  std::vector<size_t> previous(b.size() + 1);
  std::vector<size_t> current(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) previous[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    current[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t cost = a[i - 1] == b[j - 1] ? 0 : 1;
      current[j] = std::min({previous[j] + 1, current[j - 1] + 1, previous[j - 1] + cost});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) current[j] = std::min(current[j], before[j - 2] + 1);
    }
    std::swap(before, previous);
    std::swap(previous, current);
  }
  return previous[b.size()];
}

template <typename T>
std::string JoinInts(const std::vector<T>& values) {
  return fmt::format("{}", fmt::join(values, ","));
}

// Names of 0.1.0 and of the build that are no options here; they are left alone without a warning.
constexpr std::array<std::string_view, 11> kForeignNames = {
    "DEEPINFER_CUDA",           "DEEPINFER_ASCEND",     "DEEPINFER_CUDA_ARCHS",
    "DEEPINFER_PYTHON",         "DEEPINFER_TESTS",      "DEEPINFER_BENCH",  "DEEPINFER_FUZZ",
    "DEEPINFER_TEST_TMPDIR",    "DEEPINFER_SANITIZE",   "DEEPINFER_WERROR", "DEEPINFER_EXAMPLES",
};

}  // namespace

std::string OptionSpec::flag() const { return "--" + std::string(name); }

std::string OptionSpec::env_name() const {
  std::string out = "DEEPINFER_";
  for (const char c : name) out.push_back(c == '-' ? '_' : static_cast<char>(c >= 'a' && c <= 'z' ? c - 'a' + 'A' : c));
  return out;
}

std::string OptionSpec::file_key() const { return key.empty() ? Replaced(name, '-', '_') : std::string(key); }

bool OptionSpec::AppliesTo(std::string_view command) const {
  std::string_view rest = commands;
  while (!rest.empty()) {
    const size_t comma = rest.find(',');
    const std::string_view one = rest.substr(0, comma);
    if (one == "*" || one == command) return true;
    if (command.size() > one.size() && command.starts_with(one) && command[one.size()] == ' ' && command != kNoEngineCommand) return true;
    if (comma == std::string_view::npos) break;
    rest.remove_prefix(comma + 1);
  }
  return false;
}

const OptionSpec* FindOption(std::string_view name) {
  for (const OptionSpec& spec : OptionTable()) {
    if (spec.name == name || std::find(spec.aliases.begin(), spec.aliases.end(), name) != spec.aliases.end()) return &spec;
  }
  return nullptr;
}

Status SetOption(const OptionSpec& spec, std::string_view text, std::string_view shown, bool lax_bool, Config& config) {
  return std::visit(
      [&](auto get) -> Status {
        auto& field = get(config);
        using Field = std::remove_reference_t<decltype(field)>;
        if constexpr (std::is_same_v<Field, bool> || std::is_same_v<Field, std::optional<bool>>) {
          DI_ASSIGN_OR_RETURN(field, ParseBool(spec, text, shown, lax_bool));
        } else if constexpr (std::is_same_v<Field, int64_t> || std::is_same_v<Field, std::optional<int64_t>>) {
          DI_ASSIGN_OR_RETURN(field, ParseInt(spec, text, shown));
        } else if constexpr (std::is_same_v<Field, double> || std::is_same_v<Field, std::optional<double>>) {
          DI_ASSIGN_OR_RETURN(field, ParseFloat(spec, text, shown));
        } else if constexpr (std::is_same_v<Field, std::vector<int64_t>>) {
          DI_ASSIGN_OR_RETURN(field, ParseIntList(spec, text, shown));
        } else if constexpr (std::is_same_v<Field, std::vector<std::string>>) {
          DI_RETURN_IF_ERROR(CheckText(spec, text, shown));
          field.emplace_back(text);
        } else {
          DI_RETURN_IF_ERROR(CheckText(spec, text, shown));
          field = std::string(text);
        }
        return Status::Ok();
      },
      spec.field);
}

std::string OptionValueText(const OptionSpec& spec, const Config& config) {
  return std::visit(
      [&](auto get) -> std::string {
        // The accessors take a mutable Config; nothing is written here.
        const auto& field = get(const_cast<Config&>(config));
        using Field = std::remove_cvref_t<decltype(field)>;
        if constexpr (std::is_same_v<Field, bool>) {
          return field ? "true" : "false";
        } else if constexpr (std::is_same_v<Field, std::optional<bool>>) {
          return field ? (*field ? "true" : "false") : "";
        } else if constexpr (std::is_same_v<Field, std::optional<int64_t>> || std::is_same_v<Field, std::optional<double>>) {
          return field ? fmt::format("{}", *field) : "";
        } else if constexpr (std::is_same_v<Field, std::vector<int64_t>> || std::is_same_v<Field, std::vector<std::string>>) {
          return JoinInts(field);
        } else {
          return fmt::format("{}", field);
        }
      },
      spec.field);
}

std::string OptionDefaultText(const OptionSpec& spec) {
  if (!spec.default_text.empty()) return std::string(spec.default_text);
  if (spec.is_bool()) return {};
  return OptionValueText(spec, Config{});
}

std::string OptionValueName(const OptionSpec& spec) {
  if (!spec.value_name.empty()) return std::string(spec.value_name);
  switch (spec.kind) {
    case OptionKind::kBool: return {};
    case OptionKind::kInt: return "N";
    case OptionKind::kFloat: return "X";
    case OptionKind::kText:
    case OptionKind::kTextList: return "TEXT";
    case OptionKind::kFile: return "FILE";
    case OptionKind::kDirectory: return "DIR";
    case OptionKind::kChoice: return fmt::format("{}", fmt::join(spec.choices, "|"));
    case OptionKind::kIntList: return "N,N";
  }
  return {};
}

std::string NearestName(std::string_view name, std::span<const std::string> known) {
  if (name.empty() || name.size() > 64) return {};
  size_t best_distance = std::max<size_t>(2, name.size() / 3) + 1;
  std::string best;
  for (const std::string& candidate : known) {
    const size_t distance = EditDistance(name, candidate);
    if (distance < best_distance) {
      best_distance = distance;
      best = candidate;
    }
  }
  // A name that breaks off ("--temp") is closer to its continuation than the distance says.
  if (best.empty() && name.size() >= 3) {
    for (const std::string& candidate : known) {
      if (candidate.starts_with(name)) return candidate;
    }
  }
  return best;
}

void OptionSources::Set(std::string_view name, OptionSource source, std::string shown) {
  origins_[std::string(name)] = {source, std::move(shown)};
}

OptionSource OptionSources::Get(std::string_view name) const {
  const auto it = origins_.find(name);
  return it == origins_.end() ? OptionSource::kDefault : it->second.source;
}

std::string OptionSources::Shown(std::string_view name) const {
  const auto it = origins_.find(name);
  return it == origins_.end() ? "--" + std::string(name) : it->second.shown;
}

namespace {

void ClearList(const OptionSpec& spec, Config& config) {
  std::visit(
      [&](auto get) {
        auto& field = get(config);
        using Field = std::remove_reference_t<decltype(field)>;
        if constexpr (std::is_same_v<Field, std::vector<int64_t>> || std::is_same_v<Field, std::vector<std::string>>) field.clear();
      },
      spec.field);
}

class Resolver {
 public:
  Resolver(std::span<const FlagValue> flags, const Environment& environment) : flags_(flags), environment_(environment) {}

  Result<ResolvedConfig> Run() {
    DI_RETURN_IF_ERROR(ApplyFile());
    ApplyEnvironment();
    ApplyFlags();
    for (const OptionSpec& spec : OptionTable()) {
      if (spec.has_effect || !resolved_.sources.IsSet(spec.name)) continue;
      resolved_.warnings.push_back(fmt::format("{} has no effect in this version", resolved_.sources.Shown(spec.name)));
    }
    // "nvidia" is the spelling of 0.1.0.
    std::string& device = resolved_.config.model.device;
    if (device.starts_with("nvidia")) device = "cuda" + device.substr(6);
    ValidateConfig(resolved_.config, resolved_.sources, problems_);
    if (!problems_.empty()) return InvalidArgument(fmt::format("{}", fmt::join(problems_, "; ")));
    return std::move(resolved_);
  }

 private:
  void Apply(const OptionSpec& spec, std::string_view text, std::string_view shown, OptionSource source, bool lax_bool) {
    if (resolved_.sources.Get(spec.name) != source) ClearList(spec, resolved_.config);
    resolved_.sources.Set(spec.name, source, std::string(shown));
    const Status status = SetOption(spec, text, shown, lax_bool, resolved_.config);
    if (!status.ok()) problems_.push_back(status.message());
  }

  Status ApplyFile() {
    std::string path = environment_.GetNonEmpty("DEEPINFER_CONFIG").value_or("");
    for (const FlagValue& flag : flags_) {
      if (flag.spec->name == "config") path = flag.text;
    }
    if (path.empty()) return Status::Ok();
    DI_ASSIGN_OR_RETURN(const std::string text, ReadFile(path, int64_t{1} << 22));
    DI_ASSIGN_OR_RETURN(const std::vector<FileValue> values, ParseConfigText(text, path));
    for (const FileValue& value : values) {
      for (const std::string& one : value.texts) Apply(*value.spec, one, value.shown, OptionSource::kFile, false);
      if (value.texts.empty()) ClearList(*value.spec, resolved_.config);
    }
    return Status::Ok();
  }

  void ApplyEnvironment() {
    std::vector<std::string> known;
    for (const OptionSpec& spec : OptionTable()) {
      // The plain name wins over the aliases.
      std::vector<std::string> names = {spec.env_name()};
      names.insert(names.end(), spec.env_aliases.begin(), spec.env_aliases.end());
      bool done = false;
      for (const std::string& name : names) {
        known.push_back(name);
        const std::optional<std::string> value = spec.lax_env_bool ? environment_.Get(name) : environment_.GetNonEmpty(name);
        if (!value || done) continue;
        Apply(spec, *value, name, OptionSource::kEnvironment, spec.lax_env_bool);
        done = true;
      }
    }
    for (const auto& [name, value] : environment_.variables()) {
      if (!name.starts_with("DEEPINFER_") || std::find(known.begin(), known.end(), name) != known.end()) continue;
      if (std::find(kForeignNames.begin(), kForeignNames.end(), name) != kForeignNames.end()) continue;
      const std::string near = NearestName(name, known);
      resolved_.warnings.push_back(fmt::format("environment variable {} is not known and has no effect{}", Escape(name, 64),
                                               near.empty() ? "" : fmt::format("; did you mean {}?", near)));
    }
  }

  void ApplyFlags() {
    for (const FlagValue& flag : flags_) Apply(*flag.spec, flag.text, flag.shown, OptionSource::kFlag, false);
  }

  std::span<const FlagValue> flags_;
  const Environment& environment_;
  ResolvedConfig resolved_;
  std::vector<std::string> problems_;
};

bool IsDevice(std::string_view device) {
  if (device == "auto" || device == "cpu") return true;
  for (const std::string_view kind : {"cuda", "ascend"}) {
    if (device == kind) return true;
    if (!device.starts_with(kind) || device.size() <= kind.size() || device[kind.size()] != ':') continue;
    const std::string_view index = device.substr(kind.size() + 1);
    if (!index.empty() && index.size() <= 3 && std::all_of(index.begin(), index.end(), [](char c) { return c >= '0' && c <= '9'; })) {
      return true;
    }
  }
  return false;
}

}  // namespace

Result<ResolvedConfig> ResolveConfig(std::span<const FlagValue> flags, const Environment& environment) {
  return Resolver(flags, environment).Run();
}

Result<std::vector<int32_t>> ParseIdRanges(std::string_view text, std::string_view shown, int64_t vocab_size) {
  constexpr int64_t kMaxId = std::numeric_limits<int32_t>::max();
  const int64_t end = vocab_size > 0 ? vocab_size : kMaxId;
  std::vector<int32_t> ids;
  std::string_view rest = Trim(text);
  while (!rest.empty()) {
    const size_t comma = rest.find(',');
    const std::string_view item = Trim(rest.substr(0, comma));
    int64_t first = -1, last = -1;
    const auto [stop, error] = std::from_chars(item.data(), item.data() + item.size(), first);
    bool is_valid = error == std::errc() && !item.empty() && item[0] != '-';
    const char* const item_end = item.data() + item.size();
    last = first;
    if (is_valid && stop != item_end) {
      const auto [stop2, error2] = std::from_chars(stop + 1, item_end, last);
      is_valid = *stop == '-' && error2 == std::errc() && stop2 == item_end && last >= first;
    }
    if (!is_valid)
      return InvalidArgument(fmt::format("{} holds \"{}\" but must be token ids and ranges like 3,7-9", shown, Escape(item, 64)),
                             "decode_token_blacklist");
    if (last >= end)
      return InvalidArgument(fmt::format("{} holds token id {} but ids are 0..{}", shown, last, end - 1), "decode_token_blacklist");
    for (int64_t id = first; id <= last && vocab_size > 0; ++id) ids.push_back(static_cast<int32_t>(id));
    if (comma == std::string_view::npos) break;
    rest.remove_prefix(comma + 1);
  }
  return ids;
}

namespace {

void ValidateEngine(const EngineConfig& engine, const OptionSources& sources, std::vector<std::string>& problems) {
  const Result<std::vector<int32_t>> ids = ParseIdRanges(engine.decode_token_blacklist, sources.Shown("decode-token-blacklist"), 0);
  if (!ids.ok()) problems.push_back(ids.status().message());
  if (engine.kv_replay_tokens % 2 != 0)
    problems.push_back(fmt::format("{} is {} but must be even", sources.Shown("kv-replay-tokens"), engine.kv_replay_tokens));
  if (engine.cache_salt.size() > 128)
    problems.push_back(fmt::format("{} has {} bytes but may have at most 128", sources.Shown("cache-salt"), engine.cache_salt.size()));
  // One temperature, or one per draft.
  const auto temperatures = ParseNumberList(engine.dflash_confidence_head_temperature);
  const std::string shown = sources.Shown("dflash-confidence-head-temperature");
  if (!temperatures) {
    problems.push_back(fmt::format("{} is \"{}\" but must be a number or numbers separated by commas", shown,
                                   Escape(engine.dflash_confidence_head_temperature, 64)));
  } else if (temperatures->size() > 1 && engine.num_drafts && static_cast<int64_t>(temperatures->size()) != *engine.num_drafts) {
    problems.push_back(fmt::format("{} has {} numbers but there are {} drafts; give one number or one per draft", shown, temperatures->size(), *engine.num_drafts));
  }
}

// Rules of the settings without effect: their mistakes are found all the same.
void ValidateAccepted(const AcceptedConfig& config, const OptionSources& sources, std::vector<std::string>& problems) {
  if (config.force_imbalance_ratio != 0 && config.force_imbalance_ratio < 1)
    problems.push_back(fmt::format("{} is {} but must be 0 (off) or at least 1", sources.Shown("force-imbalance-ratio"), config.force_imbalance_ratio));
  const int64_t interval = config.expert_rearrangement_step_interval;
  if (interval > 0 && (config.expert_count_window_size < 1 || config.expert_count_window_size > interval))
    problems.push_back(fmt::format("{} is {} but must be in 1..{}, the interval of rearrangements", sources.Shown("expert-count-window-size"),
                                   config.expert_count_window_size, interval));
}

}  // namespace

void ValidateConfig(const Config& config, const OptionSources& sources, std::vector<std::string>& problems) {
  if (!IsDevice(config.model.device)) {
    problems.push_back(
        fmt::format("{} is \"{}\" but must be auto, cpu, cuda, cuda:N, ascend or ascend:N", sources.Shown("device"), Escape(config.model.device, 64)));
  }
  if (config.model.model.empty()) problems.push_back(sources.Shown("model") + " is empty; give a directory, a hub id or demo");
  if (config.sampling.stop.size() > 16) {
    problems.push_back(fmt::format("--stop is given {} times but at most 16 are allowed", config.sampling.stop.size()));
  }
  for (const std::string& stop : config.sampling.stop) {
    if (stop.empty()) problems.push_back(sources.Shown("stop") + " is empty; give the text that ends the output");
  }
  if (config.sampling.top_k == 0) problems.push_back(sources.Shown("top-k") + " is 0 but must be -1 (keep all) or at least 1");
  const int num_grammars = !config.sampling.grammar_regex.empty() + !config.sampling.grammar_json_schema.empty() +
                           !config.sampling.grammar_ebnf.empty();
  if (num_grammars > 1) problems.push_back("--grammar-regex, --grammar-json-schema and --grammar-ebnf exclude each other; keep one");
  ValidateEngine(config.engine, sources, problems);
  ValidateAccepted(config.accepted, sources, problems);
  if (config.debug.trace && config.output.out.empty()) problems.push_back("--trace needs --out FILE to store the tensors in");
  if (config.debug.decode && config.debug.chunk > 1) problems.push_back("--decode and --chunk exclude each other; keep one");
}

}  // namespace deepinfer
