// SPDX-License-Identifier: Apache-2.0
#include "constrain/structured_output.h"

#include <string>

namespace deepinfer::constrain {

GrammarSpec GrammarSpecOf(const StructuredOutput& so_args) {
  Json json = Json::object();
  json["schema_type"] = so_args.schema_type;
  json["schema"] = so_args.schema;
  json["strict"] = so_args.strict;
  json["any_order"] = so_args.any_order;
  json["any_whitespace"] = so_args.any_whitespace;
  if (so_args.max_whitespace_cnt) json["max_whitespace_cnt"] = *so_args.max_whitespace_cnt;
  if (!so_args.trigger_token_ids.empty()) json["trigger_token_ids"] = so_args.trigger_token_ids;
  if (so_args.bound_token_id) json["bound_token_id"] = *so_args.bound_token_id;
  Result<GrammarSpec> spec = ParseSoArgs(json);
  if (!spec.ok()) {
    GrammarSpec bad;
    bad.invalid = spec.status().message();
    return bad;
  }
  if (!so_args.invalid.empty()) spec->invalid = so_args.invalid;
  return std::move(spec).value();
}

StructuredOutput StructuredOutputOf(const GrammarSpec& spec) {
  StructuredOutput so_args;
  so_args.schema_type = std::string(GrammarKindName(spec.kind));
  so_args.schema = spec.text;
  so_args.strict = spec.strict;
  so_args.any_order = spec.any_order;
  so_args.any_whitespace = spec.any_whitespace;
  so_args.max_whitespace_cnt = spec.max_whitespace_cnt;
  so_args.trigger_token_ids = spec.trigger_token_ids;
  so_args.bound_token_id = spec.bound_token_id;
  so_args.invalid = spec.invalid;
  return so_args;
}

Result<StructuredOutput> ParseStructuredOutput(std::string_view so_args_json) {
  DI_ASSIGN_OR_RETURN(const GrammarSpec spec, ParseSoArgsText(so_args_json));
  return StructuredOutputOf(spec);
}

}  // namespace deepinfer::constrain
