// SPDX-License-Identifier: Apache-2.0
#include "protocols/answer_grammar.h"

#include <utility>

#include "constrain/structural_tags.h"

namespace deepinfer::protocols {

Result<std::optional<constrain::GrammarSpec>> AnswerGrammar(const ConvertedRequest& request, int32_t end_think_id) {
  if (!request.inference.constraint) return std::optional<constrain::GrammarSpec>();
  const Constraint& constraint = *request.inference.constraint;
  const bool is_thinking = request.prompt.stage == text::InitialStage::kReasoningStart ||
                           request.prompt.stage == text::InitialStage::kReasoningContinuation;
  const std::string& schema = constraint.grammar_schema.empty() ? constraint.schema : constraint.grammar_schema;
  const std::optional<int32_t> trigger = is_thinking ? std::optional(end_think_id) : std::nullopt;
  switch (constraint.kind) {
    case ConstraintKind::kJson: return std::optional(constrain::JsonSpec(schema, trigger));
    case ConstraintKind::kRegex: return std::optional(constrain::RegexSpec(schema, trigger));
    case ConstraintKind::kToolCall:
    case ConstraintKind::kToolCallRequired: break;
  }
  constrain::TagRequest tags;
  DI_ASSIGN_OR_RETURN(tags.tools, constrain::ToolSchemasFromJson(schema));
  tags.is_thinking = is_thinking;
  tags.parallel_tool_calls = request.inference.parallel_tool_calls;
  if (constraint.kind == ConstraintKind::kToolCall) {
    tags.choice = constrain::ToolChoice::kAuto;
    if (constraint.response_schema) {
      DI_ASSIGN_OR_RETURN(tags.response_schema, ParseJson(*constraint.response_schema));
    }
  } else {
    tags.choice = constrain::ToolChoice::kRequired;
  }
  return std::optional(constrain::StructuralTagSpec(tags));
}

}  // namespace deepinfer::protocols
