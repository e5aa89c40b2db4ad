// SPDX-License-Identifier: Apache-2.0
//
// The chat page at "/" and the OpenAPI document: files of server/page/ and server/, built into the program. Script and style have paths of their own, so that the
// content security policy can forbid everything inline.
#pragma once

#include <string_view>

namespace deepinfer::server {

struct PageFile {
  std::string_view path;
  std::string_view content_type;
  std::string_view text;
};

// Null if there is no such file.
const PageFile* FindPageFile(std::string_view path);

inline constexpr std::string_view kPagePolicy =
    "default-src 'self'; img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

}  // namespace deepinfer::server
