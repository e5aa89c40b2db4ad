// SPDX-License-Identifier: Apache-2.0
#include "text/prompt_renderer.h"

#include <algorithm>
#include <span>
#include <unordered_map>
#include <utility>

#include <fmt/format.h>

#include "core/json.h"
#include "text/python_json.h"

namespace deepinfer::text {

namespace {

// Marks in the fixed texts below; the writer replaces them by special tokens.
constexpr char kDsmlMark = '\x01';
constexpr char kThinkMark = '\x02';
constexpr char kEndThinkMark = '\x03';

constexpr std::string_view kToolsIntro =
    "\n\n## Tools\n\n"
    "You have access to a set of tools to help answer the user's question. You can invoke tools by writing a \"<\x01 calls>\" "
    "block like the following:\n\n"
    "<\x01 calls>\n"
    "<\x01 invoke name=\"$TOOL_NAME\">\n"
    "<\x01 parameter name=\"$PARAMETER_NAME\" string=\"true|false\">$PARAMETER_VALUE</\x01 parameter>\n"
    "...\n"
    "</\x01 invoke>\n"
    "<\x01 invoke name=\"$TOOL_NAME2\">\n"
    "...\n"
    "</\x01 invoke>\n"
    "</\x01 calls>\n\n"
    "String parameters should be specified as is and set `string=\"true\"`. For all other types (numbers, booleans, arrays, "
    "objects), pass the value in JSON format and set `string=\"false\"`.\n\n"
    "If thinking_mode is enabled (triggered by \x02), you MUST output your complete reasoning inside \x02...\x03 BEFORE any "
    "tool calls or final response.\n\n"
    "Otherwise, output directly after \x03 with tool calls or final response.\n\n"
    "### Available Tool Schemas\n\n";
constexpr std::string_view kToolsOutro =
    "\n\nYou MUST strictly follow the above defined tool name and parameter schemas to invoke tool calls.\n";
constexpr std::string_view kUpdatedTools = "\n\n### Updated Tool Schemas\n\n";
constexpr std::string_view kFormatIntro =
    "\n\n## Response Format:\n\nYou MUST strictly adhere to the following schema to reply:\n";

class PromptWriter {
 public:
  PromptWriter(const PromptTokens& tokens, RenderedPrompt& prompt) : tokens_(tokens), prompt_(prompt) {}

  void Plain(std::string_view text) { prompt_.text += text; }

  void Special(std::string_view token) {
    const size_t begin = prompt_.text.size();
    prompt_.text += token;
    prompt_.special_ranges.push_back({begin, prompt_.text.size()});
  }

  // Our own text only: client text could hold the mark bytes.
  void Marked(std::string_view text) {
    size_t done = 0;
    for (size_t i = 0; i < text.size(); ++i) {
      const char c = text[i];
      if (c != kDsmlMark && c != kThinkMark && c != kEndThinkMark) continue;
      Plain(text.substr(done, i - done));
      Special(c == kDsmlMark ? tokens_.dsml : c == kThinkMark ? tokens_.think : tokens_.end_think);
      done = i + 1;
    }
    Plain(text.substr(done));
  }

  void Content(const Message& message) {
    bool first = true;
    for (const ContentPart& part : message.parts) {
      if (!first) Plain("\n\n");
      first = false;
      if (part.image) {
        Special(tokens_.image);
        prompt_.images.push_back(*part.image);
      } else {
        Plain(part.text);
      }
    }
  }

  void SchemaLine(const Tool& tool) {
    std::string& out = prompt_.text;
    out += "{\"name\": \"";
    AppendJsonEscaped(tool.name, out);
    out += "\", \"description\": \"";
    AppendJsonEscaped(tool.description, out);
    out += "\", \"parameters\": ";
    out += tool.parameters;
    out += '}';
  }

  void ToolsBlock(std::span<const Tool> tools) {
    Marked(kToolsIntro);
    bool first = true;
    for (const Tool& tool : tools) {
      if (tool.defer_loading) continue;
      if (!first) Plain("\n");
      first = false;
      SchemaLine(tool);
    }
    Plain(kToolsOutro);
  }

  void UpdatedTools(std::span<const Tool> tools, std::span<const size_t> added) {
    if (added.empty()) return;
    Plain(kUpdatedTools);
    bool first = true;
    for (const size_t i : added) {
      if (i >= tools.size()) continue;
      if (!first) Plain("\n");
      first = false;
      SchemaLine(tools[i]);
    }
  }

