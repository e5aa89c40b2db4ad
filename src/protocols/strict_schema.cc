// SPDX-License-Identifier: Apache-2.0
#include "protocols/strict_schema.h"

#include <string>
#include <unordered_set>

#include <fmt/format.h>

#include "core/json.h"
#include "text/python_json.h"

namespace deepinfer::protocols {

namespace {

class StrictRebuilder {
 public:
  explicit StrictRebuilder(StrictUse use) : use_(use) {}

  Result<Json> Root(const Json& schema) {
    Result<Json> rebuilt = Rebuild(schema, /*is_root=*/true);
    if (!rebuilt.ok()) return rebuilt;
    if (use_ == StrictUse::kJsonSchema && (!rebuilt->contains("type") || (*rebuilt)["type"] != "object")) {
      return InvalidArgument("The top level of the json schema must be an object.");
    }
    return rebuilt;
  }

 private:
  // nullptr when missing or null.
  static const Json* Find(const Json& schema, const char* key) {
    const auto it = schema.find(key);
    return it == schema.end() || it->is_null() ? nullptr : &*it;
  }

  Status Fault(std::string_view what) const {
    return InvalidArgument(
        fmt::format("{}{}", use_ == StrictUse::kToolParameters ? "Invalid tool parameters schema : " : "Invalid json schema: ", what));
  }

  static void Keep(const Json& schema, const char* key, Json& out) {
    if (const Json* value = Find(schema, key)) out[key] = *value;
  }

  Result<Json> Rebuild(const Json& schema, bool is_root = false) {
    if (!schema.is_object()) return Fault(fmt::format("expected an object, got {}", text::CompactJson(schema)));
    if (const Json* type = Find(schema, "type")) {
      if (type->is_array()) return TypeList(schema, *type);
      const std::string name = type->is_string() ? type->get<std::string>() : "";
      if (name == "string") return String(schema);
      if (name == "number" || name == "integer") return Number(schema, name);
      if (name == "array") return Array(schema);
      if (name == "object") return Object(schema, is_root);
      if (name == "boolean" || name == "null") {
        Json out = Json::object();
        out["type"] = name;
        Keep(schema, "description", out);
        return out;
      }
      return Fault(fmt::format("unknown type {}", text::CompactJson(*type)));
    }
    if (const Json* any_of = Find(schema, "anyOf")) return AnyOf(schema, *any_of);
    if (const Json* ref = Find(schema, "$ref")) {
      Json out = Json::object();
      out["$ref"] = *ref;
      return out;
    }
    return Fault("one of `type`, `anyOf`, `$ref` field is required");
  }

  Result<Json> TypeList(const Json& schema, const Json& types) const {
    for (const Json& type : types) {
      if (type == "object" || type == "array") {
        return Fault(fmt::format("field `type`: {} cannot stand in a list of types", text::CompactJson(type)));
      }
    }
    Json out = Json::object();
    out["type"] = types;
    Keep(schema, "description", out);
    return out;
  }

  Result<Json> String(const Json& schema) const {
    Json out = Json::object();
    out["type"] = "string";
    Keep(schema, "description", out);
    Keep(schema, "pattern", out);
    if (const Json* format = Find(schema, "format")) {
      bool is_known = false;
      for (const char* name : {"email", "hostname", "ipv4", "ipv6", "uuid"}) is_known = is_known || *format == name;
      if (!is_known) {
        return Fault(fmt::format("format {} is not one of email, hostname, ipv4, ipv6, uuid", text::CompactJson(*format)));
      }
      out["format"] = *format;
    }
    if (const Json* values = Find(schema, "enum")) {
      for (const Json& value : *values) {
        if (!value.is_string()) {
          return Fault(fmt::format("enum of a string holds {}, which is not a string", text::CompactJson(value)));
        }
      }
      out["enum"] = *values;
    }
    return out;
  }

