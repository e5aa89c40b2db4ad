// SPDX-License-Identifier: Apache-2.0
#include "protocols/grammar_schema.h"

#include <string>
#include <string_view>

namespace deepinfer::protocols {
namespace {

// Read by a grammar before `type`, or not at all.
constexpr std::string_view kCombinations[] = {"anyOf", "oneOf",        "allOf",            "not",  "if",
                                              "then",  "else",         "dependentSchemas", "$ref", "dependentRequired",
                                              "unevaluatedProperties", "unevaluatedItems"};
// Keywords whose value is a map of schemas.
constexpr std::string_view kSchemaMaps[] = {"properties", "$defs", "definitions", "$def"};

bool IsSet(const Json& schema, std::string_view key) {
  const auto it = schema.find(key);
  return it != schema.end() && !it->is_null();
}

template <typename List>
bool Contains(const List& list, std::string_view key) {
  for (const std::string_view each : list) {
    if (each == key) return true;
  }
  return false;
}

Json Close(const Json& schema, bool is_root) {
  if (!schema.is_object()) return schema;
  // What decides, in the order of the strict form: type, anyOf, $ref.
  const std::string_view decides = IsSet(schema, "type") ? "type" : IsSet(schema, "anyOf") ? "anyOf" : "$ref";
  Json out = Json::object();
  for (const auto& [key, value] : schema.items()) {
    if (value.is_null()) continue;
    if (key != decides && Contains(kCombinations, key)) continue;
    if (Contains(kSchemaMaps, key) && value.is_object()) {
      Json map = Json::object();
      for (const auto& [name, member] : value.items()) map[name] = Close(member, false);
      out[key] = std::move(map);
    } else if (key == "anyOf" && value.is_array()) {
      Json list = Json::array();
      for (const Json& member : value) list.push_back(Close(member, false));
      out[key] = std::move(list);
    } else if (key == "items") {
      out[key] = Close(value, false);
    } else {
      out[key] = value;
    }
  }
  const bool is_object = decides == "type" && out["type"] == "object";
  if (!is_object) return out;
  if (!out.contains("properties")) {
    // Only a tool without parameters; nested ones have at least one property.
    if (is_root) out["properties"] = Json::object();
  }
  Json required = Json::array();
  if (out.contains("properties")) {
    for (const auto& [name, ignored] : out["properties"].items()) required.push_back(name);
  }
  out["required"] = std::move(required);
  out["additionalProperties"] = false;
  return out;
}

}  // namespace

Json ClosedSchema(const Json& schema) { return Close(schema, true); }

}  // namespace deepinfer::protocols
