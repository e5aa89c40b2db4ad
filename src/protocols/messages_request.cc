// SPDX-License-Identifier: Apache-2.0
#include "protocols/messages_request.h"

#include <utility>

#include <fmt/format.h>

#include "protocols/request_extensions.h"
#include "text/python_json.h"

namespace deepinfer::protocols {

namespace {

using text::Role;
using Kind = MessagesBlock::Kind;

constexpr std::array<std::pair<std::string_view, Role>, 3> kRoles = {
    {{"user", Role::kUser}, {"assistant", Role::kAssistant}, {"system", Role::kSystem}}};
constexpr std::array<std::pair<std::string_view, MessagesImage::Kind>, 3> kSourceTypes = {
    {{"base64", MessagesImage::Kind::kBase64}, {"url", MessagesImage::Kind::kUrl}, {"file", MessagesImage::Kind::kFile}}};
constexpr std::array<std::pair<std::string_view, int>, 5> kMediaTypes = {
    {{"image/jpeg", 0}, {"image/jpg", 0}, {"image/png", 0}, {"image/gif", 0}, {"image/webp", 0}}};

enum class BlockType { kText, kImage, kDocument, kThinking, kRedacted, kSearch, kToolUse, kToolResult, kServerTool, kAddition, kReference };
constexpr std::array<std::pair<std::string_view, BlockType>, 11> kBlockTypes = {{{"text", BlockType::kText},
                                                                                 {"image", BlockType::kImage},
                                                                                 {"document", BlockType::kDocument},
                                                                                 {"search_result", BlockType::kSearch},
                                                                                 {"thinking", BlockType::kThinking},
                                                                                 {"redacted_thinking", BlockType::kRedacted},
                                                                                 {"tool_use", BlockType::kToolUse},
                                                                                 {"tool_result", BlockType::kToolResult},
                                                                                 {"server_tool_use", BlockType::kServerTool},
                                                                                 {"web_search_tool_result", BlockType::kServerTool},
                                                                                 {"tool_addition", BlockType::kAddition}}};
constexpr std::array<std::pair<std::string_view, BlockType>, 5> kResultBlockTypes = {{{"text", BlockType::kText},
                                                                                      {"image", BlockType::kImage},
                                                                                      {"document", BlockType::kDocument},
                                                                                      {"search_result", BlockType::kSearch},
                                                                                      {"tool_reference", BlockType::kReference}}};
enum class Choice { kAuto, kAny, kNone, kTool };
constexpr std::array<std::pair<std::string_view, Choice>, 4> kChoices = {
    {{"auto", Choice::kAuto}, {"any", Choice::kAny}, {"none", Choice::kNone}, {"tool", Choice::kTool}}};
constexpr std::array<std::pair<std::string_view, int>, 1> kReferenceType = {{{"tool_reference", 0}}};
constexpr std::array<std::pair<std::string_view, int>, 1> kTextType = {{{"text", 0}}};
constexpr std::array<std::pair<std::string_view, int>, 1> kFormatType = {{{"json_schema", 0}}};

// A request that continues a conversation which the server is to hold holds only its newest messages: to answer it would be to
// answer something else. Anthropic's library sends everything when it reads this error (ErrorBody).
Status CheckThread(JsonReader& reader) {
  const Json* thread = reader.Find("thread");
  if (thread == nullptr || (thread->is_boolean() && !thread->get<bool>())) return Status::Ok();
  return InvalidArgument("thread is not supported: no conversation is stored here; send all of it in messages", std::string(kThreadField));
}

constexpr std::string_view kBillingHeader = "x-anthropic-billing-header:";

// The value of a required field that names one of a few choices.
template <typename T, size_t N>
std::optional<T> RequiredChoice(JsonReader& reader, std::string_view key, const std::array<std::pair<std::string_view, T>, N>& choices) {
  const std::string value = reader.RequiredString(key);
  if (!reader.ok()) return std::nullopt;
  return OneOf(reader, key, value, choices);
}

// A required object; an empty reader that has failed in its place.
const Json& RequiredObject(JsonReader& reader, std::string_view key) {
  static const Json kEmpty = Json::object();
  const Json* object = reader.Object(key);
  if (object == nullptr) reader.Fail("", fmt::format("missing field `{}`", key));
  return object == nullptr ? kEmpty : *object;
}

MessagesImage ParseImage(JsonReader& reader) {
  MessagesImage image;
  JsonReader source(RequiredObject(reader, "source"), reader.PathOf("source"));
  if (reader.ok()) {
    if (const auto kind = RequiredChoice(source, "type", kSourceTypes)) image.kind = *kind;
    switch (image.kind) {
      case MessagesImage::Kind::kBase64:
        image.media_type = source.RequiredString("media_type");
        if (source.ok()) OneOf(source, "media_type", image.media_type, kMediaTypes);
        image.data = source.RequiredString("data");
        break;
      case MessagesImage::Kind::kUrl: image.data = source.RequiredString("url"); break;
      case MessagesImage::Kind::kFile: break;
    }
  }
  reader.Absorb(source.status());
  return image;
}

std::string DocumentText(JsonReader& reader) {
  std::string type = "unknown";
  if (const Json* source = reader.Object("source")) {
    JsonReader inner(*source, reader.PathOf("source"));
    std::optional<std::string> name = inner.String("media_type");
    if (!name) name = inner.String("type");
    reader.Absorb(inner.status());
    if (name) type = *std::move(name);
  }
  return fmt::format("[Unsupported document type: {}]", type);
}

std::string SearchResultText(JsonReader& reader) {
  std::string text;
  const Json* content = reader.Array("content");
  if (content == nullptr) return text;
  for (size_t i = 0; i < content->size(); ++i) {
    JsonReader inner((*content)[i], fmt::format("{}[{}]", reader.PathOf("content"), i));
    if (i > 0) text += "\n\n";
    text += inner.RequiredString("text");
    reader.Absorb(inner.status());
  }
  return text;
}

Result<std::vector<MessagesBlock>> ParseContent(const Json& json, const std::string& path, bool is_result);

Result<MessagesBlock> ParseBlock(const Json& json, const std::string& path, bool is_result) {
  JsonReader reader(json, path);
  const auto type = is_result ? RequiredChoice(reader, "type", kResultBlockTypes) : RequiredChoice(reader, "type", kBlockTypes);
  if (!type) return reader.status();
  MessagesBlock block;
  switch (*type) {
    case BlockType::kText: block.text = reader.RequiredString("text"); break;
    case BlockType::kDocument: block.text = DocumentText(reader); break;
    case BlockType::kSearch: block.text = SearchResultText(reader); break;
    case BlockType::kImage:
      block.kind = Kind::kImage;
      block.image = ParseImage(reader);
      break;
    case BlockType::kThinking:
      block.kind = Kind::kThinking;
      block.text = reader.RequiredString("thinking");
      break;
    case BlockType::kRedacted: block.kind = Kind::kRedactedThinking; break;
    case BlockType::kServerTool: block.kind = Kind::kServerTool; break;
    case BlockType::kToolUse: {
      block.kind = Kind::kToolUse;
      block.call.id = reader.RequiredString("id");
      block.call.name = reader.RequiredString("name");
      const auto input = json.find("input");
      if (input == json.end()) {
        reader.Fail("", "missing field `input`");
      } else {
        block.call.arguments = text::CompactJson(*input);
      }
      break;
    }
    case BlockType::kToolResult: {
      block.kind = Kind::kToolResult;
      block.call.id = reader.RequiredString("tool_use_id");
      if (const Json* content = reader.Find("content"); content != nullptr && reader.ok()) {
        DI_ASSIGN_OR_RETURN(block.content, ParseContent(*content, reader.PathOf("content"), /*is_result=*/true));
      }
      break;
    }
    case BlockType::kAddition: {
      block.kind = Kind::kToolAddition;
      JsonReader tool(RequiredObject(reader, "tool"), reader.PathOf("tool"));
      if (reader.ok()) {
        RequiredChoice(tool, "type", kReferenceType);
        block.text = tool.RequiredString("name");
      }
      reader.Absorb(tool.status());
      break;
    }
    case BlockType::kReference:
      block.kind = Kind::kToolReference;
      block.text = reader.RequiredString("tool_name");
      break;
  }
  if (!reader.ok()) return reader.status();
  return block;
}

Result<std::vector<MessagesBlock>> ParseContent(const Json& json, const std::string& path, bool is_result) {
  std::vector<MessagesBlock> blocks;
  if (json.is_string()) {
    blocks.emplace_back().text = json.get<std::string>();
    return blocks;
  }
  if (!json.is_array()) return DeserializeError(path, "expected a string or a list of blocks");
  for (size_t i = 0; i < json.size(); ++i) {
    DI_ASSIGN_OR_RETURN(MessagesBlock block, ParseBlock(json[i], fmt::format("{}[{}]", path, i), is_result));
    blocks.push_back(std::move(block));
  }
  return blocks;
}

Result<MessagesMessage> ParseMessage(const Json& json, const std::string& path) {
  JsonReader reader(json, path);
  MessagesMessage message;
  const auto role = RequiredChoice(reader, "role", kRoles);
  if (!role) return reader.status();
  message.role = *role;
  const Json* content = reader.Find("content");
  if (content == nullptr) return DeserializeError(path, "missing field `content`: expected a string or a list of blocks");
  DI_ASSIGN_OR_RETURN(message.blocks, ParseContent(*content, reader.PathOf("content"), /*is_result=*/false));
  return message;
}

// A client may put a value of its own into the first block for each request; it must not reach the prompt, or no request would
// find its prefix in the cache.
void ParseSystem(JsonReader& reader, MessagesRequest& request) {
  const Json* system = reader.Find("system");
  if (system == nullptr) return;
  request.system.emplace();
  if (system->is_string()) {
    request.system->push_back(system->get<std::string>());
    return;
  }
  if (!system->is_array()) return reader.Fail("system", "expected a string or a list of text blocks");
  for (size_t i = 0; i < system->size(); ++i) {
    JsonReader block((*system)[i], fmt::format("system[{}]", i));
    RequiredChoice(block, "type", kTextType);
    std::string text = block.RequiredString("text");
    reader.Absorb(block.status());
    if (i == 0 && text.starts_with(kBillingHeader)) continue;
    request.system->push_back(std::move(text));
  }
}

void ParseStop(JsonReader& reader, MessagesRequest& request) {
  const Json* stop = reader.Array("stop_sequences");
  if (stop == nullptr) return;
  for (const Json& item : *stop) {
    if (!item.is_string()) return reader.Fail("stop_sequences", "expected a list of strings");
    request.stop.push_back(item.get<std::string>());
  }
}

Result<MessagesTool> ParseTool(const Json& json, const std::string& path) {
  JsonReader reader(json, path);
  MessagesTool tool;
  ToolDefinition& definition = tool.definition;
  const std::optional<std::string> type = reader.String("type");
  tool.is_server_tool = type && *type != "custom";
  definition.name = reader.RequiredString("name");
  definition.description = reader.String("description");
  const auto schema = reader.Find("input_schema");
  definition.parameters = schema == nullptr ? Json(nullptr) : *schema;  // required: null is refused as a schema
  definition.defer_loading = reader.Bool("defer_loading").value_or(false);
  if (!reader.ok()) return reader.status();
  return tool;
}

void ParseToolChoice(JsonReader& reader, MessagesRequest& request) {
  const Json* choice = reader.Object("tool_choice");
  if (choice == nullptr) return;
  JsonReader inner(*choice, "tool_choice");
  if (const auto type = RequiredChoice(inner, "type", kChoices)) {
    switch (*type) {
      case Choice::kAuto: break;
      case Choice::kAny: request.tool_choice_is_any = true; break;
      case Choice::kNone: request.tool_choice.kind = ToolChoice::Kind::kNone; break;
      case Choice::kTool:
        request.tool_choice.kind = ToolChoice::Kind::kNamed;
        request.tool_choice.name = inner.RequiredString("name");
        break;
    }
  }
  request.parallel_tool_calls = !inner.Bool("disable_parallel_tool_use").value_or(false);
  reader.Absorb(inner.status());
}

// {"type": "json_schema", "schema": ...}, in `output_config.format` or its older place.
void ParseFormat(JsonReader& reader, std::string_view key, MessagesRequest& request) {
  const Json* format = reader.Object(key);
  if (format == nullptr || request.output_format) return;
  JsonReader inner(*format, reader.PathOf(key));
  RequiredChoice(inner, "type", kFormatType);
  const auto schema = format->find("schema");
  if (schema == format->end()) {
    inner.Fail("", "missing field `schema`");
  } else {
    request.output_format.emplace();
    request.output_format->kind = text::ResponseFormat::Kind::kJsonSchema;
    request.output_format->schema = *schema;
  }
  reader.Absorb(inner.status());
}

}  // namespace

Result<MessagesRequest> ParseMessagesRequest(const Json& body, const ConvertOptions& options) {
  JsonReader reader(body, "");
  if (!reader.ok()) return DeserializeError("", "expected a JSON object");
  MessagesRequest request;
  request.model = reader.RequiredString("model");
  const Json* messages = reader.Array("messages");
  if (messages == nullptr) reader.Fail("", "missing field `messages`");
  if (!reader.ok()) return reader.status();
  DI_RETURN_IF_ERROR(CheckThread(reader));
  for (size_t i = 0; i < messages->size(); ++i) {
    DI_ASSIGN_OR_RETURN(MessagesMessage message, ParseMessage((*messages)[i], fmt::format("messages[{}]", i)));
    request.messages.push_back(std::move(message));
  }
  ParseSystem(reader, request);
  request.thinking = ReadThinking(reader);
  if (const Json* config = reader.Object("output_config")) {
    JsonReader inner(*config, "output_config");
    request.effort = ReadEffort(inner, "effort");
    ParseFormat(inner, "format", request);
    reader.Absorb(inner.status());
  }
  ParseFormat(reader, "output_format", request);
  request.sampling.temperature = reader.Number("temperature");
  request.sampling.top_p = reader.Number("top_p");
  request.sampling.max_tokens = reader.Unsigned("max_tokens", UINT64_MAX);
  if (options.sampling_policy == SamplingPolicy::kClient) {
    request.sampling.client = ReadClientSampling(reader, options.sampling_policy);
  }
  ParseStop(reader, request);
  request.stream = reader.Bool("stream").value_or(false);
  if (const Json* tools = reader.Array("tools")) {
    for (size_t i = 0; i < tools->size(); ++i) {
      DI_ASSIGN_OR_RETURN(MessagesTool tool, ParseTool((*tools)[i], fmt::format("tools[{}]", i)));
      request.tools.push_back(std::move(tool));
    }
  }
  ParseToolChoice(reader, request);
  ReadExtensions(reader, request.cache_salt, request.cache_mode, request.priority);
  if (!reader.ok()) return reader.status();
  return request;
}

std::string CountTokensBody(int64_t num_tokens) { return fmt::format(R"({{"input_tokens":{}}})", num_tokens); }

}  // namespace deepinfer::protocols
