// SPDX-License-Identifier: Apache-2.0
#include "core/byte_size.h"

#include <cmath>
#include <cstdlib>
#include <string>

#include <fmt/format.h>

#include "core/ascii.h"
#include "core/escape.h"

namespace deepinfer {

Result<int64_t> ParseByteSize(std::string_view text, std::string_view option) {
  const auto refuse = [&] {
    return InvalidArgument(fmt::format("{} is \"{}\" but must be a size such as 24GiB, 500MB or a number of bytes", option, Escape(text, 64)), std::string(option));
  };
  const std::string copy(text);
  if (copy.empty() || ((copy[0] < '0' || copy[0] > '9') && copy[0] != '.')) return refuse();
  char* end = nullptr;
  const double number = std::strtod(copy.c_str(), &end);
  std::string unit = AsciiLower(std::string_view(end));
  while (!unit.empty() && unit.front() == ' ') unit.erase(0, 1);
  if (copy.find_first_of("xXnN") != std::string::npos) return refuse();  // what strtod takes and people do not write
  constexpr std::string_view kLetters = "kmgt";
  double factor = 1;
  if (unit.empty() && copy.find_first_of(".eE") != std::string::npos) return refuse();  // a unit was forgotten
  if (!unit.empty() && unit != "b") {
    const size_t power = kLetters.find(unit[0]);
    const std::string_view rest = std::string_view(unit).substr(1);
    if (power == std::string_view::npos || (rest != "" && rest != "b" && rest != "ib" && rest != "i")) return refuse();
    factor = std::pow(rest == "b" ? 1000.0 : 1024.0, static_cast<double>(power + 1));
  }
  const double bytes = number * factor;
  if (!(bytes >= 0) || bytes > 9e18) return refuse();
  return static_cast<int64_t>(bytes);
}

}  // namespace deepinfer
