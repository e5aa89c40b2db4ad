// SPDX-License-Identifier: Apache-2.0
#include "constrain/limits.h"

#include <algorithm>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "constrain/regex_rewrite.h"

namespace deepinfer::constrain {
namespace {

Status Exceeded(std::string_view name, int64_t found, int64_t limit) {
  return InvalidArgument(fmt::format("grammar limit {}: {} is more than {}", name, found, limit), "so_args.schema");
}

// Depth of brackets outside of strings: before the parser, whose own limit would be reported as broken JSON.
int JsonDepth(std::string_view text) {
  int depth = 0;
  int deepest = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') {
        ++i;
      } else if (c == '"') {
        in_string = false;
      }
    } else if (c == '"') {
      in_string = true;
    } else if (c == '{' || c == '[') {
      deepest = std::max(deepest, ++depth);
    } else if (c == '}' || c == ']') {
      --depth;
    }
  }
  return deepest;
}

Status CheckPattern(std::string_view pattern, const GrammarLimits& limits) {
  const auto bytes = static_cast<int64_t>(pattern.size());
  if (bytes > limits.max_regex_bytes) return Exceeded("max_regex_bytes", bytes, limits.max_regex_bytes);
  const int64_t repetition = LargestRepetition(pattern, false);
  if (repetition > limits.max_repetition) return Exceeded("max_repetition", repetition, limits.max_repetition);
  return Status::Ok();
}

// Optional properties of one object in a fixed order: any of them may follow any other, so they cost their square.
int64_t NumOptional(const Json& object, const Json& properties) {
  const auto required = object.find("required");
  const auto num_required = required != object.end() && required->is_array() ? static_cast<int64_t>(required->size()) : 0;
  return std::max<int64_t>(static_cast<int64_t>(properties.size()) - num_required, 0);
}

// Every object counts as a node, wherever it stands: a bound, not a census.
Status CheckJson(const Json& root, const GrammarSpec& spec, const GrammarLimits& limits) {
  int64_t num_nodes = 0;
  int64_t optional_squares = 0;
  std::vector<const Json*> open = {&root};
  while (!open.empty()) {
    const Json& at = *open.back();
    open.pop_back();
    if (at.is_array()) {
      for (const Json& item : at) {
        if (item.is_structured()) open.push_back(&item);
      }
      continue;
    }
    if (++num_nodes > limits.max_schema_nodes) return Exceeded("max_schema_nodes", num_nodes, limits.max_schema_nodes);
    for (const auto& [key, value] : at.items()) {
      const auto size = static_cast<int64_t>(value.size());
      if (key == "properties" && value.is_object() && size > limits.max_properties) {
        return Exceeded("max_properties", size, limits.max_properties);
      }
      if (key == "enum" && value.is_array() && size > limits.max_enum_entries) {
        return Exceeded("max_enum_entries", size, limits.max_enum_entries);
      }
      if ((key == "pattern" || key == "regex") && value.is_string()) {
        DI_RETURN_IF_ERROR(CheckPattern(value.get_ref<const std::string&>(), limits));
      }
      if (key == "properties" && value.is_object() && spec.kind == GrammarKind::kJsonSchema && !spec.any_order) {
        const int64_t num_optional = NumOptional(at, value);
        optional_squares += num_optional * num_optional;
        if (optional_squares > limits.max_optional_properties * limits.max_optional_properties) {
          return InvalidArgument(
              fmt::format("grammar limit max_optional_properties: properties that are not required, in a fixed order, are worth "
                          "more than {} in one object; name them in required or set any_order", limits.max_optional_properties),
              "so_args.schema");
        }
      }
      if (value.is_structured()) open.push_back(&value);
    }
  }
  return Status::Ok();
}

int64_t CountRules(std::string_view ebnf) {
  int64_t count = 0;
  for (size_t at = ebnf.find("::="); at != std::string_view::npos; at = ebnf.find("::=", at + 3)) ++count;
  return count;
}

}  // namespace

Status CheckLimits(const GrammarSpec& spec, const GrammarLimits& limits) {
  const auto bytes = static_cast<int64_t>(spec.text.size());
  if (bytes > limits.max_text_bytes) return Exceeded("max_text_bytes", bytes, limits.max_text_bytes);
  switch (spec.kind) {
    case GrammarKind::kRegex: return CheckPattern(spec.text, limits);
    case GrammarKind::kEbnf:
    case GrammarKind::kLark: {
      const int64_t rules = spec.kind == GrammarKind::kEbnf ? CountRules(spec.text)
                                                            : std::count(spec.text.begin(), spec.text.end(), '\n') + 1;
      if (rules > limits.max_ebnf_rules) return Exceeded("max_ebnf_rules", rules, limits.max_ebnf_rules);
      const int64_t repetition = LargestRepetition(spec.text, true);
      if (repetition > limits.max_repetition) return Exceeded("max_repetition", repetition, limits.max_repetition);
      return Status::Ok();
    }
    case GrammarKind::kJsonObject: return Status::Ok();
    case GrammarKind::kJsonSchema:
    case GrammarKind::kStructuralTag:
    case GrammarKind::kChoice: break;
  }
  if (const int depth = JsonDepth(spec.text); depth > limits.max_json_depth) {
    return Exceeded("max_json_depth", depth, limits.max_json_depth);
  }
  const Result<Json> json = ParseJson(spec.text, limits.max_json_depth + 1);
  if (!json.ok()) return InvalidArgument(json.status().message(), "so_args.schema");
  if (spec.kind == GrammarKind::kChoice) {
    const auto size = static_cast<int64_t>(json->size());
    if (json->is_array() && size > limits.max_enum_entries) return Exceeded("max_enum_entries", size, limits.max_enum_entries);
    return Status::Ok();
  }
  return json->is_structured() ? CheckJson(*json, spec, limits) : Status::Ok();
}

}  // namespace deepinfer::constrain
