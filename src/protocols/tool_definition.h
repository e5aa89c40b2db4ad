// SPDX-License-Identifier: Apache-2.0
//
// Tools as a request declares them: checks, the strict form, tool_choice, and the two texts made of them (protocols.md 3.4, 3.5).
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "core/json.h"
#include "core/status.h"
#include "text/conversation.h"

namespace deepinfer::protocols {

struct ToolDefinition {
  std::string name;                       // what the model sees: "f", or "space::f" in a namespace
  std::optional<std::string> local_name;  // inside a namespace: "f"
  std::optional<std::string> description;
  std::optional<Json> parameters;  // after CheckTools of a strict tool: the strict form
  std::optional<Json> grammar_parameters;  // of a strict tool: what its grammar is compiled from
  std::optional<bool> strict;
  bool defer_loading = false;
};

struct ToolChoice {
  enum class Kind { kAuto, kNone, kRequired, kNamed };
  Kind kind = Kind::kAuto;
  std::string name;  // kNamed
};

// Names, schemas, uniqueness and the rules of strict tools; rebuilds strict schemas. `name_path` is how errors call the name
// field of tool i: "tools[0].function.name".
Status CheckTools(std::vector<ToolDefinition>& tools, const std::function<std::string(size_t)>& name_path);

// Leaves the tools that the model may call. Sets `is_required` when it must call one.
Status ApplyToolChoice(const ToolChoice& choice, std::vector<ToolDefinition>& tools, bool& is_required);

text::Tool ToConversationTool(const ToolDefinition& tool);

// Compact JSON list of the tools, as the constraint has it.
std::string ToolsConstraintSchema(const std::vector<ToolDefinition>& tools);
// The same with the schemas that the grammar is compiled from.
std::string ToolsGrammarSchema(std::vector<ToolDefinition> tools);

}  // namespace deepinfer::protocols
