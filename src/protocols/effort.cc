// SPDX-License-Identifier: Apache-2.0
#include "protocols/effort.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "core/json.h"

namespace deepinfer::protocols {

namespace {

constexpr std::string_view kRangeError =
    "Invalid reasoning_effort value, the valid range of reasoning_effort is [1, 100]";

struct NamedEffort {
  std::string_view word;
  std::string_view name;  // empty: thinking off
  int value;
};

constexpr NamedEffort kNames[] = {
    {"none", "", 0},
    {"minimal", "low", 50},
    {"low", "low", 50},
    {"medium", "high", 75},
    {"high", "high", 75},
    {"xhigh", "xhigh", 75},
    {"ultra", "max", 100},
    {"max", "max", 100},
};

bool IsInteger(std::string_view text) {
  if (!text.empty() && (text.front() == '-' || text.front() == '+')) text.remove_prefix(1);
  return !text.empty() && text.find_first_not_of("0123456789") == std::string_view::npos;
}

}  // namespace

Effort EffortFromNumber(int value) {
  Effort effort;
  effort.value = value;
  effort.name.clear();
  return effort;
}

Result<Effort> ParseEffort(const Json& json, std::string_view path) {
  if (json.is_string()) {
    const std::string& word = json.get_ref<const std::string&>();
    for (const NamedEffort& named : kNames) {
      if (word != named.word) continue;
      Effort effort;
      if (named.name.empty()) {
        effort.is_none = true;
      } else {
        effort.value = named.value;
        effort.name = named.name;
      }
      return effort;
    }
    if (IsInteger(word)) {
      int value = 0;
      const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
      if (error != std::errc() || end != word.data() + word.size() || value < 1 || value > 100) {
        return InvalidArgument(std::string(kRangeError), std::string(path));
      }
      return EffortFromNumber(value);
    }
    return DeserializeError(
        path, "unknown effort; use none, minimal, low, medium, high, xhigh, ultra, max or a number from 1 to 100");
  }
  if (json.is_number_integer()) {  // unsigned ones too
    const bool in_range = json.is_number_unsigned() ? json.get<uint64_t>() >= 1 && json.get<uint64_t>() <= 100
                                                    : json.get<int64_t>() >= 1 && json.get<int64_t>() <= 100;
    if (!in_range) return InvalidArgument(std::string(kRangeError), std::string(path));
    return EffortFromNumber(static_cast<int>(json.get<int64_t>()));
  }
  if (json.is_number_float()) {
    const double value = json.get<double>();
    if (!(value > 0.0 && value < 1.0)) return InvalidArgument(std::string(kRangeError), std::string(path));
    return EffortFromNumber(std::max(1, static_cast<int>(std::lround(100.0 * value))));
  }
  return DeserializeError(path, "expected a string or a number");
}

}  // namespace deepinfer::protocols
