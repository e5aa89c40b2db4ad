// SPDX-License-Identifier: Apache-2.0
#include "protocols/chat_request.h"

#include <array>
#include <unordered_set>
#include <utility>

#include <fmt/format.h>

#include "protocols/grammar_schema.h"
#include "protocols/image_source.h"
#include "protocols/json_reader.h"
#include "protocols/request_extensions.h"
#include "protocols/schema_check.h"
#include "protocols/strict_schema.h"
#include "text/python_json.h"

namespace deepinfer::protocols {

namespace {

using text::ResponseFormat;
using text::Role;

constexpr uint64_t kMaxU32 = UINT32_MAX;

// The value of a field that names one of a few choices.
template <typename T, size_t N>
std::optional<T> OneOf(JsonReader& reader,
                       std::string_view key,
                       const std::string& value,
                       const std::array<std::pair<std::string_view, T>, N>& choices) {
  std::string names;
  for (const auto& [name, choice] : choices) {
    if (value == name) return choice;
    if (!names.empty()) names += ", ";
    names += name;
  }
  reader.Fail(key, fmt::format("unknown value \"{}\"; expected one of {}", value, names));
  return std::nullopt;
}

constexpr std::array<std::pair<std::string_view, Role>, 6> kRoles = {{{"system", Role::kSystem},
                                                                     {"developer", Role::kSystem},
                                                                     {"user", Role::kUser},
                                                                     {"assistant", Role::kAssistant},
                                                                     {"tool", Role::kTool},
                                                                     {"latest_reminder", Role::kLatestReminder}}};
constexpr std::array<std::pair<std::string_view, bool>, 3> kThinkingTypes = {
    {{"enabled", true}, {"adaptive", true}, {"disabled", false}}};
constexpr std::array<std::pair<std::string_view, ChatPart::Kind>, 3> kPartTypes = {
    {{"text", ChatPart::Kind::kText}, {"image_url", ChatPart::Kind::kImageUrl}, {"file", ChatPart::Kind::kFile}}};
constexpr std::array<std::pair<std::string_view, int>, 4> kDetails = {{{"low", 0}, {"high", 0}, {"original", 0}, {"auto", 0}}};
constexpr std::array<std::pair<std::string_view, ToolChoice::Kind>, 3> kToolChoices = {
    {{"auto", ToolChoice::Kind::kAuto}, {"none", ToolChoice::Kind::kNone}, {"required", ToolChoice::Kind::kRequired}}};
constexpr std::array<std::pair<std::string_view, int>, 1> kFunctionType = {{{"function", 0}}};
constexpr std::array<std::pair<std::string_view, ResponseFormat::Kind>, 4> kFormats = {
    {{"text", ResponseFormat::Kind::kText},
     {"json_object", ResponseFormat::Kind::kJsonObject},
     {"json_schema", ResponseFormat::Kind::kJsonSchema},
     {"regex", ResponseFormat::Kind::kRegex}}};

Result<ChatPart> ParsePart(const Json& json, const std::string& path) {
  JsonReader reader(json, path);
  ChatPart part;
  const std::string type = reader.RequiredString("type");
  if (!reader.ok()) return reader.status();
  const auto kind = OneOf(reader, "type", type, kPartTypes);
  if (!kind) return reader.status();
  part.kind = *kind;
  switch (part.kind) {
    case ChatPart::Kind::kText: part.text = reader.RequiredString("text"); break;
    case ChatPart::Kind::kImageUrl: {
      const Json* image = reader.Object("image_url");
      if (image == nullptr) {
        reader.Fail("", "missing field `image_url`");
        break;
      }
      JsonReader inner(*image, reader.PathOf("image_url"));
      part.text = inner.RequiredString("url");
      if (auto detail = inner.String("detail")) {
        OneOf(inner, "detail", *detail, kDetails);
        part.detail = *std::move(detail);
      }
      reader.Absorb(inner.status());
      break;
    }
    case ChatPart::Kind::kFile: {
      part.file_data = reader.String("file_data");
      part.file_id = reader.String("file_id");
      if (part.file_data || part.file_id) break;
      if (const Json* file = reader.Object("file")) {  // as OpenAI's SDK nests it
        JsonReader inner(*file, reader.PathOf("file"));
        part.file_data = inner.String("file_data");
        part.file_id = inner.String("file_id");
        reader.Absorb(inner.status());
      }
      break;
    }
  }
  if (!reader.ok()) return reader.status();
  return part;
}

Result<std::vector<ChatPart>> ParseContent(const Json& json, const std::string& path) {
  std::vector<ChatPart> parts;
  if (json.is_string()) {
    parts.emplace_back().text = json.get<std::string>();
    return parts;
  }
  if (!json.is_array()) return DeserializeError(path, "expected a string or a list of parts");
  for (size_t i = 0; i < json.size(); ++i) {
    DI_ASSIGN_OR_RETURN(ChatPart part, ParsePart(json[i], fmt::format("{}[{}]", path, i)));
    parts.push_back(std::move(part));
  }
  return parts;
}

Result<text::ToolCall> ParseToolCall(const Json& json, const std::string& path) {
  JsonReader reader(json, path);
  text::ToolCall call;
  call.id = reader.RequiredString("id");
  if (const auto type = reader.String("type")) OneOf(reader, "type", *type, kFunctionType);
  if (const Json* function = reader.Object("function")) {
    JsonReader inner(*function, reader.PathOf("function"));
    call.name = inner.RequiredString("name");
    call.arguments = inner.RequiredString("arguments");
    reader.Absorb(inner.status());
  } else {
    reader.Fail("", "missing field `function`");
  }
  if (!reader.ok()) return reader.status();
  return call;
}

Result<ChatMessage> ParseMessage(const Json& json, const std::string& path) {
  JsonReader reader(json, path);
  ChatMessage message;
  const std::string role_name = reader.RequiredString("role");
  if (!reader.ok()) return reader.status();
  const auto role = OneOf(reader, "role", role_name, kRoles);
  if (!role) return reader.status();
  message.role = *role;
  if (const Json* content = reader.Find("content")) {
    DI_ASSIGN_OR_RETURN(message.content, ParseContent(*content, reader.PathOf("content")));
  } else if (message.role != Role::kAssistant) {
    reader.Fail("", "missing field `content`: expected a string or a list of parts");
  }
  if (message.role == Role::kAssistant) {
    message.reasoning_content = reader.String("reasoning_content");
    message.prefix = reader.Bool("prefix").value_or(false);
    if (const Json* calls = reader.Array("tool_calls")) {
      message.tool_calls.emplace();
      for (size_t i = 0; i < calls->size(); ++i) {
        DI_ASSIGN_OR_RETURN(text::ToolCall call,
                            ParseToolCall((*calls)[i], fmt::format("{}[{}]", reader.PathOf("tool_calls"), i)));
        message.tool_calls->push_back(std::move(call));
      }
    }
  }
  if (message.role == Role::kTool) message.tool_call_id = reader.RequiredString("tool_call_id");
  if (!reader.ok()) return reader.status();
  return message;
}

Result<ToolDefinition> ParseTool(const Json& json, const std::string& path) {
  JsonReader reader(json, path);
  ToolDefinition tool;
  const std::string type = reader.RequiredString("type");
  if (reader.ok()) OneOf(reader, "type", type, kFunctionType);
  if (const Json* function = reader.Object("function")) {
    JsonReader inner(*function, reader.PathOf("function"));
    tool.name = inner.RequiredString("name");
    tool.description = inner.String("description");
    tool.strict = inner.Bool("strict");
    if (const Json* parameters = inner.Find("parameters")) tool.parameters = *parameters;
    reader.Absorb(inner.status());
  } else {
    reader.Fail("", "missing field `function`");
  }
  if (!reader.ok()) return reader.status();
  return tool;
}

Result<ToolChoice> ParseToolChoice(const Json& json) {
  ToolChoice choice;
  if (json.is_string()) {
    const Json holder = Json::object();
    JsonReader reader(holder, "");
    const auto kind = OneOf(reader, "tool_choice", json.get_ref<const std::string&>(), kToolChoices);
    if (!kind) return reader.status();
    choice.kind = *kind;
    return choice;
  }
  JsonReader reader(json, "tool_choice");
  choice.kind = ToolChoice::Kind::kNamed;
  const std::string type = reader.RequiredString("type");
  if (reader.ok()) OneOf(reader, "type", type, kFunctionType);
  if (const Json* function = reader.Object("function")) {
    JsonReader inner(*function, "tool_choice.function");
    choice.name = inner.RequiredString("name");
    reader.Absorb(inner.status());
  } else {
    reader.Fail("", "missing field `function`");
  }
  if (!reader.ok()) return reader.status();
  return choice;
}

Result<ChatResponseFormat> ParseResponseFormat(const Json& json) {
  JsonReader reader(json, "response_format");
  ChatResponseFormat format;
  const std::string type = reader.RequiredString("type");
  if (!reader.ok()) return reader.status();
  const auto kind = OneOf(reader, "type", type, kFormats);
  if (!kind) return reader.status();
  format.kind = *kind;
  if (format.kind == ResponseFormat::Kind::kRegex) format.regex = reader.RequiredString("regex");
  if (format.kind == ResponseFormat::Kind::kJsonSchema) {
    if (const Json* schema = reader.Object("json_schema")) {
      JsonReader inner(*schema, "response_format.json_schema");
      inner.RequiredString("name");
      inner.String("description");
      format.strict = inner.Bool("strict").value_or(false);
      if (const auto it = schema->find("schema"); it != schema->end()) {
        format.schema = *it;
      } else {
        inner.Fail("", "missing field `schema`");
      }
      reader.Absorb(inner.status());
    } else {
      reader.Fail("", "missing field `json_schema`");
    }
  }
  if (!reader.ok()) return reader.status();
  return format;
}

// thinking.type wins over reasoning_effort "none", and both over chat_template_kwargs.
void ParseThinking(JsonReader& reader, ChatRequest& request) {
  if (const Json* thinking = reader.Object("thinking")) {
    JsonReader inner(*thinking, "thinking");
    const std::string type = inner.RequiredString("type");
    if (inner.ok()) request.thinking = OneOf(inner, "type", type, kThinkingTypes);
    reader.Absorb(inner.status());
  }
  const auto read_effort = [&](const Json& json, const std::string& path) {
    Result<Effort> effort = ParseEffort(json, path);
    if (effort.ok()) {
      request.effort = *effort;
    } else {
      reader.Absorb(effort.status());
    }
  };
  if (const Json* effort = reader.Find("reasoning_effort")) read_effort(*effort, "reasoning_effort");
  if (const Json* kwargs = reader.Object("chat_template_kwargs")) {
    JsonReader inner(*kwargs, "chat_template_kwargs");
    const std::optional<bool> thinking = inner.Bool("thinking");
    const std::optional<bool> enable_thinking = inner.Bool("enable_thinking");
    const bool says_effort = request.effort.has_value();
    if (const Json* effort = inner.Find("reasoning_effort"); effort != nullptr && !says_effort) {
      read_effort(*effort, "chat_template_kwargs.reasoning_effort");
    }
    if (!request.thinking && !says_effort) request.thinking = thinking ? thinking : enable_thinking;
    reader.Absorb(inner.status());
  }
}

void ParseStop(JsonReader& reader, ChatRequest& request) {
  const Json* stop = reader.Find("stop");
  if (stop == nullptr) return;
  if (stop->is_string()) {
    request.stop.push_back(stop->get<std::string>());
  } else if (stop->is_array()) {
    request.stop_is_list = true;
    for (const Json& item : *stop) {
      if (!item.is_string()) {
        reader.Fail("stop", "expected a string or a list of strings");
        return;
      }
      request.stop.push_back(item.get<std::string>());
    }
  } else {
    reader.Fail("stop", "expected a string or a list of strings");
  }
}

// --- rules about values ---

Status CheckRoundOfCalls(const std::vector<ChatMessage>& messages, size_t assistant) {
  constexpr std::string_view kMustFollow =
      "An assistant message with 'tool_calls' must be followed by tool messages responding to each 'tool_call_id'";
  const auto& calls = *messages[assistant].tool_calls;
  size_t end = assistant + 1;
  while (end < messages.size() && messages[end].role == Role::kTool && end - assistant <= calls.size()) ++end;
  if (end - assistant - 1 < calls.size()) {
    return InvalidArgument(fmt::format("{}. (insufficient tool messages following tool_calls message)", kMustFollow));
  }
  std::unordered_set<std::string_view> answered;
  for (size_t i = assistant + 1; i < end; ++i) {
    if (!answered.insert(messages[i].tool_call_id).second) {
      return InvalidArgument(
          fmt::format("Duplicate value for 'tool_call_id' of {} in message[{}]", messages[i].tool_call_id, i));
    }
  }
  std::string missing;
  for (const text::ToolCall& call : calls) {
    if (answered.contains(call.id)) continue;
    if (!missing.empty()) missing += ", ";
    missing += call.id;
  }
  if (!missing.empty()) {
    return InvalidArgument(
        fmt::format("{}, The following tool_call_ids did not have response messages: {}", kMustFollow, missing));
  }
  return Status::Ok();
}

Status CheckHistory(const std::vector<ChatMessage>& messages) {
  bool has_tool_round = false;
  for (size_t i = 0; i < messages.size(); ++i) {
    const ChatMessage& message = messages[i];
    if (message.role == Role::kTool) {
      return InvalidArgument("Messages with role 'tool' must be a response to a preceding message with 'tool_calls'");
    }
    if (message.role != Role::kAssistant) continue;
    if (message.tool_calls) {
      if (message.tool_calls->empty()) {
        return InvalidArgument(fmt::format("Invalid 'messages[{}].tool_calls': empty array. Expected an array with minimum "
                                           "length 1, but got an empty array instead.",
                                           i));
      }
      DI_RETURN_IF_ERROR(CheckRoundOfCalls(messages, i));
      has_tool_round = true;
      i += message.tool_calls->size();
    } else if (!message.content) {
      return InvalidArgument("Invalid assistant message: content or tool_calls must be set");
    }
  }
  for (size_t i = 0; i < messages.size(); ++i) {
    if (!messages[i].prefix) continue;
    if (i + 1 != messages.size()) {
      return InvalidArgument(
          "Invalid completion message: prefix set true with message which is not final message or message role is not "
          "assistant");
    }
    if (has_tool_round) return InvalidArgument("Function call should not be used with prefix");
  }
  return Status::Ok();
}

Result<text::ContentPart> ConvertPart(const ChatPart& part, Role role, const std::string& path) {
  if (part.kind == ChatPart::Kind::kText) return text::ContentPart{part.text, std::nullopt};
  if (role == Role::kAssistant) return InvalidArgument("Image in assistant message is not supported");
  if (role == Role::kLatestReminder) return InvalidArgument("Image in latest_reminder message is not supported");
  if (part.kind == ChatPart::Kind::kImageUrl) {
    DI_ASSIGN_OR_RETURN(text::ImageRef image, CheckImageUrl(part.text, part.detail, path));
    return text::ContentPart{"", std::move(image)};
  }
  if (part.file_data && part.file_id) {
    return InvalidArgument(fmt::format("{}: file cannot have both file_id and file_data", path));
  }
  if (part.file_id) {
    return InvalidArgument(
        fmt::format("{}: file_id is not supported. Pass the image as a base64 data url instead.", path));
  }
  if (!part.file_data) return InvalidArgument(fmt::format("{}: file must have a file_id or file_data", path));
  DI_ASSIGN_OR_RETURN(text::ImageRef image, CheckFileData(*part.file_data, path));
  return text::ContentPart{"", std::move(image)};
}

Status ConvertMessages(std::vector<ChatMessage>& messages, text::Conversation& conversation) {
  for (size_t i = 0; i < messages.size(); ++i) {
    ChatMessage& source = messages[i];
    text::Message message;
    message.role = source.role;
    if (source.content) {
      for (const ChatPart& part : *source.content) {
        DI_ASSIGN_OR_RETURN(text::ContentPart converted, ConvertPart(part, source.role, fmt::format(".messages[{}]", i)));
        message.parts.push_back(std::move(converted));
      }
    }
    if (source.role == Role::kSystem) {
      bool is_empty = true;
      for (const text::ContentPart& part : message.parts) is_empty = is_empty && part.text.empty() && !part.image;
      if (is_empty && message.parts.size() <= 1) continue;  // two empty parts join to a blank line
    }
    message.reasoning = std::move(source.reasoning_content);
    if (source.tool_calls) message.tool_calls = *std::move(source.tool_calls);
    message.tool_call_id = std::move(source.tool_call_id);
    message.prefix = source.prefix;
    conversation.messages.push_back(std::move(message));
  }
  return Status::Ok();
}

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

// Fills in the conversation's response format; returns the constraint it asks for when no tools are shown.
Result<std::optional<Constraint>> ConvertResponseFormat(const ChatResponseFormat& format, text::Conversation& conversation) {
  conversation.response_format.kind = format.kind;
  switch (format.kind) {
    case ResponseFormat::Kind::kText: break;
    case ResponseFormat::Kind::kJsonObject:
      if (!MentionsJson(conversation)) {
        return InvalidArgument(
            "Prompt must contain the word 'json' in some form to use 'response_format' of type 'json_object'.");
      }
      return std::optional(Constraint{ConstraintKind::kJson, ""});
    case ResponseFormat::Kind::kJsonSchema: {
      const Status valid = CheckJsonSchema(format.schema);
      if (!valid.ok()) return InvalidArgument("Invalid json schema: " + valid.message());
      conversation.response_format.schema = text::PythonJson(format.schema);
      if (!format.strict) return std::optional(Constraint{ConstraintKind::kJson, text::CompactJson(format.schema)});
      DI_ASSIGN_OR_RETURN(const Json strict, RebuildStrict(format.schema, StrictUse::kJsonSchema));
      return std::optional(
          Constraint{ConstraintKind::kJson, text::CompactJson(strict), text::CompactJson(ClosedSchema(format.schema))});
    }
    case ResponseFormat::Kind::kRegex: return std::optional(Constraint{ConstraintKind::kRegex, format.regex});
  }
  return std::optional<Constraint>();
}

Status CheckLogprobs(const ChatRequest& request) {
  if (!request.top_logprobs) return Status::Ok();
  if (*request.top_logprobs > 20) {
    return InvalidArgument("Invalid top_logprobs value, the valid range of top_logprobs is [0, 20].");
  }
  if (!request.logprobs) {
    return InvalidArgument(
        "Invalid top_logprobs and logprobs value, logprobs must be set to true if top_logprobs is used.");
  }
  return Status::Ok();
}

// Tools, tool choice and response format decide the constraint together.
Status ConvertToolsAndFormat(ChatRequest& request, const ConvertOptions& options, ConvertedRequest& out) {
  if (request.tools.size() > options.max_tools) {
    return InvalidArgument(fmt::format("Too many tools: {}, the limit is {}", request.tools.size(), options.max_tools));
  }
  DI_RETURN_IF_ERROR(
      CheckTools(request.tools, [](size_t i) { return fmt::format("tools[{}].function.name", i); }));
  const bool any_strict = !request.tools.empty() && request.tools.front().strict.value_or(false);  // all or none
  if (any_strict && request.response_format) return InvalidArgument("response_format should not be used with tools");
  bool is_required = false;
  DI_RETURN_IF_ERROR(ApplyToolChoice(request.tool_choice, request.tools, is_required));
  const bool thinking = out.conversation.thinking;
  if (is_required && thinking && !options.tool_choice_thinking_grammar) {
    return InvalidArgument("Thinking mode does not support this tool_choice");
  }
  out.conversation.tool_call_required = is_required && !thinking;
  for (const ToolDefinition& tool : request.tools) out.conversation.tools.push_back(ToConversationTool(tool));

  std::optional<Constraint> format_constraint;
  if (request.response_format) {
    DI_ASSIGN_OR_RETURN(format_constraint, ConvertResponseFormat(*request.response_format, out.conversation));
  }
  if (!request.tools.empty()) {
    Constraint& constraint = out.inference.constraint.emplace();
    constraint.kind = is_required ? ConstraintKind::kToolCallRequired : ConstraintKind::kToolCall;
    constraint.schema = ToolsConstraintSchema(request.tools);
    if (any_strict) constraint.grammar_schema = ToolsGrammarSchema(request.tools);
    if (!is_required && format_constraint && format_constraint->kind == ConstraintKind::kJson) {
      const Constraint& json = *format_constraint;
      constraint.response_schema = json.schema.empty() ? R"({"type":"object"})" : json.grammar_schema.empty() ? json.schema : json.grammar_schema;
    }
  } else {
    out.inference.constraint = std::move(format_constraint);
  }
  out.inference.parallel_tool_calls = request.parallel_tool_calls;
  return Status::Ok();
}

Status CheckReasoningHistory(const text::Conversation& conversation) {
  if (!conversation.thinking || conversation.tools.empty()) return Status::Ok();
  for (const text::Message& message : conversation.messages) {
    if (message.role == Role::kAssistant && !message.prefix && !message.reasoning) {
      return InvalidArgument("The `reasoning_content` in the thinking mode must be passed back to the API.");
    }
  }
  return Status::Ok();
}

}  // namespace

Result<ChatRequest> ParseChatRequest(const Json& body, const ConvertOptions& options) {
  JsonReader reader(body, "");
  if (!reader.ok()) return DeserializeError("", "expected a JSON object");
  ChatRequest request;
  request.model = reader.RequiredString("model");
  const auto messages = body.find("messages");
  if (messages == body.end()) {
    reader.Fail("", "missing field `messages`");
  } else if (!messages->is_array()) {
    reader.Fail("messages", "expected a list");
  }
  if (!reader.ok()) return reader.status();
  for (size_t i = 0; i < messages->size(); ++i) {
    DI_ASSIGN_OR_RETURN(ChatMessage message, ParseMessage((*messages)[i], fmt::format("messages[{}]", i)));
    request.messages.push_back(std::move(message));
  }
  ParseThinking(reader, request);
  request.sampling.temperature = reader.Number("temperature");
  request.sampling.top_p = reader.Number("top_p");
  request.sampling.max_tokens = reader.Unsigned("max_tokens", kMaxU32);
  const auto max_completion_tokens = reader.Unsigned("max_completion_tokens", kMaxU32);
  if (!request.sampling.max_tokens) request.sampling.max_tokens = max_completion_tokens;
  request.sampling.seed = reader.Unsigned("seed", UINT64_MAX);
  request.sampling.client = ReadClientSampling(reader, options.sampling_policy);
  ParseStop(reader, request);
  request.stream = reader.Bool("stream").value_or(false);
  if (const Json* stream_options = reader.Object("stream_options")) {
    JsonReader inner(*stream_options, "stream_options");
    request.include_usage = inner.Bool("include_usage").value_or(false);
    reader.Absorb(inner.status());
  }
  if (const Json* tools = reader.Array("tools")) {
    for (size_t i = 0; i < tools->size(); ++i) {
      DI_ASSIGN_OR_RETURN(ToolDefinition tool, ParseTool((*tools)[i], fmt::format("tools[{}]", i)));
      request.tools.push_back(std::move(tool));
    }
  }
  if (const Json* choice = reader.Find("tool_choice")) {
    DI_ASSIGN_OR_RETURN(request.tool_choice, ParseToolChoice(*choice));
  }
  if (const Json* format = reader.Find("response_format")) {
    DI_ASSIGN_OR_RETURN(request.response_format, ParseResponseFormat(*format));
  }
  request.logprobs = reader.Bool("logprobs").value_or(false);
  request.top_logprobs = reader.Unsigned("top_logprobs", kMaxU32);
  request.n = reader.Unsigned("n", kMaxU32);
  request.parallel_tool_calls = reader.Bool("parallel_tool_calls").value_or(true);
  request.continue_final_message = reader.Bool("continue_final_message").value_or(false);
  ReadExtensions(reader, request.cache_salt, request.cache_mode, request.priority);
  if (!reader.ok()) return reader.status();
  return request;
}

Result<ConvertedRequest> ConvertChatRequest(ChatRequest request, const ConvertOptions& options) {
  ConvertedRequest out;
  DI_RETURN_IF_ERROR(CheckModelName(request.model, options));
  if (request.messages.empty()) return InvalidArgument("Empty input messages");
  if (request.n && *request.n != 1) return InvalidArgument("Invalid n value (currently only n = 1 is supported)");
  const bool effort_none = request.effort && request.effort->is_none;
  const bool thinking = request.thinking.value_or(!effort_none);
  out.conversation.thinking = thinking;
  if (thinking) {
    const Effort effort = request.effort && !effort_none ? *request.effort : Effort();
    out.conversation.effort = effort.value;
    out.effort_name = effort.name;
  }
  DI_RETURN_IF_ERROR(ApplySampling(request.sampling, thinking, /*clamp_max_tokens=*/false, options, out.inference));
  DI_RETURN_IF_ERROR(CheckLogprobs(request));
  out.inference.logprobs = request.logprobs;
  if (request.top_logprobs) out.inference.top_logprobs = static_cast<int>(*request.top_logprobs);
  DI_RETURN_IF_ERROR(CheckStopStrings(request.stop, request.stop_is_list, "stop", options));
  out.parsing.stop_sequences = std::move(request.stop);
  if (request.include_usage && !request.stream) {
    return InvalidArgument("stream_options should be set along with stream = true");
  }

  if (request.continue_final_message && request.messages.back().role == Role::kAssistant) {
    request.messages.back().prefix = true;
  }
  DI_RETURN_IF_ERROR(CheckHistory(request.messages));
  DI_RETURN_IF_ERROR(ConvertMessages(request.messages, out.conversation));
  DI_RETURN_IF_ERROR(ConvertToolsAndFormat(request, options, out));
  if (options.reject_missing_reasoning) DI_RETURN_IF_ERROR(CheckReasoningHistory(out.conversation));

  out.model = std::move(request.model);
  out.stream = request.stream;
  out.include_usage = request.include_usage.value_or(false);
  out.has_usage_chunk = out.include_usage && options.openai_usage_chunk;
  out.cache_salt = std::move(request.cache_salt);
  out.cache_mode = request.cache_mode;
  out.priority = request.priority;
  FinishConversion(options, out);
  return out;
}

Result<ConvertedRequest> ConvertChatRequest(std::string_view body, const ConvertOptions& options) {
  const Result<Json> json = ParseJson(body);
  if (!json.ok()) return DeserializeError("", json.status().message());
  DI_ASSIGN_OR_RETURN(ChatRequest request, ParseChatRequest(*json, options));
  return ConvertChatRequest(std::move(request), options);
}

}  // namespace deepinfer::protocols
