// SPDX-License-Identifier: Apache-2.0
//
// Random JSON schemas out of every keyword that structured outputs enforce.
#pragma once

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "core/json.h"

namespace deepinfer::constrain {

class RandomSchema {
 public:
  explicit RandomSchema(uint64_t seed) : random_(seed) {}

  Json Make() {
    Json schema = Schema(0);
    if (schema.is_object() && Chance(30)) schema["title"] = "a title";
    if (schema.is_object() && uses_defs_) {
      schema["$defs"] = {{"word", {{"type", "string"}, {"pattern", "[a-z]{1,6}"}}},
                         {"a/b", {{"type", "integer"}, {"minimum", 0}, {"maximum", 99}}},
                         {"node", {{"type", "object"},
                                   {"properties", {{"value", {{"type", "boolean"}}},
                                                   {"next", {{"anyOf", Json::array({{{"type", "null"}}, {{"$ref", "#/$defs/node"}}})}}}}},
                                   {"required", {"value", "next"}},
                                   {"additionalProperties", false}}}};
    }
    uses_defs_ = false;
    return schema;
  }

 private:
  bool Chance(int percent) { return static_cast<int>(random_() % 100) < percent; }
  int Number(int low, int high) { return low + static_cast<int>(random_() % static_cast<uint64_t>(high - low + 1)); }
  template <typename T>
  T Pick(std::initializer_list<T> from) {
    return *(from.begin() + static_cast<std::ptrdiff_t>(random_() % from.size()));
  }

  Json Schema(int depth) {
    switch (Number(0, depth >= 3 ? 7 : 13)) {
      case 0:
      case 1: return String();
      case 2: return Integer();
      case 3: return RealNumber();
      case 4: return Pick<Json>({{{"type", "boolean"}}, {{"type", "null"}}, {{"type", Json::array({"string", "null"})}}});
      case 5: return Enum();
      case 6: return Reference();
      case 7: return {{"type", "string"}, {"description", "anything \"quoted\""}, {"maxLength", 12}};
      case 8:
      case 9:
      case 10: return Object(depth);
      case 11: return Array(depth);
      case 12: return Combination(depth);
      default: return Tuple(depth);
    }
  }

  Json String() {
    Json out = {{"type", "string"}};
    if (Chance(25)) {
      out["pattern"] = Pick<const char*>({"^[A-Z][a-z]+$", "\\d{3}-\\d{4}", "(foo|bar)+", "[^x\"\\\\]{2,5}", "^(?:a+)+b$"});
    } else if (Chance(35)) {
      out["format"] = Pick<const char*>({"email", "date", "ipv4", "ipv6", "uuid", "time", "date-time", "hostname",
                                         "duration", "uri", "json-pointer"});
    } else {
      out["minLength"] = Number(0, 4);
      out["maxLength"] = Number(4, 20);
    }
    return out;
  }
  Json Integer() {
    Json out = {{"type", "integer"}};
    const int low = Number(-500, 500);
    if (Chance(30)) {
      out["exclusiveMinimum"] = low;
      out["exclusiveMaximum"] = low + Number(2, 3000);
    } else {
      if (Chance(60)) out["minimum"] = low;
      if (Chance(60)) out["maximum"] = low + Number(0, 3000);
    }
    if (out.size() == 1 && Chance(40)) out["multipleOf"] = Number(2, 9);
    return out;
  }
  Json RealNumber() {
    Json out = {{"type", "number"}};
    if (Chance(50)) {
      const double low = Number(-100, 100) / 4.0;
      out[Chance(50) ? "minimum" : "exclusiveMinimum"] = low;
      out[Chance(50) ? "maximum" : "exclusiveMaximum"] = low + Number(1, 100);
    }
    return out;
  }
  Json Enum() {
    if (Chance(40)) return {{"const", Pick<Json>({"fixed", 7, nullptr, true, Json::array({1, "a"}), Json{{"k", "v"}}})}};
    Json values = Json::array({"red", "gr\"een", "blau\n", 3, -2.5, nullptr, false});
    Json out = Json::array();
    for (const Json& value : values) {
      if (Chance(50) || out.empty()) out.push_back(value);
    }
    return {{"enum", out}};
  }
  Json Reference() {
    uses_defs_ = true;
    return {{"$ref", Pick<const char*>({"#/$defs/word", "#/$defs/a~1b", "#/%24defs/word", "#/$defs/node"})}};
  }
  Json Object(int depth) {
    Json out = {{"type", "object"}};
    Json properties = Json::object();
    Json required = Json::array();
    const int count = Number(0, 5);
    for (int i = 0; i < count; ++i) {
      std::string name = Pick<const char*>({"id", "naïve", "with space", "quo\"te", "x"}) + std::to_string(i);
      properties[name] = Schema(depth + 1);
      if (Chance(60)) required.push_back(name);
    }
    if (count > 0) {
      out["properties"] = properties;
      if (!required.empty()) out["required"] = required;
      if (Chance(30)) out["additionalProperties"] = Chance(50) ? Json(false) : Json{{"type", "integer"}};
      if (Chance(15)) out["maxProperties"] = count + 2;
      return out;
    }
    switch (Number(0, 3)) {
      case 0: out["patternProperties"] = {{"^[a-z]{1,4}$", Schema(depth + 1)}}; break;
      case 1:
        out["propertyNames"] = {{"type", "string"}, {"pattern", "^[a-z]{2,5}$"}};
        break;
      case 2:
        out["additionalProperties"] = Schema(depth + 1);
        out["minProperties"] = Number(0, 2);
        out["maxProperties"] = Number(2, 4);
        break;
      default: out["unevaluatedProperties"] = Schema(depth + 1); break;
    }
    return out;
  }
  Json Array(int depth) {
    Json out = {{"type", "array"}, {"items", Schema(depth + 1)}};
    if (Chance(50)) out["minItems"] = Number(0, 2);
    if (Chance(70)) out["maxItems"] = Number(2, 4);
    return out;
  }
  Json Tuple(int depth) {
    Json out = {{"type", "array"}, {"prefixItems", Json::array({Schema(depth + 1), Schema(depth + 1)})}, {"minItems", 2}};
    switch (Number(0, 2)) {
      case 0: out["items"] = false; break;
      case 1: out["items"] = {{"type", "boolean"}}; break;
      default: out["unevaluatedItems"] = false; break;
    }
    return out;
  }
  Json Combination(int depth) {
    switch (Number(0, 3)) {
      case 0: return {{"anyOf", Json::array({Schema(depth + 1), Schema(depth + 1)})}};
      case 1: return {{"oneOf", Json::array({String(), Integer(), {{"type", "null"}}})}};
      case 2: return {{"allOf", Json::array({Schema(depth + 1)})}};
      default:
        return {{"allOf", Json::array({{{"type", "object"}, {"properties", {{"a", String()}, {"n", {{"type", "number"}, {"minimum", 0}}}}},
                                        {"required", Json::array({"a"})}},
                                       {{"properties", {{"n", {{"type", "integer"}, {"maximum", 9}}}, {"b", Integer()}}},
                                        {"required", Json::array({"n"})}}})}};
    }
  }

  std::mt19937_64 random_;
  bool uses_defs_ = false;
};

}  // namespace deepinfer::constrain
