// SPDX-License-Identifier: Apache-2.0
#include "constrain/structural_tags.h"

#include <utility>

#include <fmt/format.h>

namespace deepinfer::constrain {
namespace {

constexpr const char* kThinkBegin = "<think>";
constexpr const char* kThinkEnd = "</think>";
constexpr const char* kCallsBegin = "<｜DSML｜ calls>\n";
constexpr const char* kCallsEnd = "</｜DSML｜ calls>";
constexpr const char* kTagEnd = "</｜DSML｜";  // ends a value for the output parser, whatever follows

Json ConstString(std::string value) { return {{"type", "const_string"}, {"value", std::move(value)}}; }
Json Sequence(Json elements) { return {{"type", "sequence"}, {"elements", std::move(elements)}}; }
Json Reasoning() { return {{"type", "any_text"}, {"excludes", Json::array({kThinkBegin, kThinkEnd})}}; }

Json Tool(const ToolSchema& tool) {
  Json parameters = tool.parameters;
  if (parameters.is_null() || (parameters.is_object() && parameters.empty())) {
    parameters = {{"type", "object"}, {"properties", Json::object()}};
  }
  Json content = {{"type", "json_schema"},
                  {"style", "deepseek_v4_1_xml"},
                  // In any order a grammar only counts parameters: one given twice stands for another that is missing.
                  {"any_order", !tool.strict},
                  {"excludes", Json::array({kTagEnd})},
                  {"json_schema", std::move(parameters)}};
  return {{"type", "tag"},
          {"begin", fmt::format("<｜DSML｜ invoke name=\"{}\">\n", tool.name)},
          {"content", std::move(content)},
          {"end", "</｜DSML｜ invoke>\n"}};
}

Json Block(const TagRequest& request) {
  Json tags = Json::array();
  for (const ToolSchema& tool : request.tools) tags.push_back(Tool(tool));
  return {{"type", "tags_with_separator"},
          {"tags", std::move(tags)},
          {"separator", ""},
          {"at_least_one", true},
          {"stop_after_first", !request.parallel_tool_calls}};
}

Json CallsTag(const TagRequest& request, const char* begin) {
  return {{"type", "tag"}, {"begin", begin}, {"content", Block(request)}, {"end", kCallsEnd}};
}

Json Auto(const TagRequest& request) {
  return {{"type", "triggered_tags"},
          {"triggers", Json::array({"<｜DSML｜"})},
          {"tags", Json::array({CallsTag(request, kCallsBegin)})},
          {"excludes", Json::array({kThinkBegin, kThinkEnd})},
          {"stop_after_first", true}};
}

Json Required(const TagRequest& request) { return Sequence(Json::array({Block(request), ConstString(kCallsEnd)})); }

Json JsonAnswer(const TagRequest& request) {
  Json answer = {{"type", "json_schema"},
                 {"json_schema", *request.response_schema},
                 {"max_whitespace_cnt", kServerMaxWhitespace}};
  if (request.choice == ToolChoice::kNone || request.tools.empty()) return answer;
  return {{"type", "or"},
          {"elements", Json::array({CallsTag(request, "\n\n<｜DSML｜ calls>\n"), CallsTag(request, kCallsBegin),
                                    std::move(answer)})}};
}

Json Answer(const TagRequest& request) {
  const bool has_tools = request.choice != ToolChoice::kNone && !request.tools.empty();
  if (has_tools && request.choice == ToolChoice::kRequired) return Required(request);
  if (request.response_schema) return JsonAnswer(request);
  if (has_tools) return Auto(request);
  return {{"type", "any_text"}, {"excludes", Json::array({kThinkBegin, kThinkEnd, "<｜DSML｜ calls>"})}};
}

}  // namespace

std::string StructuralTagText(const TagRequest& request) {
  Json format = Answer(request);
  if (request.is_thinking) {
    const bool opens_block = request.choice == ToolChoice::kRequired && !request.tools.empty();
    const std::string end = opens_block ? fmt::format("{}\n\n{}", kThinkEnd, kCallsBegin) : kThinkEnd;
    format = Sequence(Json::array({Reasoning(), ConstString(end), std::move(format)}));
  }
  return DumpJson({{"type", "structural_tag"}, {"format", std::move(format)}});
}

GrammarSpec StructuralTagSpec(const TagRequest& request) {
  GrammarSpec spec;
  spec.kind = GrammarKind::kStructuralTag;
  spec.text = StructuralTagText(request);
  return spec;
}

Result<std::vector<ToolSchema>> ToolSchemasFromJson(std::string_view tools_json) {
  DI_ASSIGN_OR_RETURN(const Json list, ParseJson(tools_json));
  std::vector<ToolSchema> tools;
  if (!list.is_array()) return InvalidArgument("tools must be a list", "tools");
  for (const Json& entry : list) {
    const auto function = entry.is_object() ? entry.find("function") : entry.end();
    if (!entry.is_object() || function == entry.end() || !function->is_object() || !function->contains("name") ||
        !(*function)["name"].is_string()) {
      return InvalidArgument(fmt::format("tools[{}].function.name is missing", tools.size()), "tools");
    }
    const auto strict = function->find("strict");
    tools.push_back({(*function)["name"].get<std::string>(), function->value("parameters", Json()),
                     strict != function->end() && strict->is_boolean() && strict->get<bool>()});
  }
  return tools;
}

GrammarSpec JsonSpec(std::string schema, std::optional<int32_t> think_end_id) {
  GrammarSpec spec;
  spec.kind = schema.empty() ? GrammarKind::kJsonObject : GrammarKind::kJsonSchema;
  spec.text = std::move(schema);
  spec.max_whitespace_cnt = kServerMaxWhitespace;
  if (think_end_id) spec.trigger_token_ids = {*think_end_id};
  return spec;
}

GrammarSpec RegexSpec(std::string pattern, std::optional<int32_t> think_end_id) {
  GrammarSpec spec;
  spec.kind = GrammarKind::kRegex;
  spec.text = std::move(pattern);
  if (think_end_id) spec.trigger_token_ids = {*think_end_id};
  return spec;
}

}  // namespace deepinfer::constrain
