// SPDX-License-Identifier: Apache-2.0
//
// Typed access to the fields of a request object. null counts as absent. The first wrong type is remembered with its path
// ("messages[0].content: expected a string"); reading goes on with defaults, and the caller asks for status() at the end.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "core/json.h"
#include "core/status.h"
#include "protocols/api.h"

namespace deepinfer::protocols {

class JsonReader {
 public:
  // `json` must be an object and outlive the reader; anything else is an error of its own.
  JsonReader(const Json& json, std::string path);

  const Status& status() const { return status_; }
  bool ok() const { return status_.ok(); }
  // Keeps the first error.
  void Fail(std::string_view key, std::string_view reason);
  void Absorb(const Status& status);

  std::string PathOf(std::string_view key) const;

  // nullptr when missing or null.
  const Json* Find(std::string_view key) const;
  const Json* Object(std::string_view key);
  const Json* Array(std::string_view key);
  std::optional<std::string> String(std::string_view key);
  std::optional<bool> Bool(std::string_view key);
  std::optional<double> Number(std::string_view key);
  // 0..max; a number with a fraction or an exponent is refused.
  std::optional<uint64_t> Unsigned(std::string_view key, uint64_t max);
  // Missing is an error too.
  std::string RequiredString(std::string_view key);

 private:
  const Json& json_;
  std::string path_;
  Status status_;
};

// The value of a field that names one of a few choices.
template <typename T, size_t N>
std::optional<T> OneOf(JsonReader& reader,
                       std::string_view key,
                       const std::string& value,
                       const std::array<std::pair<std::string_view, T>, N>& choices) {
  std::string names;
  for (const auto& [name, choice] : choices) {
    if (value == name) return choice;
    if (!names.empty()) names += ", ";
    names += name;
  }
  reader.Fail(key, fmt::format("unknown value \"{}\"; expected one of {}", value, names));
  return std::nullopt;
}

}  // namespace deepinfer::protocols
