// SPDX-License-Identifier: Apache-2.0
//
// The TOML file of --config. toml++ is compiled here only.
#include <fmt/format.h>

#define TOML_EXCEPTIONS 0
#define TOML_HEADER_ONLY 1
#define TOML_ENABLE_FORMATTERS 0
#include <toml++/toml.h>

#include "core/escape.h"
#include "core/options.h"

namespace deepinfer {

namespace {

class Flattener {
 public:
  explicit Flattener(const std::string& origin) : origin_(origin) {
    for (const OptionSpec& spec : OptionTable()) known_.push_back(spec.file_key());
  }

  Status Table(const toml::table& table, const std::string& prefix) {
    for (const auto& [key, node] : table) {
      const std::string path = prefix.empty() ? std::string(key.str()) : prefix + "." + std::string(key.str());
      if (const toml::table* inner = node.as_table()) {
        if (!IsPrefix(path)) return Unknown(path, node);
        DI_RETURN_IF_ERROR(Table(*inner, path));
        continue;
      }
      DI_RETURN_IF_ERROR(Value(path, node));
    }
    return Status::Ok();
  }

  std::vector<FileValue> Take() { return std::move(values_); }

 private:
  std::string Place(const toml::node& node) const { return fmt::format("{}:{}", origin_, node.source().begin.line); }

  Status Unknown(const std::string& path, const toml::node& node) const {
    const std::string near = NearestName(path, known_);
    return InvalidArgument(fmt::format("{}: unknown key {}{}", Place(node), Escape(path, 64),
                                       near.empty() ? "; docs/options.md lists the keys" : fmt::format("; did you mean {}?", near)));
  }

  bool IsPrefix(const std::string& path) const {
    for (const std::string& key : known_) {
      if (key.size() > path.size() && key.starts_with(path) && key[path.size()] == '.') return true;
    }
    return false;
  }

  static bool ScalarText(const toml::node& node, std::string& out) {
    if (const auto* text = node.as_string()) {
      out = text->get();
    } else if (const auto* flag = node.as_boolean()) {
      out = flag->get() ? "true" : "false";
    } else if (const auto* whole = node.as_integer()) {
      out = fmt::format("{}", whole->get());
    } else if (const auto* real = node.as_floating_point()) {
      out = fmt::format("{}", real->get());
    } else {
      return false;
    }
    return true;
  }

  Status Value(const std::string& path, const toml::node& node) {
    const OptionSpec* found = nullptr;
    for (const OptionSpec& spec : OptionTable()) {
      if (spec.file_key() == path) found = &spec;
    }
    if (found == nullptr) return Unknown(path, node);
    if (found->name == "config") return InvalidArgument(fmt::format("{}: config cannot be set in a configuration file", Place(node)));
    FileValue value{.spec = found, .texts = {}, .shown = fmt::format("{} ({})", path, Place(node))};
    const bool is_list = found->kind == OptionKind::kTextList || found->kind == OptionKind::kIntList;
    std::string text;
    if (const toml::array* array = node.as_array(); array != nullptr && is_list) {
      std::string joined;
      for (const toml::node& item : *array) {
        if (!ScalarText(item, text)) return InvalidArgument(fmt::format("{} must be a list of plain values", value.shown));
        if (found->kind == OptionKind::kTextList) {
          value.texts.push_back(text);
        } else {
          joined += (joined.empty() ? "" : ",") + text;
        }
      }
      if (found->kind == OptionKind::kIntList) value.texts.push_back(joined);
    } else if (ScalarText(node, text)) {
      value.texts.push_back(text);
    } else {
      return InvalidArgument(fmt::format("{} must be a {}plain value", value.shown, is_list ? "list or a " : ""));
    }
    values_.push_back(std::move(value));
    return Status::Ok();
  }

  const std::string& origin_;
  std::vector<std::string> known_;
  std::vector<FileValue> values_;
};

}  // namespace

Result<std::vector<FileValue>> ParseConfigText(std::string_view text, const std::string& origin) {
  // The parser recurses; a file of ours never nests deeply.
  size_t depth = 0;
  for (const char c : text) {
    if (c == '[' || c == '{') ++depth;
    if (c == ']' || c == '}') depth -= depth > 0 ? 1 : 0;
    if (depth > 64) return InvalidArgument(fmt::format("{} nests more than 64 levels; it is no configuration file", origin));
  }
  const toml::parse_result parsed = toml::parse(text, std::string_view(origin));
  if (!parsed) {
    const toml::parse_error& error = parsed.error();
    return InvalidArgument(fmt::format("{}:{}:{}: {}", origin, error.source().begin.line, error.source().begin.column,
                                       Escape(error.description())));
  }
  Flattener flattener(origin);
  DI_RETURN_IF_ERROR(flattener.Table(parsed.table(), ""));
  return flattener.Take();
}

}  // namespace deepinfer