  void FormatBlock(const ResponseFormat& format) {
    if (format.kind == ResponseFormat::Kind::kJsonObject) {
      Plain(kFormatIntro);
      Plain("{\"type\": \"json_object\"}");
    } else if (format.kind == ResponseFormat::Kind::kJsonSchema) {
      Plain(kFormatIntro);
      Plain(format.schema);
    }
  }

  void CallsBlock(std::span<const ToolCall> calls) {
    Marked("\n\n<\x01 calls>\n");
    bool first = true;
    for (const ToolCall& call : calls) {
      if (!first) Plain("\n");
      first = false;
      Invoke(call);
    }
    Marked("\n</\x01 calls>");
  }

 private:
  void Invoke(const ToolCall& call) {
    Marked("<\x01 invoke name=\"");
    Plain(call.name);
    Plain("\">\n");
    // One parse only. Whatever is not a JSON object is passed on as it is, so that no history is ever refused or altered.
    const Result<Json> arguments = ParseJson(call.arguments);
    if (arguments.ok() && arguments->is_object()) {
      bool first = true;
      for (const auto& [name, value] : arguments->items()) {
        if (!first) Plain("\n");
        first = false;
        if (value.is_string()) {
          Parameter(name, true, value.get_ref<const std::string&>());
        } else {
          Parameter(name, false, PythonJson(value));
        }
      }
    } else {
      Parameter("arguments", true, call.arguments);
    }
    Marked("\n</\x01 invoke>");
  }

  void Parameter(std::string_view name, bool is_string, std::string_view value) {
    Marked("<\x01 parameter name=\"");
    Plain(name);
    Plain(is_string ? "\" string=\"true\">" : "\" string=\"false\">");
    Plain(value);
    Marked("</\x01 parameter>");
  }

  const PromptTokens& tokens_;
  RenderedPrompt& prompt_;
};

class Renderer {
 public:
  Renderer(const Conversation& conversation, const PromptTokens& tokens, RenderedPrompt& prompt)
      : conversation_(conversation), tokens_(tokens), prompt_(prompt), writer_(tokens, prompt) {}

  void Run() {
    const std::vector<Message>& messages = conversation_.messages;
    Head();
    size_t i = has_first_system_ ? 1 : 0;
    while (i < messages.size()) {
      const Message& message = messages[i];
      switch (message.role) {
        case Role::kSystem:
          writer_.Special(tokens_.system);
          writer_.Content(message);
          writer_.UpdatedTools(conversation_.tools, message.added_tools);
          ++i;
          break;
        case Role::kLatestReminder:
          writer_.Special(tokens_.latest_reminder);
          writer_.Content(message);
          ++i;
          break;
        case Role::kAssistant:
          last_calls_ = message.tool_calls;
          Assistant(message, /*is_last=*/i + 1 == messages.size());
          ++i;
          break;
        case Role::kUser:
        case Role::kTool: i = UserTurn(i); break;
      }
    }
    Tail();
  }

 private:
  // BOS, the effort line and the first system message, which may be an implied empty one.
  void Head() {
    writer_.Special(tokens_.bos);
    if (conversation_.thinking) {
      writer_.Special(tokens_.system);
      writer_.Plain(
          fmt::format("Reasoning Effort: {} (range 1-100, the higher the value, the more thorough the reasoning)\n\n",
                      conversation_.effort));
    }
    has_first_system_ = !conversation_.messages.empty() && conversation_.messages.front().role == Role::kSystem;
    const bool has_tools = !conversation_.tools.empty();
    const bool has_format = conversation_.response_format.kind == ResponseFormat::Kind::kJsonObject ||
                            conversation_.response_format.kind == ResponseFormat::Kind::kJsonSchema;
    if (!has_first_system_ && !has_tools && !has_format) return;
    if (!conversation_.thinking) writer_.Special(tokens_.system);
    if (has_first_system_) writer_.Content(conversation_.messages.front());
    if (has_tools) writer_.ToolsBlock(conversation_.tools);
    writer_.FormatBlock(conversation_.response_format);
    if (has_first_system_) writer_.UpdatedTools(conversation_.tools, conversation_.messages.front().added_tools);
  }

