// SPDX-License-Identifier: Apache-2.0
//
// Numbers separated by commas, as options have them.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

namespace deepinfer {

// "1" or "1, 0.9": finite numbers, blanks around them allowed; nullopt for anything else.
std::optional<std::vector<float>> ParseNumberList(std::string_view text);

}  // namespace deepinfer
