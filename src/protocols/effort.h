// SPDX-License-Identifier: Apache-2.0
//
// Reasoning effort (protocols.md 3.1, 3.3): the official words, and as an extension any integer 1..100, also as a string, or a
// fraction of 1.
#pragma once

#include <string>
#include <string_view>

#include "core/status.h"
#include "protocols/api.h"

namespace deepinfer::protocols {

struct Effort {
  bool is_none = false;
  int value = 75;             // 1..100, what the prompt shows
  std::string name = "high";  // low, high, xhigh, max; empty for a number
};

// `path` names the field in errors of type; a number out of range has the exact message of the specification.
Result<Effort> ParseEffort(const Json& json, std::string_view path);
Effort EffortFromNumber(int value);

}  // namespace deepinfer::protocols
