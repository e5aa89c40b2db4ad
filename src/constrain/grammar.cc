// SPDX-License-Identifier: Apache-2.0
#include "constrain/grammar.h"

#include <limits>
#include <set>
#include <utility>

#include <fmt/format.h>

#include "core/escape.h"

namespace deepinfer::constrain {
namespace {

constexpr std::pair<GrammarKind, std::string_view> kKindNames[] = {
    {GrammarKind::kJsonSchema, "json"},
    {GrammarKind::kJsonObject, "json_object"},
    {GrammarKind::kRegex, "regex"},
    {GrammarKind::kEbnf, "ebnf"},
    {GrammarKind::kStructuralTag, "structural_tag"},
    {GrammarKind::kChoice, "choice"},
    {GrammarKind::kLark, "lark"},
};

Status FieldError(std::string_view key, std::string_view problem) {
  std::string field = fmt::format("so_args.{}", key);
  return InvalidArgument(fmt::format("{} {}", field, problem), field);
}

bool IsTokenId(const Json& value) {
  if (!value.is_number_integer()) return false;  // booleans are no numbers here
  if (value.is_number_unsigned()) return value.get<uint64_t>() <= std::numeric_limits<int32_t>::max();
  const int64_t id = value.get<int64_t>();
  return id >= 0 && id <= std::numeric_limits<int32_t>::max();
}

// The trigger and the bound: faults make the request fail when it starts, not when it is added.
void ReadTrigger(const Json& so_args, GrammarSpec* spec) {
  if (const auto found = so_args.find("trigger_token_ids"); found != so_args.end() && !found->is_null()) {
    if (!found->is_array()) {
      spec->invalid = "so_args.trigger_token_ids must be a list of token ids";
      return;
    }
    for (const Json& id : *found) {
      if (!IsTokenId(id)) {
        spec->invalid = fmt::format("so_args.trigger_token_ids has {}, which is no token id", Escape(DumpJson(id)));
        return;
      }
      spec->trigger_token_ids.push_back(id.get<int32_t>());
    }
  }
  if (const auto found = so_args.find("bound_token_id"); found != so_args.end() && !found->is_null()) {
    if (!IsTokenId(*found)) {
      spec->invalid = fmt::format("so_args.bound_token_id is {}, which is no token id", Escape(DumpJson(*found)));
    } else if (spec->trigger_token_ids.empty()) {
      spec->invalid = "so_args.bound_token_id needs trigger_token_ids";
    } else {
      spec->bound_token_id = found->get<int32_t>();
    }
  }
}

Status ReadSchema(const Json& so_args, GrammarSpec* spec) {
  const auto found = so_args.find("schema");
  if (found == so_args.end()) {
    if (spec->kind == GrammarKind::kJsonObject) return Status::Ok();
    return FieldError("schema", "is missing; it holds the JSON schema, pattern or grammar");
  }
  const bool takes_object = spec->kind == GrammarKind::kJsonSchema || spec->kind == GrammarKind::kStructuralTag;
  if (found->is_string()) {
    spec->text = found->get<std::string>();
  } else if ((takes_object && found->is_object()) || (spec->kind == GrammarKind::kChoice && found->is_array())) {
    spec->text = DumpJson(*found);
  } else if (spec->kind != GrammarKind::kJsonObject) {
    return FieldError("schema", fmt::format("must be a string{}, got {}", takes_object ? " or an object" : "",
                                            found->type_name()));
  }
  if (spec->kind == GrammarKind::kJsonObject) spec->text.clear();
  return Status::Ok();
}

}  // namespace

std::string_view GrammarKindName(GrammarKind kind) {
  for (const auto& [value, name] : kKindNames) {
    if (value == kind) return name;
  }
  return "";
}

Result<GrammarSpec> ParseSoArgs(const Json& so_args) {
  if (!so_args.is_object()) return InvalidArgument("so_args must be an object with schema_type and schema", "so_args");
  static const std::set<std::string_view> kKeys = {"schema_type",    "schema", "trigger_token_ids", "bound_token_id",
                                                   "strict", "any_order", "any_whitespace", "max_whitespace_cnt"};
  for (const auto& [key, value] : so_args.items()) {
    if (key == "serialized") return FieldError(key, "is not accepted; give schema_type and schema");
    if (key == "bound_token_ids") return FieldError(key, "is not accepted; use bound_token_id");
    if (kKeys.count(key) == 0) {
      return FieldError(Escape(key), "does not exist; the keys are schema_type, schema, trigger_token_ids, bound_token_id, "
                                     "strict, any_order, any_whitespace and max_whitespace_cnt");
    }
  }
  GrammarSpec spec;
  const auto type = so_args.find("schema_type");
  bool is_known = false;
  for (const auto& [value, name] : kKindNames) {
    if (type != so_args.end() && type->is_string() && type->get_ref<const std::string&>() == name) {
      spec.kind = value;
      is_known = true;
    }
  }
  DI_RETURN_IF_ERROR(ReadSchema(so_args, &spec));
  for (const auto& [key, field] : {std::pair{"strict", &spec.strict}, std::pair{"any_order", &spec.any_order},
                                   std::pair{"any_whitespace", &spec.any_whitespace}}) {
    const auto found = so_args.find(key);
    if (found == so_args.end()) continue;
    if (!found->is_boolean()) return FieldError(key, "must be true or false");
    *field = found->get<bool>();
  }
  if (const auto found = so_args.find("max_whitespace_cnt"); found != so_args.end() && !found->is_null()) {
    if (!IsTokenId(*found) || found->get<int64_t>() < 1 || found->get<int64_t>() > 100'000) {
      return FieldError("max_whitespace_cnt", "must be an integer from 1 to 100000");
    }
    spec.max_whitespace_cnt = found->get<int>();
  }
  ReadTrigger(so_args, &spec);
  if (!is_known) {
    spec.invalid = fmt::format(
        "Unsupported Grammar Type: so_args.schema_type is {}; it must be json, json_object, regex, ebnf, choice, "
        "structural_tag or lark",
        type == so_args.end() ? "missing" : Escape(DumpJson(*type)));
  }
  return spec;
}

Result<GrammarSpec> ParseSoArgsText(std::string_view json_text) {
  Result<Json> json = ParseJson(json_text);
  if (!json.ok()) return json.status().WithContext("so_args");
  return ParseSoArgs(*json);
}

std::string GrammarKey(const GrammarSpec& spec) {
  return fmt::format("{}|{}{}{}{}|{}", static_cast<int>(spec.kind), spec.strict ? 's' : '-', spec.any_order ? 'o' : '-',
                     spec.any_whitespace ? 'w' : '-', spec.max_whitespace_cnt.value_or(-1), spec.text);
}

uint64_t GrammarHash(const GrammarSpec& spec) {
  uint64_t hash = 14695981039346656037u;  // FNV-1a
  for (const char c : GrammarKey(spec)) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211u;
  return hash;
}

}  // namespace deepinfer::constrain
