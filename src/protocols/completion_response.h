// SPDX-License-Identifier: Apache-2.0
//
// Finished samples -> the response of a Completions request (protocols.md 8).
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "core/json.h"
#include "deepinfer/output.h"
#include "text/tokenizer.h"

namespace deepinfer::protocols {

struct CompletionResponseInfo {
  std::string id;
  int64_t created = 0;  // seconds since 1970
  std::string model;
  std::optional<int> logprobs;  // as in the request
};

// `samples` have ended with "stop" or "length".
Json CompletionResponse(const CompletionResponseInfo& info, std::span<const Completion> samples, const text::Tokenizer& tokenizer);

}  // namespace deepinfer::protocols
