// SPDX-License-Identifier: Apache-2.0
//
// A Chat Completions request (protocols.md 5.1): JSON text -> typed request -> ConvertedRequest. The two steps are apart because
// a field of the wrong type is reported before any rule about values.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/json.h"
#include "protocols/converted_request.h"
#include "protocols/effort.h"
#include "protocols/request_rules.h"
#include "protocols/tool_definition.h"

namespace deepinfer::protocols {

struct ChatPart {
  enum class Kind { kText, kImageUrl, kFile };
  Kind kind = Kind::kText;
  std::string text;    // kText, and the address of kImageUrl
  std::string detail = "high";
  std::optional<std::string> file_data;
  std::optional<std::string> file_id;
};

struct ChatMessage {
  text::Role role = text::Role::kUser;
  std::optional<std::vector<ChatPart>> content;
  std::optional<std::string> reasoning_content;
  std::optional<std::vector<text::ToolCall>> tool_calls;
  std::string tool_call_id;
  bool prefix = false;
};

struct ChatRequest {
  std::string model;
  std::vector<ChatMessage> messages;
  std::optional<bool> thinking;  // false: disabled
  std::optional<Effort> effort;
  SamplingFields sampling;
  std::vector<std::string> stop;
  bool stop_is_list = false;
  bool stream = false;
  std::optional<bool> include_usage;  // set when stream_options is present
  std::vector<ToolDefinition> tools;
  ToolChoice tool_choice;
  std::optional<ResponseFormatFields> response_format;
  bool logprobs = false;
  std::optional<uint64_t> top_logprobs;
  std::optional<uint64_t> n;
  bool parallel_tool_calls = true;
  bool continue_final_message = false;
  std::string cache_salt;
  std::optional<CacheMode> cache_mode;
  std::optional<int> priority;
};

Result<ChatRequest> ParseChatRequest(const Json& body, const ConvertOptions& options);

Result<ConvertedRequest> ConvertChatRequest(ChatRequest request, const ConvertOptions& options);

}  // namespace deepinfer::protocols
