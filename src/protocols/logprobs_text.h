// SPDX-License-Identifier: Apache-2.0
//
// Log probabilities as the responses show them (protocols.md 5.6), appended as JSON text.
#pragma once

#include <span>
#include <string>

#include "protocols/output_stream.h"

namespace deepinfer::protocols {

// {"token", "logprob", "bytes", "top_logprobs"} for each token, separated by commas and without brackets around them.
void AppendLogprobEntries(std::span<const TokenLogprob> tokens, std::string& out);

}  // namespace deepinfer::protocols
