// SPDX-License-Identifier: Apache-2.0
//
// The input files of the eval commands.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/json.h"
#include "core/status.h"

namespace deepinfer::cli {

// object[key] as token ids, at least one; `index` and `path` are for the message.
Result<std::vector<int32_t>> IdsOf(const Json& object, const char* key, const std::string& path, size_t index);

// {"samples": [{"ids": [...]}, ...]} or the list alone; every sample has two tokens at least.
Result<std::vector<std::vector<int32_t>>> ReadSamples(const std::string& path);

}  // namespace deepinfer::cli
