// SPDX-License-Identifier: Apache-2.0
//
// One request of a batch file on its way through the engine: from its URL and body to a prompt, from tokens to the body of
// its response. Chat Completions go through the protocol's conversion and output parser, Completions are raw prompts.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/json.h"
#include "core/status.h"
#include "deepinfer/output.h"
#include "engine/async_engine.h"
#include "protocols/convert_options.h"
#include "text/tokenizer.h"

namespace deepinfer::cli {

// What all requests of a run share.
struct BatchContext {
  BatchContext(const text::Tokenizer& t, protocols::ConvertOptions c) : tokenizer(t), convert(std::move(c)) {}
  const text::Tokenizer& tokenizer;
  protocols::ConvertOptions convert;
  Status chat_status;  // why conversations cannot be answered: a tokenizer without the chat tokens
  int64_t max_model_len = 0;
  std::optional<int64_t> max_tokens;  // of requests that name none
  std::optional<uint64_t> seed;       // of request 0 if it names none; request i has seed + i
  // Whether a grammar compiles; null: structured outputs are not in this build.
  std::function<Status(const StructuredOutput&)> check_grammar;
};

class BatchRequest {
 public:
  // Errors are the client's: the response says them with their HTTP status. `id` makes the ids in the response.
  static Result<std::unique_ptr<BatchRequest>> Create(std::string_view url, const Json& body, size_t idx, const std::string& id,
                                                      const BatchContext& context);
  virtual ~BatchRequest() = default;

  // Once, before it is submitted.
  engine::TextRequest TakeRequest() { return std::move(request_); }
  // On the engine's output thread; the answer ends the sample.
  virtual StreamAction OnUpdate(const StreamUpdate&) { return StreamAction::kContinue; }
  // When all samples have ended, from the owner's thread. An error if one of them failed.
  Result<Json> Body(std::vector<Completion> samples);

 protected:
  virtual Json MakeBody(const std::vector<Completion>& samples) = 0;
  engine::TextRequest request_;
};

}  // namespace deepinfer::cli
