// SPDX-License-Identifier: Apache-2.0
#include "core/number_list.h"

#include <charconv>
#include <cmath>

namespace deepinfer {

std::optional<std::vector<float>> ParseNumberList(std::string_view text) {
  std::vector<float> values;
  for (;;) {
    const size_t comma = text.find(',');
    std::string_view item = text.substr(0, comma);
    const auto is_blank = [](char c) { return c == ' ' || c == '\t'; };
    while (!item.empty() && is_blank(item.front())) item.remove_prefix(1);
    while (!item.empty() && is_blank(item.back())) item.remove_suffix(1);
    float value = 0;
    const auto [stop, error] = std::from_chars(item.data(), item.data() + item.size(), value);
    if (error != std::errc() || stop != item.data() + item.size() || !std::isfinite(value)) return std::nullopt;
    values.push_back(value);
    if (comma == std::string_view::npos) return values;
    text.remove_prefix(comma + 1);
  }
}

}  // namespace deepinfer
