// SPDX-License-Identifier: Apache-2.0
//
// A Messages request (protocols.md 7): JSON -> typed request -> ConvertedRequest. The two steps are apart because a field of the
// wrong type is reported before any rule about values. count_tokens takes the same body.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/json.h"
#include "protocols/converted_request.h"
#include "protocols/request_rules.h"

namespace deepinfer::protocols {

struct MessagesImage {
  enum class Kind { kUrl, kBase64, kFile };
  Kind kind = Kind::kUrl;
  std::string media_type;
  std::string data;  // address, or base64
};

struct MessagesBlock {
  enum class Kind {
    kText,  // and what is shown as text: documents, search results
    kImage,
    kThinking,
    kRedactedThinking,
    kToolUse,
    kToolResult,
    kServerTool,
    kToolAddition,
    kToolReference,  // inside a tool result
  };
  Kind kind = Kind::kText;
  std::string text;   // of kText and kThinking; the tool's name of kToolAddition and kToolReference
  MessagesImage image;
  text::ToolCall call;                 // kToolUse; kToolResult: its id
  std::vector<MessagesBlock> content;  // kToolResult
};

struct MessagesMessage {
  text::Role role = text::Role::kUser;  // user, assistant, system
  std::vector<MessagesBlock> blocks;
};

struct MessagesTool {
  ToolDefinition definition;
  bool is_server_tool = false;
};

struct MessagesRequest {
  std::string model;
  std::vector<MessagesMessage> messages;
  std::optional<std::vector<std::string>> system;  // texts, joined by blank lines
  std::optional<bool> thinking;
  std::optional<Effort> effort;
  SamplingFields sampling;
  std::vector<std::string> stop;
  bool stream = false;
  std::vector<MessagesTool> tools;
  ToolChoice tool_choice;
  bool tool_choice_is_any = false;
  bool parallel_tool_calls = true;
  std::optional<ResponseFormatFields> output_format;
  std::string cache_salt;
  std::optional<CacheMode> cache_mode;
  std::optional<int> priority;
};

Result<MessagesRequest> ParseMessagesRequest(const Json& body, const ConvertOptions& options);
Result<ConvertedRequest> ConvertMessagesRequest(MessagesRequest request, const ConvertOptions& options);

// {"input_tokens": N}
std::string CountTokensBody(int64_t num_tokens);

}  // namespace deepinfer::protocols
