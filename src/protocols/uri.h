// SPDX-License-Identifier: Apache-2.0
//
// URI references as far as `$id` and `$ref` of JSON schemas need them (RFC 3986, section 5).
#pragma once

#include <string>
#include <string_view>

namespace deepinfer::protocols {

bool HasScheme(std::string_view uri);
std::string WithoutFragment(std::string_view uri);

// An empty base leaves a relative reference as it is.
std::string ResolveUri(std::string_view base, std::string_view reference);

}  // namespace deepinfer::protocols
