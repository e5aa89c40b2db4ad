// SPDX-License-Identifier: Apache-2.0
//
// The result of every conversion: a rendered prompt for the tokenizer, options for the engine, options for the output parser,
// and what the response encoder must know.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "protocols/api.h"
#include "protocols/inference_options.h"
#include "protocols/responses_echo.h"
#include "text/conversation.h"
#include "text/output_parser.h"
#include "text/prompt_renderer.h"

namespace deepinfer::protocols {

enum class CacheMode { kReplay, kExact, kOff };

struct ConvertedRequest {
  Api api = Api::kChat;
  std::string model;  // as the client wrote it
  text::Conversation conversation;
  text::RenderedPrompt prompt;
  InferenceOptions inference;
  text::ParserOptions parsing;
  std::string effort_name;  // low, high, xhigh, max; empty for a number or without thinking

  bool stream = false;
  bool include_usage = false;  // usage key on every chunk
  bool has_usage_chunk = false;  // a last chunk without choices that holds the usage
  std::shared_ptr<const ResponsesEcho> responses_echo;  // Responses only

  // Engine extensions.
  std::string cache_salt;
  std::optional<CacheMode> cache_mode;
  std::optional<int> priority;  // 0 interactive, 1 standard, 2 batch
};

// What every protocol's request has beside the conversation.
template <typename Request>
void TakeEnvelope(Request& request, ConvertedRequest& out) {
  out.model = std::move(request.model);
  out.stream = request.stream;
  out.cache_salt = std::move(request.cache_salt);
  out.cache_mode = request.cache_mode;
  out.priority = request.priority;
}

// Renders the prompt and fills in the parser options that follow from it.
void FinishConversion(const ConvertOptions& options, ConvertedRequest& request);

// "The supported API model names are A, B, but you passed X."
Status CheckModelName(std::string_view model, const ConvertOptions& options);

}  // namespace deepinfer::protocols
