// SPDX-License-Identifier: Apache-2.0
//
// The environment, read once at start: the only place that touches it is config_env.cc. Tests build an Environment from a
// table instead.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>

namespace deepinfer {

class Environment {
 public:
  Environment() = default;
  explicit Environment(std::map<std::string, std::string, std::less<>> variables) : variables_(std::move(variables)) {}
  static Environment FromProcess();

  std::optional<std::string> Get(std::string_view name) const;
  // Like Get, but an empty value counts as unset.
  std::optional<std::string> GetNonEmpty(std::string_view name) const;
  const std::map<std::string, std::string, std::less<>>& variables() const { return variables_; }

 private:
  std::map<std::string, std::string, std::less<>> variables_;
};

}  // namespace deepinfer
