// SPDX-License-Identifier: Apache-2.0
//
// Rules that the conversations of all protocols share once their fields are read: thinking, tools, response format
// (protocols.md 3.1, 3.4, 3.5). They fill in a ConvertedRequest whose `api` is set.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "core/json.h"
#include "protocols/converted_request.h"
#include "protocols/effort.h"
#include "protocols/json_reader.h"
#include "protocols/tool_definition.h"

namespace deepinfer::protocols {

struct ResponseFormatFields {
  text::ResponseFormat::Kind kind = text::ResponseFormat::Kind::kText;
  Json schema;
  bool strict = false;
  std::string regex;
};

// `thinking` {"type": "enabled" | "adaptive" | "disabled"}; unset when absent. Faults are kept by the reader.
std::optional<bool> ReadThinking(JsonReader& reader);
// The effort in field `key` of `reader`.
std::optional<Effort> ReadEffort(JsonReader& reader, std::string_view key);

// What `thinking` says wins over effort "none".
void ApplyThinking(const std::optional<bool>& thinking, const std::optional<Effort>& effort, ConvertedRequest& out);

// Checks the tools, applies the choice and hands on what is left: to the conversation and as the constraint.
Status ApplyTools(std::vector<ToolDefinition>& tools,
                  const ToolChoice& choice,
                  const std::function<std::string(size_t)>& name_path,
                  bool has_response_format,
                  const ConvertOptions& options,
                  ConvertedRequest& out);

// After the messages and ApplyTools: the format is the constraint only if no tools are shown.
Status ApplyResponseFormat(const std::optional<ResponseFormatFields>& format, ConvertedRequest& out);

// `--missing-reasoning reject`: every earlier answer must bring its reasoning.
Status CheckReasoningHistory(const ConvertedRequest& request);

}  // namespace deepinfer::protocols
