// SPDX-License-Identifier: Apache-2.0
#include "core/config_env.h"

#include <unistd.h>

extern char** environ;  // NOLINT: declared by POSIX

namespace deepinfer {

Environment Environment::FromProcess() {
  std::map<std::string, std::string, std::less<>> variables;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    const size_t equals = text.find('=');
    if (equals == std::string_view::npos || equals == 0) continue;
    variables.emplace(std::string(text.substr(0, equals)), std::string(text.substr(equals + 1)));
  }
  return Environment(std::move(variables));
}

std::optional<std::string> Environment::Get(std::string_view name) const {
  const auto it = variables_.find(name);
  if (it == variables_.end()) return std::nullopt;
  return it->second;
}

std::optional<std::string> Environment::GetNonEmpty(std::string_view name) const {
  std::optional<std::string> value = Get(name);
  if (value && value->empty()) value.reset();
  return value;
}

}  // namespace deepinfer
