// SPDX-License-Identifier: Apache-2.0
//
// Request fields of our own, the same in all protocols (protocols.md 5.1): cache_salt, cache_mode, priority.
#pragma once

#include <optional>
#include <string>

#include "protocols/converted_request.h"
#include "protocols/json_reader.h"

namespace deepinfer::protocols {

// Faults are kept by the reader.
void ReadExtensions(JsonReader& reader, std::string& cache_salt, std::optional<CacheMode>& cache_mode, std::optional<int>& priority);

}  // namespace deepinfer::protocols
