// SPDX-License-Identifier: Apache-2.0
#include "constrain/schema_merge.h"

#include <algorithm>
#include <string>
#include <string_view>

#include <fmt/format.h>

#include "core/escape.h"

namespace deepinfer::constrain {
namespace {

Status Conflict(std::string_view keyword) {
  return InvalidArgument(fmt::format("allOf: the entries contradict each other in {}", Escape(keyword)), "so_args.schema");
}

bool IsAnnotation(std::string_view key) {
  return key == "title" || key == "description" || key == "default" || key == "examples" || key == "$comment" ||
         key == "readOnly" || key == "writeOnly" || key == "deprecated" || key == "$id" || key == "$schema";
}
bool IsLowerBound(std::string_view key) {
  return key == "minimum" || key == "exclusiveMinimum" || key == "minLength" || key == "minItems" || key == "minProperties" ||
         key == "minContains";
}
bool IsUpperBound(std::string_view key) {
  return key == "maximum" || key == "exclusiveMaximum" || key == "maxLength" || key == "maxItems" || key == "maxProperties" ||
         key == "maxContains";
}
bool Contains(const Json& list, const Json& value) { return std::find(list.begin(), list.end(), value) != list.end(); }

Json AsList(const Json& value) { return value.is_array() ? value : Json::array({value}); }

// "integer" is a kind of "number".
Result<Json> MergeTypes(const Json& a, const Json& b) {
  Json both = Json::array();
  const Json list_a = AsList(a);
  const Json list_b = AsList(b);
  for (const Json& type : list_a) {
    if (Contains(list_b, type)) {
      both.push_back(type);
    } else if (type == "integer" && Contains(list_b, "number")) {
      both.push_back(type);
    } else if (type == "number" && Contains(list_b, "integer")) {
      both.push_back("integer");
    }
  }
  if (both.empty()) return Conflict("type");
  return both.size() == 1 ? Json(both[0]) : both;
}

Result<Json> MergeLists(std::string_view keyword, const Json& a, const Json& b) {
  Json both = Json::array();
  for (const Json& value : a) {
    if (Contains(b, value)) both.push_back(value);
  }
  if (both.empty()) return Conflict(keyword);
  return both;
}

bool IsClosed(const Json& schema) {
  const auto found = schema.find("additionalProperties");
  return found != schema.end() && found->is_boolean() && !found->get<bool>();
}
// Of a property that `schema` does not name; null = no opinion.
const Json* AdditionalSchema(const Json& schema) {
  const auto found = schema.find("additionalProperties");
  return found != schema.end() && found->is_object() ? &*found : nullptr;
}
const Json& Member(const Json& schema, const char* key) {
  static const Json empty = Json::object();
  const auto found = schema.find(key);
  return found != schema.end() && found->is_object() ? *found : empty;
}

// False: no merged form.
Result<bool> AddProperties(const Json& from, const Json& other, Json* out) {
  for (const auto& [name, schema] : Member(from, "properties").items()) {
    if (out->contains(name)) continue;
    const Json& theirs = Member(other, "properties");
    const Json* second = nullptr;
    if (theirs.contains(name)) {
      second = &theirs[name];
    } else if (IsClosed(other)) {
      continue;  // the other one forbids it
    } else {
      second = AdditionalSchema(other);
    }
    if (second == nullptr) {
      (*out)[name] = schema;
      continue;
    }
    DI_ASSIGN_OR_RETURN(std::optional<Json> merged, MergeSchemas(schema, *second));
    if (!merged) return false;
    (*out)[name] = *std::move(merged);
  }
  return true;
}

Result<bool> MergeObjects(const Json& a, const Json& b, Json* out) {
  if (a.contains("properties") || b.contains("properties")) {
    // Names that a pattern covers and "closed" does not: no simple form.
    if (a.contains("patternProperties") || b.contains("patternProperties")) return false;
    Json properties = Json::object();
    DI_ASSIGN_OR_RETURN(bool has_form, AddProperties(a, b, &properties));
    if (!has_form) return false;
    DI_ASSIGN_OR_RETURN(has_form, AddProperties(b, a, &properties));
    if (!has_form) return false;
    (*out)["properties"] = std::move(properties);
  }
  if (IsClosed(a) || IsClosed(b)) {
    (*out)["additionalProperties"] = false;
  } else if (AdditionalSchema(a) && AdditionalSchema(b)) {
    DI_ASSIGN_OR_RETURN(std::optional<Json> merged, MergeSchemas(*AdditionalSchema(a), *AdditionalSchema(b)));
    if (!merged) return false;
    (*out)["additionalProperties"] = *std::move(merged);
  } else if (const Json* one = AdditionalSchema(a) ? AdditionalSchema(a) : AdditionalSchema(b)) {
    (*out)["additionalProperties"] = *one;
  } else if (a.contains("additionalProperties") && b.contains("additionalProperties")) {
    (*out)["additionalProperties"] = true;
  }
  Json required = Json::array();
  for (const Json* schema : {&a, &b}) {
    const auto list = schema->find("required");
    if (list == schema->end() || !list->is_array()) continue;
    for (const Json& name : *list) {
      if (!Contains(required, name)) required.push_back(name);
      if ((*out).value("additionalProperties", Json(true)) == false && name.is_string() &&
          !Member(*out, "properties").contains(name.get<std::string>())) {
        return Conflict("required");
      }
    }
  }
  if (!required.empty()) (*out)["required"] = std::move(required);
  return true;
}

bool HasType(const Json& value, const Json& type) {
  for (const Json& name : AsList(type)) {
    const bool fits = (name == "string" && value.is_string()) || (name == "boolean" && value.is_boolean()) ||
                      (name == "null" && value.is_null()) || (name == "array" && value.is_array()) ||
                      (name == "object" && value.is_object()) || (name == "number" && value.is_number()) ||
                      (name == "integer" && value.is_number_integer());
    if (fits) return true;
  }
  return false;
}

// An enumeration decides before the type beside it: values of other types have to go.
Status FilterEnum(Json* schema) {
  const auto type = schema->find("type");
  if (type == schema->end()) return Status::Ok();
  if (const auto value = schema->find("const"); value != schema->end() && !HasType(*value, *type)) return Conflict("const");
  const auto list = schema->find("enum");
  if (list == schema->end() || !list->is_array()) return Status::Ok();
  Json kept = Json::array();
  for (const Json& value : *list) {
    if (HasType(value, *type)) kept.push_back(value);
  }
  if (kept.empty()) return Conflict("enum");
  *list = std::move(kept);
  return Status::Ok();
}

// Bounds that leave nothing.
Status CheckBounds(const Json& schema) {
  constexpr const char* kPairs[][2] = {{"minimum", "maximum"}, {"minLength", "maxLength"}, {"minItems", "maxItems"},
                                       {"minProperties", "maxProperties"}};
  for (const auto& [low, high] : kPairs) {
    const auto a = schema.find(low);
    const auto b = schema.find(high);
    if (a != schema.end() && b != schema.end() && a->is_number() && b->is_number() && *a > *b) return Conflict(low);
  }
  return Status::Ok();
}

}  // namespace

Result<std::optional<Json>> MergeSchemas(const Json& a, const Json& b) {
  const std::optional<Json> no_form;
  if (a.is_boolean() || b.is_boolean()) {
    const bool is_false = (a.is_boolean() && !a.get<bool>()) || (b.is_boolean() && !b.get<bool>());
    if (is_false) return Conflict("a schema that is false");
    return std::optional<Json>(a.is_boolean() ? b : a);
  }
  if (!a.is_object() || !b.is_object()) return no_form;
  Json out = Json::object();
  for (const Json* schema : {&a, &b}) {
    const Json& other = schema == &a ? b : a;
    for (const auto& [key, value] : schema->items()) {
      if (out.contains(key) || key == "properties" || key == "additionalProperties" || key == "required") continue;
      const auto theirs = other.find(key);
      if (theirs == other.end() || *theirs == value || IsAnnotation(key)) {
        out[key] = value;
      } else if (key == "type") {
        DI_ASSIGN_OR_RETURN(out[key], MergeTypes(value, *theirs));
      } else if (IsLowerBound(key) && value.is_number() && theirs->is_number()) {
        out[key] = value > *theirs ? value : *theirs;
      } else if (IsUpperBound(key) && value.is_number() && theirs->is_number()) {
        out[key] = value < *theirs ? value : *theirs;
      } else if (key == "enum" && value.is_array() && theirs->is_array()) {
        DI_ASSIGN_OR_RETURN(out[key], MergeLists(key, value, *theirs));
      } else if (key == "const") {
        return Conflict(key);
      } else if (key == "items" || key == "propertyNames" || key == "unevaluatedItems") {
        DI_ASSIGN_OR_RETURN(std::optional<Json> merged, MergeSchemas(value, *theirs));
        if (!merged) return no_form;
        out[key] = *std::move(merged);
      } else if ((key == "$defs" || key == "definitions") && value.is_object() && theirs->is_object()) {
        Json defs = value;
        for (const auto& [name, schema_of_name] : theirs->items()) {
          if (!defs.contains(name)) defs[name] = schema_of_name;
        }
        out[key] = std::move(defs);
      } else if (key == "uniqueItems" && value.is_boolean() && theirs->is_boolean()) {
        out[key] = true;
      } else {
        return no_form;
      }
    }
  }
  // These decide before everything beside them: only alone they keep their meaning.
  for (const char* key : {"$ref", "const", "enum", "anyOf", "oneOf", "allOf"}) {
    if (!out.contains(key)) continue;
    for (const auto& [other_key, value] : out.items()) {
      if (other_key == key || IsAnnotation(other_key) || other_key == "$defs" || other_key == "definitions") continue;
      const bool is_enum_with_type = (std::string_view(key) == "enum" || std::string_view(key) == "const") && other_key == "type";
      if (!is_enum_with_type) return no_form;
    }
    if (a.contains("properties") || b.contains("properties")) return no_form;
  }
  DI_ASSIGN_OR_RETURN(const bool has_form, MergeObjects(a, b, &out));
  if (!has_form) return no_form;
  DI_RETURN_IF_ERROR(FilterEnum(&out));
  DI_RETURN_IF_ERROR(CheckBounds(out));
  return std::optional<Json>(std::move(out));
}

}  // namespace deepinfer::constrain
