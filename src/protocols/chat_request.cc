// SPDX-License-Identifier: Apache-2.0
#include "protocols/chat_request.h"

#include <array>
#include <utility>

#include <fmt/format.h>

#include "protocols/json_reader.h"
#include "protocols/request_extensions.h"

namespace deepinfer::protocols {

namespace {

using text::ResponseFormat;
using text::Role;

constexpr uint64_t kMaxU32 = UINT32_MAX;

constexpr std::array<std::pair<std::string_view, Role>, 6> kRoles = {{{"system", Role::kSystem},
                                                                     {"developer", Role::kSystem},
                                                                     {"user", Role::kUser},
                                                                     {"assistant", Role::kAssistant},
                                                                     {"tool", Role::kTool},
                                                                     {"latest_reminder", Role::kLatestReminder}}};
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

Result<ResponseFormatFields> ParseResponseFormat(const Json& json) {
  JsonReader reader(json, "response_format");
  ResponseFormatFields format;
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
  request.thinking = ReadThinking(reader);
  request.effort = ReadEffort(reader, "reasoning_effort");
  if (const Json* kwargs = reader.Object("chat_template_kwargs")) {
    JsonReader inner(*kwargs, "chat_template_kwargs");
    const std::optional<bool> thinking = inner.Bool("thinking");
    const std::optional<bool> enable_thinking = inner.Bool("enable_thinking");
    const bool says_effort = request.effort.has_value();
    if (!says_effort) request.effort = ReadEffort(inner, "reasoning_effort");
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

}  // namespace deepinfer::protocols
