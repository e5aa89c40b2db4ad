// SPDX-License-Identifier: Apache-2.0
//
// Sizes as people write them.
#pragma once

#include <cstdint>
#include <string_view>

#include "core/status.h"

namespace deepinfer {

// "24GiB", "1.5 TiB", "500MB", "24G" (binary), "1073741824". `option` names it in errors.
Result<int64_t> ParseByteSize(std::string_view text, std::string_view option);

}  // namespace deepinfer