  Result<Json> Number(const Json& schema, const std::string& type) const {
    Json out = Json::object();
    out["type"] = type;
    Keep(schema, "description", out);
    for (const char* key :
         {"const", "default", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}) {
      const Json* value = Find(schema, key);
      if (value == nullptr) continue;
      if (!value->is_number()) {
        return Fault(fmt::format("{} of type {} is {}, not a number", key, type, text::CompactJson(*value)));
      }
      const bool is_int64 = value->is_number_integer() &&
                            (!value->is_number_unsigned() || value->get<uint64_t>() <= uint64_t{INT64_MAX});
      if (type == "integer" && !is_int64) {
        return Fault(fmt::format("{} of type integer is {}, not an integer of 64 bits", key, text::CompactJson(*value)));
      }
      out[key] = *value;
    }
    return out;
  }

  Result<Json> Array(const Json& schema) {
    const Json* items = Find(schema, "items");
    if (items == nullptr) return Fault("missing field `items`");
    Result<Json> rebuilt = Rebuild(*items);
    if (!rebuilt.ok()) return rebuilt;
    Json out = Json::object();
    out["type"] = "array";
    out["items"] = std::move(rebuilt).value();
    Keep(schema, "description", out);
    return out;
  }

  Result<Json> Object(const Json& schema, bool is_root) {
    Json properties = Json::object();
    Json required = Json::array();
    std::unordered_set<std::string> names;
    if (const Json* client = Find(schema, "properties")) {
      for (const auto& [name, value] : client->items()) {
        Result<Json> rebuilt = Rebuild(value);
        if (!rebuilt.ok()) return rebuilt;
        // Names are distinct already; the map's own insert would search it.
        properties.get_ref<Json::object_t&>().emplace_back(name, std::move(rebuilt).value());
        required.push_back(name);
        names.insert(name);
      }
    }
    if (properties.empty() && !(is_root && use_ == StrictUse::kToolParameters)) {
      return InvalidArgument("An object with no properties is not allowed.");
    }
    if (const Json* additional = Find(schema, "additionalProperties"); additional != nullptr && *additional != false) {
      if (*additional == true) return InvalidArgument("additionalProperties should not be true");
      return Fault("additionalProperties must be false");
    }
    if (const Json* listed = Find(schema, "required")) DI_RETURN_IF_ERROR(CheckRequired(*listed, names));
    Json out = Json::object();
    out["type"] = "object";
    out["properties"] = std::move(properties);
    out["additionalProperties"] = false;
    out["required"] = std::move(required);
    Keep(schema, "description", out);
    if (const Json* definitions = Find(schema, "$def")) {  // this spelling
      if (!definitions->is_object()) return Fault("$def must be an object");
      Json rebuilt_definitions = Json::object();
      for (const auto& [name, value] : definitions->items()) {
        Result<Json> rebuilt = Rebuild(value);
        if (!rebuilt.ok()) return rebuilt;
        rebuilt_definitions.get_ref<Json::object_t&>().emplace_back(name, std::move(rebuilt).value());
      }
      out["$def"] = std::move(rebuilt_definitions);
    }
    return out;
  }

  static Status CheckRequired(const Json& listed, const std::unordered_set<std::string>& names) {
    std::unordered_set<std::string> seen;
    for (const Json& item : listed) {
      const std::string name = item.is_string() ? item.get<std::string>() : text::CompactJson(item);
      if (!seen.insert(name).second) return InvalidArgument(fmt::format("Duplicate required property '{}'", name));
      if (!names.contains(name)) {
        return InvalidArgument(fmt::format("Required property '{}' not found in object", name));
      }
    }
    if (seen.size() != names.size()) {
      return InvalidArgument("Required properties must match all properties in the object");
    }
    return Status::Ok();
  }

  Result<Json> AnyOf(const Json& schema, const Json& members) {
    Json rebuilt_members = Json::array();
    for (const Json& member : members) {
      const Json* type = member.is_object() ? Find(member, "type") : nullptr;
      if (type == nullptr || !type->is_string()) return Fault("field `anyOf`: every member needs a single `type`");
      Result<Json> rebuilt = Rebuild(member);
      if (!rebuilt.ok()) return rebuilt;
      rebuilt_members.push_back(std::move(rebuilt).value());
    }
    Json out = Json::object();
    out["anyOf"] = std::move(rebuilt_members);
    Keep(schema, "description", out);
    return out;
  }

  const StrictUse use_;
};

}  // namespace

Result<Json> RebuildStrict(const Json& schema, StrictUse use) { return StrictRebuilder(use).Root(schema); }

}  // namespace deepinfer::protocols
