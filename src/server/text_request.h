// SPDX-License-Identifier: Apache-2.0
//
// From what the protocols convert to what the engine runs. Shared by the server and the offline batches.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "core/status.h"
#include "engine/async_engine.h"
#include "protocols/completion_request.h"
#include "protocols/converted_request.h"

namespace deepinfer::server {

std::optional<engine::CacheMode> EngineCacheMode(const std::optional<protocols::CacheMode>& mode);

// Compiles a grammar before anything is scheduled; it may take long. Null: this build has no structured outputs.
using GrammarCheck = std::function<Status(const StructuredOutput&)>;

// Errors are the client's: images, a grammar that does not compile, a prompt that does not fit. kUnimplemented for what this
// version cannot do.
Result<engine::TextRequest> MakeTextRequest(const protocols::ConvertedRequest& converted, const text::Tokenizer& tokenizer,
                                            const protocols::ConvertOptions& options, int64_t max_model_len, const GrammarCheck& check_grammar);

// One for each prompt.
Result<std::vector<engine::TextRequest>> MakeTextRequests(const protocols::CompletionRequest& request, const text::Tokenizer& tokenizer,
                                                          const GrammarCheck& check_grammar);

}  // namespace deepinfer::server
