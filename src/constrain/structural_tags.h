// SPDX-License-Identifier: Apache-2.0
//
// From what an API request asks for (tools, tool choice, response format, thinking) to a GrammarSpec. Two ways to say
// "constrained after thinking": a trigger on </think>, where a plain grammar follows, and a structural tag, where tools do.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "constrain/grammar.h"
#include "core/status.h"

namespace deepinfer::constrain {

// JSON answers of the server: at most that many blanks in a row, so that a model cannot loop in them.
inline constexpr int kServerMaxWhitespace = 8;

struct ToolSchema {
  std::string name;  // or "namespace::name"
  Json parameters;   // JSON schema; null or {} = a tool without parameters
  bool strict = false;  // every parameter once, in the order of the schema
};

enum class ToolChoice {
  kNone,
  kAuto,  // free text, then at most one block of calls
  // Without thinking the prompt ends inside the block of calls; with it the answer opens the block itself, after </think>
  // (--tool-choice-thinking grammar).
  kRequired,
};

struct TagRequest {
  std::vector<ToolSchema> tools;
  ToolChoice choice = ToolChoice::kAuto;
  bool is_thinking = false;        // the prompt ends with <think>
  bool parallel_tool_calls = true;
  // JSON answer beside tools or reasoning: a schema, or {} of type object. Only with kNone and kAuto.
  std::optional<Json> response_schema;
};

// The text of the structural tag.
std::string StructuralTagText(const TagRequest& request);
GrammarSpec StructuralTagSpec(const TagRequest& request);

// The tools of a constraint ("compact JSON list of tools": [{"type":"function","function":{...}}, ...]).
Result<std::vector<ToolSchema>> ToolSchemasFromJson(std::string_view tools_json);

// json with a schema, json with "" (any object), regex. think_end_id: the id of </think> when the prompt ends with <think>.
GrammarSpec JsonSpec(std::string schema, std::optional<int32_t> think_end_id);
GrammarSpec RegexSpec(std::string pattern, std::optional<int32_t> think_end_id);

}  // namespace deepinfer::constrain
