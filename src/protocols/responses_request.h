// SPDX-License-Identifier: Apache-2.0
//
// A Responses request (protocols.md 6): JSON -> typed request -> ConvertedRequest. The two steps are apart because a field of the
// wrong type is reported before any rule about values.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/json.h"
#include "protocols/converted_request.h"
#include "protocols/request_rules.h"

namespace deepinfer::protocols {

struct ResponsesPart {
  enum class Kind { kText, kImageUrl, kImageFile };
  Kind kind = Kind::kText;
  std::string text;  // or the address of the image
  std::string detail = "high";
};

struct ResponsesItem {
  enum class Kind { kMessage, kReasoning, kCall, kCallOutput };
  Kind kind = Kind::kMessage;
  size_t idx = 0;  // in the client's list
  text::Role role = text::Role::kUser;
  std::vector<ResponsesPart> parts;  // of a message or an output
  std::optional<std::string> reasoning;  // unset: the item has no text
  text::ToolCall call;                   // kCallOutput: its id
};

struct ResponsesTool {
  ToolDefinition definition;
  std::string path;  // of its name: tools[0].name, tools[1].tools[0].name
};

struct ResponsesRequest {
  std::string model;
  std::optional<std::vector<ResponsesItem>> input;  // what is dropped silently is gone already
  bool input_is_empty_list = false;
  std::optional<std::string> instructions;
  std::string history_field;  // previous_response_id or conversation, if one has a value
  std::optional<Effort> effort;
  SamplingFields sampling;
  std::optional<uint64_t> top_logprobs;
  bool stream = false;
  std::vector<ResponsesTool> tools;
  Status tools_status;  // a fault of the tools' values, reported after the types
  ToolChoice tool_choice;
  bool parallel_tool_calls = true;
  std::optional<ResponseFormatFields> format;
  std::string cache_salt;
  std::optional<CacheMode> cache_mode;
  std::optional<int> priority;
  ResponsesEcho echo;
};

Result<ResponsesRequest> ParseResponsesRequest(const Json& body, const ConvertOptions& options);
Result<ConvertedRequest> ConvertResponsesRequest(ResponsesRequest request, const ConvertOptions& options);

}  // namespace deepinfer::protocols