  // A run of user and tool messages is one turn. Tool results stand in the order of the calls, users keep their places. A
  // message that adds tools ends the turn.
  size_t UserTurn(size_t begin) {
    const std::vector<Message>& messages = conversation_.messages;
    size_t end = begin;
    std::span<const size_t> added;
    while (added.empty() && end < messages.size() && (messages[end].role == Role::kUser || messages[end].role == Role::kTool)) {
      added = messages[end++].added_tools;
    }
    std::unordered_map<std::string_view, size_t> rank;
    for (size_t i = 0; i < last_calls_.size(); ++i) rank.emplace(last_calls_[i].id, i);
    std::vector<std::pair<size_t, size_t>> results;  // (rank, message)
    for (size_t i = begin; i < end; ++i) {
      if (messages[i].role != Role::kTool) continue;
      const auto it = rank.find(messages[i].tool_call_id);
      results.emplace_back(it == rank.end() ? rank.size() : it->second, i);
    }
    std::stable_sort(results.begin(), results.end(), [](const auto& a, const auto& b) { return a.first < b.first; });

    writer_.Special(tokens_.user);
    size_t next_result = 0;
    for (size_t i = begin; i < end; ++i) {
      if (i > begin) writer_.Plain("\n\n");
      if (messages[i].role == Role::kUser) {
        writer_.Content(messages[i]);
      } else {
        writer_.Plain("<tool_result>");
        writer_.Content(messages[results[next_result++].second]);
        writer_.Plain("</tool_result>");
      }
    }
    if (!added.empty()) {
      writer_.Special(tokens_.system);
      writer_.UpdatedTools(conversation_.tools, added);
    }
    return end;
  }

  void Assistant(const Message& message, bool is_last) {
    const bool is_prefix = message.prefix && is_last;
    writer_.Special(tokens_.assistant);
    if (is_prefix) {
      AssistantPrefix(message);
      return;
    }
    if (conversation_.thinking && !conversation_.tools.empty()) {
      writer_.Special(tokens_.think);
      writer_.Plain(message.reasoning.value_or(""));
    }
    writer_.Special(tokens_.end_think);
    writer_.Content(message);
    if (!message.tool_calls.empty()) writer_.CallsBlock(message.tool_calls);
    writer_.Special(tokens_.eos);
  }

  void AssistantPrefix(const Message& message) {
    has_prefix_ = true;
    if (!conversation_.thinking) {
      writer_.Special(tokens_.end_think);
      writer_.Content(message);
      return;
    }
    const std::string reasoning = message.reasoning.value_or("");
    writer_.Special(tokens_.think);
    writer_.Plain(reasoning);
    if (!message.JoinedText().empty()) {
      writer_.Special(tokens_.end_think);
      writer_.Content(message);
      prompt_.stage = InitialStage::kContentContinuation;
    } else {
      prompt_.stage = reasoning.empty() ? InitialStage::kReasoningStart : InitialStage::kReasoningContinuation;
    }
  }

  void Tail() {
    if (!has_prefix_) {
      writer_.Special(tokens_.assistant);
      writer_.Special(conversation_.thinking ? tokens_.think : tokens_.end_think);
      if (conversation_.thinking) prompt_.stage = InitialStage::kReasoningStart;
    }
    if (conversation_.tool_call_required && !conversation_.thinking) {
      writer_.Marked("\n\n<\x01 calls>\n");
      prompt_.starts_in_tool_calls = true;
    }
  }

  const Conversation& conversation_;
  const PromptTokens& tokens_;
  RenderedPrompt& prompt_;
  PromptWriter writer_;
  bool has_first_system_ = false;
  bool has_prefix_ = false;
  std::span<const ToolCall> last_calls_;
};

}  // namespace

Result<PromptTokens> PromptTokens::FromTokenizer(const Tokenizer& tokenizer) {
  PromptTokens tokens;
  for (const std::string* token : {&tokens.bos,
                                   &tokens.eos,
                                   &tokens.system,
                                   &tokens.user,
                                   &tokens.assistant,
                                   &tokens.latest_reminder,
                                   &tokens.think,
                                   &tokens.end_think,
                                   &tokens.dsml}) {
    if (tokenizer.FindAddedToken(*token) < 0) {
      return BadModel(fmt::format(
          "the tokenizer has no added token {}; conversations need a DeepSeek-V4.1 tokenizer.json", *token));
    }
  }
  for (const char* image : {"<｜deepseek_image｜>", "<｜image｜>", "<image>"}) {
    if (tokenizer.FindAddedToken(image) >= 0) {
      tokens.image = image;
      break;
    }
  }
  return tokens;
}

std::string_view InitialStageName(InitialStage stage) {
  switch (stage) {
    case InitialStage::kAnswer: return "answer";
    case InitialStage::kReasoningStart: return "reasoning_start";
    case InitialStage::kReasoningContinuation: return "reasoning_continuation";
    case InitialStage::kContentContinuation: return "content_continuation";
  }
  return "answer";
}

RenderedPrompt RenderPrompt(const Conversation& conversation, const PromptTokens& tokens) {
  RenderedPrompt prompt;
  Renderer(conversation, tokens, prompt).Run();
  return prompt;
}

}  // namespace deepinfer::text
