// SPDX-License-Identifier: Apache-2.0
//
// Inputs of commands: stdin, and the model directory that --model names.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "cli/command.h"

namespace deepinfer::cli {

inline constexpr int64_t kMaxStdinBytes = int64_t{1} << 30;
// One prompt or message; far more than any context holds. Refused before it is tokenised.
inline constexpr int64_t kMaxPromptBytes = int64_t{64} << 20;

// All of stdin. kBadModel when it cannot be read or is larger than max_bytes; kCancelled on Ctrl-C.
Result<std::string> ReadStdin(int64_t max_bytes = kMaxStdinBytes);

// Calls fn(line, number) for every line of `text` that is not blank; lines end with \n or \r\n, numbers start at 1. Stops
// at the first error, which gets the place in front: "stdin line 7".
Status ForEachLine(std::string_view text, const std::function<Status(std::string_view line, int64_t number)>& fn,
                   std::string_view name = "stdin");

// The directory of --model (core options model and revision). Errors are kBadModel.
Result<std::string> ModelDir(const Invocation& invocation);

}  // namespace deepinfer::cli
