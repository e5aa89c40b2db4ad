// SPDX-License-Identifier: Apache-2.0
#include "protocols/json_reader.h"

#include <fmt/format.h>

namespace deepinfer::protocols {

JsonReader::JsonReader(const Json& json, std::string path) : json_(json), path_(std::move(path)) {
  if (!json_.is_object()) status_ = DeserializeError(path_, "expected an object");
}

std::string JsonReader::PathOf(std::string_view key) const {
  if (path_.empty()) return std::string(key);
  return path_ + "." + std::string(key);
}

void JsonReader::Fail(std::string_view key, std::string_view reason) {
  if (status_.ok()) status_ = DeserializeError(key.empty() ? path_ : PathOf(key), reason);
}

void JsonReader::Absorb(const Status& status) {
  if (status_.ok()) status_ = status;
}

const Json* JsonReader::Find(std::string_view key) const {
  if (!json_.is_object()) return nullptr;
  const auto it = json_.find(std::string(key));
  return it == json_.end() || it->is_null() ? nullptr : &*it;
}

const Json* JsonReader::Object(std::string_view key) {
  const Json* value = Find(key);
  if (value == nullptr || value->is_object()) return value;
  Fail(key, "expected an object");
  return nullptr;
}

const Json* JsonReader::Array(std::string_view key) {
  const Json* value = Find(key);
  if (value == nullptr || value->is_array()) return value;
  Fail(key, "expected a list");
  return nullptr;
}

std::optional<std::string> JsonReader::String(std::string_view key) {
  const Json* value = Find(key);
  if (value == nullptr) return std::nullopt;
  if (value->is_string()) return value->get<std::string>();
  Fail(key, "expected a string");
  return std::nullopt;
}

std::optional<bool> JsonReader::Bool(std::string_view key) {
  const Json* value = Find(key);
  if (value == nullptr) return std::nullopt;
  if (value->is_boolean()) return value->get<bool>();
  Fail(key, "expected true or false");
  return std::nullopt;
}

std::optional<double> JsonReader::Number(std::string_view key) {
  const Json* value = Find(key);
  if (value == nullptr) return std::nullopt;
  if (value->is_number()) return value->get<double>();
  Fail(key, "expected a number");
  return std::nullopt;
}

std::optional<uint64_t> JsonReader::Unsigned(std::string_view key, uint64_t max) {
  const Json* value = Find(key);
  if (value == nullptr) return std::nullopt;
  const bool is_negative = value->is_number_integer() && !value->is_number_unsigned() && value->get<int64_t>() < 0;
  if (value->is_number_integer() && !is_negative && value->get<uint64_t>() <= max) return value->get<uint64_t>();
  Fail(key, fmt::format("expected an integer from 0 to {}", max));
  return std::nullopt;
}

std::string JsonReader::RequiredString(std::string_view key) {
  if (json_.is_object()) {
    const auto it = json_.find(std::string(key));
    if (it == json_.end()) {
      Fail("", fmt::format("missing field `{}`", key));
    } else if (it->is_string()) {
      return it->get<std::string>();
    } else {
      Fail(key, "expected a string");
    }
  }
  return {};
}

}  // namespace deepinfer::protocols
