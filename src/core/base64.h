// SPDX-License-Identifier: Apache-2.0
//
// Standard base64 (RFC 4648 section 4), padding required, no blanks.
#pragma once

#include <string>
#include <string_view>

#include "core/status.h"

namespace deepinfer {

Result<std::string> DecodeBase64(std::string_view text);
std::string EncodeBase64(std::string_view bytes);

}  // namespace deepinfer
