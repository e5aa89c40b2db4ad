// SPDX-License-Identifier: Apache-2.0
#include "protocols/tool_definition.h"

#include <algorithm>
#include <unordered_set>

#include <fmt/format.h>

#include "protocols/grammar_schema.h"
#include "protocols/schema_check.h"
#include "protocols/strict_schema.h"
#include "text/python_json.h"

namespace deepinfer::protocols {

namespace {

constexpr std::string_view kNameCharacters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-";

Status CheckName(const std::string& name, const std::string& path) {
  if (name.empty()) {
    return InvalidArgument(
        fmt::format(
            "Invalid '{}': empty string. Expected a string with minimum length 1, but got an empty string instead.", path),
        path);
  }
  if (name.find_first_not_of(kNameCharacters) != std::string::npos) {
    return InvalidArgument(fmt::format("Invalid '{}': string does not match pattern. Expected a string that matches the "
                                       "pattern '^[a-zA-Z0-9_-]+$'.",
                                       path),
                           path);
  }
  return Status::Ok();
}

Status CheckParameters(const std::string& name, const Json& parameters) {
  Status valid = CheckJsonSchema(parameters);
  if (valid.ok()) {
    const Json* type = nullptr;
    if (parameters.is_object()) {
      if (const auto it = parameters.find("type"); it != parameters.end()) type = &*it;
    }
    if (type != nullptr && *type == "object") return Status::Ok();
    valid = InvalidArgument(fmt::format("schema must be a JSON Schema of 'type: \"object\"', got 'type: {}'.",
                                        type == nullptr ? "null" : text::CompactJson(*type)));
  }
  return InvalidArgument(fmt::format("Invalid schema for function '{}': {}", name, valid.message()));
}

}  // namespace

Status CheckTools(std::vector<ToolDefinition>& tools, const std::function<std::string(size_t)>& name_path) {
  std::unordered_set<std::string_view> names;
  bool any_strict = false;
  bool all_strict = true;
  for (size_t i = 0; i < tools.size(); ++i) {
    const ToolDefinition& tool = tools[i];
    const std::string& name = tool.local_name ? *tool.local_name : tool.name;
    DI_RETURN_IF_ERROR(CheckName(name, name_path(i)));
    if (tool.parameters) DI_RETURN_IF_ERROR(CheckParameters(name, *tool.parameters));
    const bool is_strict = tool.strict.value_or(false);
    any_strict = any_strict || is_strict;
    all_strict = all_strict && is_strict;
  }
  for (const ToolDefinition& tool : tools) {
    if (!names.insert(tool.name).second) return InvalidArgument("Tool names must be unique.");
  }
  if (!any_strict) return Status::Ok();
  if (!all_strict) return InvalidArgument("Cannot use strict tool with non-strict tool in the same request");
  for (ToolDefinition& tool : tools) {
    if (!tool.parameters) continue;
    tool.grammar_parameters = std::move(tool.parameters);
    DI_ASSIGN_OR_RETURN(tool.parameters, RebuildStrict(*tool.grammar_parameters, StrictUse::kToolParameters));
    tool.grammar_parameters = ClosedSchema(*tool.grammar_parameters);
  }
  return Status::Ok();
}

Status ApplyToolChoice(const ToolChoice& choice, std::vector<ToolDefinition>& tools, bool& is_required) {
  is_required = false;
  if (tools.empty()) return Status::Ok();
  switch (choice.kind) {
    case ToolChoice::Kind::kAuto: break;
    case ToolChoice::Kind::kNone: tools.clear(); break;
    case ToolChoice::Kind::kRequired: is_required = true; break;
    case ToolChoice::Kind::kNamed: {
      const auto it = std::find_if(
          tools.begin(), tools.end(), [&](const ToolDefinition& tool) { return tool.name == choice.name; });
      if (it == tools.end()) {
        return InvalidArgument(fmt::format(
            "Invalid value for 'tool_call': no function named '{}' was specified in the 'tools' parameter.", choice.name));
      }
      ToolDefinition named = std::move(*it);
      tools.clear();
      tools.push_back(std::move(named));
      is_required = true;
      break;
    }
  }
  return Status::Ok();
}

text::Tool ToConversationTool(const ToolDefinition& tool) {
  text::Tool out;
  out.name = tool.name;
  out.description = tool.description.value_or("");
  if (tool.parameters) out.parameters = text::PythonJson(*tool.parameters);
  out.defer_loading = tool.defer_loading;
  return out;
}

std::string ToolsConstraintSchema(const std::vector<ToolDefinition>& tools) {
  std::string out = "[";
  for (const ToolDefinition& tool : tools) {
    if (out.size() > 1) out += ',';
    out += R"({"type":"function","function":{"name":")";
    text::AppendJsonEscaped(tool.name, out);
    out += R"(","description":)";
    if (tool.description) {
      out += '"';
      text::AppendJsonEscaped(*tool.description, out);
      out += '"';
    } else {
      out += "null";
    }
    out += R"(,"parameters":)";
    if (tool.parameters) {
      text::AppendJson(*tool.parameters, text::JsonStyle::kCompact, out);
    } else {
      out += "{}";
    }
    out += R"(,"strict":)";
    out += !tool.strict ? "null" : *tool.strict ? "true" : "false";
    out += '}';
    if (tool.defer_loading) out += R"(,"defer_loading":true)";
    out += '}';
  }
  return out + "]";
}

std::string ToolsGrammarSchema(std::vector<ToolDefinition> tools) {
  for (ToolDefinition& tool : tools) {
    if (tool.grammar_parameters) tool.parameters = std::move(tool.grammar_parameters);
  }
  return ToolsConstraintSchema(tools);
}

}  // namespace deepinfer::protocols
