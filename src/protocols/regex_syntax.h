// SPDX-License-Identifier: Apache-2.0
//
// Is a text a regular expression? A lenient syntax check for the `pattern` keyword of JSON schemas: what ECMA-262 and the usual
// engines all refuse is refused, look-around and unknown escapes pass.
#pragma once

#include <string_view>

namespace deepinfer::protocols {

bool IsRegexSyntax(std::string_view pattern);

}  // namespace deepinfer::protocols
