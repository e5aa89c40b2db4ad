// SPDX-License-Identifier: Apache-2.0
//
// JSON for the whole project: nlohmann's ordered_json (keys keep the client's order), parsed without exceptions and with
// a depth limit so that a hostile document cannot exhaust the stack.
#pragma once

#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

#include "core/status.h"

namespace deepinfer {

using Json = nlohmann::ordered_json;

inline constexpr int kMaxJsonDepth = 256;

// Parses one document. Errors (kInvalidArgument) name the byte offset: "invalid JSON at byte 17: ...". Duplicate keys: the
// last value wins, in the first one's place. Invalid UTF-8 and lone surrogates are errors.
Result<Json> ParseJson(std::string_view text, int max_depth = kMaxJsonDepth);

// Reads and parses a file; every error names the path.
Result<Json> ReadJsonFile(const std::string& path, int64_t max_bytes = int64_t{1} << 28);

// One line, no blanks, non-ASCII raw; bytes that are not UTF-8 are replaced by U+FFFD (never throws).
std::string DumpJson(const Json& json);

}  // namespace deepinfer
