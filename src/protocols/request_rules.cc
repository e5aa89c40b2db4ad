// SPDX-License-Identifier: Apache-2.0
#include "protocols/request_rules.h"

#include <utility>

#include <fmt/format.h>

#include "protocols/grammar_schema.h"
#include "protocols/schema_check.h"
#include "protocols/strict_schema.h"
#include "text/python_json.h"

namespace deepinfer::protocols {

namespace {

using text::ResponseFormat;
using text::Role;

constexpr std::array<std::pair<std::string_view, bool>, 3> kThinkingTypes = {
    {{"enabled", true}, {"adaptive", true}, {"disabled", false}}};

bool MentionsJson(const text::Conversation& conversation) {
  for (const text::Message& message : conversation.messages) {
    std::string joined = message.JoinedText();
    for (char& c : joined) {
      if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
    }
    if (joined.find("json") != std::string::npos) return true;
  }
  return false;
}

}  // namespace

std::optional<bool> ReadThinking(JsonReader& reader) {
  const Json* thinking = reader.Object("thinking");
  if (thinking == nullptr) return std::nullopt;
  JsonReader inner(*thinking, reader.PathOf("thinking"));
  const std::string type = inner.RequiredString("type");
  std::optional<bool> is_on;
  if (inner.ok()) is_on = OneOf(inner, "type", type, kThinkingTypes);
  reader.Absorb(inner.status());
  return is_on;
}

std::optional<Effort> ReadEffort(JsonReader& reader, std::string_view key) {
  const Json* json = reader.Find(key);
  if (json == nullptr) return std::nullopt;
  Result<Effort> effort = ParseEffort(*json, reader.PathOf(key));
  if (effort.ok()) return *std::move(effort);
  reader.Absorb(effort.status());
  return std::nullopt;
}

void ApplyThinking(const std::optional<bool>& thinking, const std::optional<Effort>& effort, ConvertedRequest& out) {
  const bool is_none = effort && effort->is_none;
  out.conversation.thinking = thinking.value_or(!is_none);
  if (!out.conversation.thinking) return;
  const Effort used = effort && !is_none ? *effort : Effort();
  out.conversation.effort = used.value;
  out.effort_name = used.name;
}

Status ApplyTools(std::vector<ToolDefinition>& tools,
                  const ToolChoice& choice,
                  const std::function<std::string(size_t)>& name_path,
                  bool has_response_format,
                  const ConvertOptions& options,
                  ConvertedRequest& out) {
  if (tools.size() > options.max_tools) {
    return InvalidArgument(fmt::format("Too many tools: {}, the limit is {}", tools.size(), options.max_tools));
  }
  DI_RETURN_IF_ERROR(CheckTools(tools, name_path));
  const bool any_strict = !tools.empty() && tools.front().strict.value_or(false);  // all or none
  if (any_strict && has_response_format) return InvalidArgument("response_format should not be used with tools");
  bool is_required = false;
  DI_RETURN_IF_ERROR(ApplyToolChoice(choice, tools, is_required));
  const bool thinking = out.conversation.thinking;
  if (is_required && thinking && !options.tool_choice_thinking_grammar) {
    return InvalidArgument("Thinking mode does not support this tool_choice");
  }
  out.conversation.tool_call_required = is_required && !thinking;
  for (const ToolDefinition& tool : tools) out.conversation.tools.push_back(ToConversationTool(tool));
  if (tools.empty()) return Status::Ok();
  Constraint& constraint = out.inference.constraint.emplace();
  constraint.kind = is_required ? ConstraintKind::kToolCallRequired : ConstraintKind::kToolCall;
  constraint.schema = ToolsConstraintSchema(tools);
  if (any_strict) constraint.grammar_schema = ToolsGrammarSchema(tools);
  return Status::Ok();
}

Status ApplyResponseFormat(const std::optional<ResponseFormatFields>& format, ConvertedRequest& out) {
  if (!format) return Status::Ok();
  out.conversation.response_format.kind = format->kind;
  std::optional<Constraint> constraint;
  switch (format->kind) {
    case ResponseFormat::Kind::kText: break;
    case ResponseFormat::Kind::kJsonObject:
      if (!MentionsJson(out.conversation)) {
        return InvalidArgument(out.api == Api::kResponses
                                   ? "Response input messages must contain the word 'json' in some form to use 'text.format' of "
                                     "type 'json_object'."
                                   : "Prompt must contain the word 'json' in some form to use 'response_format' of type "
                                     "'json_object'.");
      }
      constraint = Constraint{ConstraintKind::kJson, ""};
      break;
    case ResponseFormat::Kind::kJsonSchema: {
      const Status valid = CheckJsonSchema(format->schema);
      if (!valid.ok()) return InvalidArgument("Invalid json schema: " + valid.message());
      out.conversation.response_format.schema = text::PythonJson(format->schema);
      if (format->strict) {
        DI_ASSIGN_OR_RETURN(const Json strict, RebuildStrict(format->schema, StrictUse::kJsonSchema));
        constraint = Constraint{ConstraintKind::kJson, text::CompactJson(strict), text::CompactJson(ClosedSchema(format->schema))};
      } else {
        constraint = Constraint{ConstraintKind::kJson, text::CompactJson(format->schema)};
      }
      break;
    }
    case ResponseFormat::Kind::kRegex: constraint = Constraint{ConstraintKind::kRegex, format->regex}; break;
  }
  if (!out.inference.constraint) {
    out.inference.constraint = std::move(constraint);
  } else if (out.inference.constraint->kind == ConstraintKind::kToolCall && constraint && constraint->kind == ConstraintKind::kJson) {
    // An answer without calls is held to the format.
    out.inference.constraint->response_schema = constraint->schema.empty()           ? R"({"type":"object"})"
                                                : constraint->grammar_schema.empty() ? constraint->schema
                                                                                     : constraint->grammar_schema;
  }
  return Status::Ok();
}

Status CheckReasoningHistory(const ConvertedRequest& request) {
  const text::Conversation& conversation = request.conversation;
  if (!conversation.thinking || conversation.tools.empty()) return Status::Ok();
  for (const text::Message& message : conversation.messages) {
    if (message.role != Role::kAssistant || message.prefix || message.reasoning) continue;
    return InvalidArgument(
        fmt::format("The `{}` in the thinking mode must be passed back to the API.",
                    request.api == Api::kMessages ? "content[].thinking" : "reasoning_content"));
  }
  return Status::Ok();
}

}  // namespace deepinfer::protocols
