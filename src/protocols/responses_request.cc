// SPDX-License-Identifier: Apache-2.0
#include "protocols/responses_request.h"

#include <utility>

#include <fmt/format.h>

#include "protocols/json_text.h"
#include "protocols/request_extensions.h"
#include "protocols/responses_tools.h"
#include "text/python_json.h"

namespace deepinfer::protocols {

namespace {

using text::ResponseFormat;
using text::Role;

constexpr std::array<std::pair<std::string_view, Role>, 4> kRoles = {{{"user", Role::kUser},
                                                                      {"assistant", Role::kAssistant},
                                                                      {"system", Role::kSystem},
                                                                      {"developer", Role::kSystem}}};
enum class PartType { kText, kImage, kFile };
constexpr std::array<std::pair<std::string_view, PartType>, 4> kPartTypes = {{{"input_text", PartType::kText},
                                                                              {"output_text", PartType::kText},
                                                                              {"input_image", PartType::kImage},
                                                                              {"input_file", PartType::kFile}}};
constexpr std::array<std::pair<std::string_view, int>, 4> kDetails = {{{"low", 0}, {"high", 0}, {"original", 0}, {"auto", 0}}};
constexpr std::array<std::pair<std::string_view, ResponseFormat::Kind>, 3> kFormats = {
    {{"text", ResponseFormat::Kind::kText},
     {"json_object", ResponseFormat::Kind::kJsonObject},
     {"json_schema", ResponseFormat::Kind::kJsonSchema}}};

Result<ResponsesPart> ParsePart(const Json& json, const std::string& path) {
  JsonReader reader(json, path);
  ResponsesPart part;
  const std::string type = reader.RequiredString("type");
  if (!reader.ok()) return reader.status();
  const auto kind = OneOf(reader, "type", type, kPartTypes);
  if (!kind) return reader.status();
  switch (*kind) {
    case PartType::kText: part.text = reader.RequiredString("text"); break;
    case PartType::kFile: part.text = "[Unsupported Document]"; break;
    case PartType::kImage: {
      const std::optional<std::string> url = reader.String("image_url");
      if (url) {
        part.kind = ResponsesPart::Kind::kImageUrl;
        part.text = *url;
      } else if (reader.String("file_id")) {
        part.kind = ResponsesPart::Kind::kImageFile;
      } else {
        reader.Fail("", "missing field `image_url`");
      }
      if (auto detail = reader.String("detail")) {
        OneOf(reader, "detail", *detail, kDetails);
        part.detail = *std::move(detail);
      }
      break;
    }
  }
  if (!reader.ok()) return reader.status();
  return part;
}

// A string, or a list of parts.
Result<std::vector<ResponsesPart>> ParseParts(const Json* json, const std::string& path) {
  std::vector<ResponsesPart> parts;
  if (json == nullptr) return DeserializeError(path, "missing: expected a string or a list of parts");
  if (json->is_string()) {
    parts.emplace_back().text = json->get<std::string>();
    return parts;
  }
  if (!json->is_array()) return DeserializeError(path, "expected a string or a list of parts");
  for (size_t i = 0; i < json->size(); ++i) {
    DI_ASSIGN_OR_RETURN(ResponsesPart part, ParsePart((*json)[i], fmt::format("{}[{}]", path, i)));
    parts.push_back(std::move(part));
  }
  return parts;
}

// The texts of a reasoning item, joined by newlines; summaries and opaque values say nothing to the model.
std::optional<std::string> ReadReasoningText(JsonReader& reader) {
  std::optional<std::string> text;
  const Json* content = reader.Array("content");
  if (content == nullptr) return text;
  for (size_t i = 0; i < content->size(); ++i) {
    JsonReader part((*content)[i], fmt::format("{}[{}]", reader.PathOf("content"), i));
    const std::string type = part.RequiredString("type");
    if (part.ok() && type == "reasoning_text") {
      if (text) *text += '\n';
      if (!text) text.emplace();
      *text += part.RequiredString("text");
    }
    reader.Absorb(part.status());
  }
  return text;
}

// nullopt for items that are dropped: references and calls of tools that other servers run.
Result<std::optional<ResponsesItem>> ParseItem(const Json& json, size_t idx) {
  const std::string path = fmt::format("input[{}]", idx);
  JsonReader reader(json, path);
  ResponsesItem item;
  item.idx = idx;
  const std::string type = reader.String("type").value_or("message");
  if (!reader.ok()) return reader.status();
  if (type == "message") {
    const std::string role_name = reader.RequiredString("role");
    if (!reader.ok()) return reader.status();
    const auto role = OneOf(reader, "role", role_name, kRoles);
    if (!role) return reader.status();
    item.role = *role;
    DI_ASSIGN_OR_RETURN(item.parts, ParseParts(reader.Find("content"), reader.PathOf("content")));
  } else if (type == "reasoning") {
    item.kind = ResponsesItem::Kind::kReasoning;
    item.reasoning = ReadReasoningText(reader);
  } else if (type == "function_call" || type == "custom_tool_call") {
    item.kind = ResponsesItem::Kind::kCall;
    item.call.id = reader.RequiredString("call_id");
    item.call.name = reader.RequiredString("name");
    if (const auto space = reader.String("namespace"); space && !space->empty()) {
      item.call.name = fmt::format("{}::{}", *space, item.call.name);
    }
    if (type == "function_call") {
      item.call.arguments = reader.RequiredString("arguments");
    } else {
      item.call.arguments = R"({"input": )" + JsonString(reader.RequiredString("input")) + "}";
    }
  } else if (type == "function_call_output" || type == "custom_tool_call_output") {
    item.kind = ResponsesItem::Kind::kCallOutput;
    item.role = Role::kTool;
    item.call.id = reader.RequiredString("call_id");
    if (!reader.ok()) return reader.status();
    DI_ASSIGN_OR_RETURN(item.parts, ParseParts(reader.Find("output"), reader.PathOf("output")));
  } else {
    return std::optional<ResponsesItem>();
  }
  if (!reader.ok()) return reader.status();
  return std::optional(std::move(item));
}

Status ParseInput(JsonReader& reader, ResponsesRequest& request) {
  const Json* input = reader.Find("input");
  if (input == nullptr) return Status::Ok();
  request.input.emplace();
  if (input->is_string()) {
    request.input->emplace_back().parts.emplace_back().text = input->get<std::string>();
    return Status::Ok();
  }
  if (!input->is_array()) return DeserializeError("input", "expected a string or a list of items");
  request.input_is_empty_list = input->empty();
  for (size_t i = 0; i < input->size(); ++i) {
    DI_ASSIGN_OR_RETURN(std::optional<ResponsesItem> item, ParseItem((*input)[i], i));
    if (item) request.input->push_back(*std::move(item));
  }
  return Status::Ok();
}

void ParseFormat(JsonReader& reader, ResponsesRequest& request) {
  const Json* text = reader.Object("text");
  if (text == nullptr) return;
  JsonReader holder(*text, "text");
  if (const Json* format = holder.Object("format")) {
    JsonReader inner(*format, "text.format");
    ResponseFormatFields fields;
    const std::string type = inner.RequiredString("type");
    if (inner.ok()) fields.kind = OneOf(inner, "type", type, kFormats).value_or(fields.kind);
    if (inner.ok() && fields.kind == ResponseFormat::Kind::kJsonSchema) {
      const std::string name = inner.RequiredString("name");
      const auto description = inner.String("description");
      const auto strict = inner.Bool("strict");
      fields.strict = strict.value_or(false);
      if (const auto schema = format->find("schema"); schema != format->end()) {
        fields.schema = *schema;
      } else {
        inner.Fail("", "missing field `schema`");
      }
      std::string& echo = request.echo.text_format;
      echo = R"({"type":"json_schema","description":)";
      AppendJsonStringOrNull(description, echo);
      echo += R"(,"name":)";
      AppendJsonString(name, echo);
      echo += R"(,"schema":)" + text::CompactJson(fields.schema) + R"(,"strict":)";
      echo += fields.strict ? "true}" : "false}";
    } else if (fields.kind == ResponseFormat::Kind::kJsonObject) {
      request.echo.text_format = R"({"type":"json_object"})";
    }
    // The same as no format at all, also beside strict tools: SDKs send it unasked.
    if (fields.kind != ResponseFormat::Kind::kText) request.format = std::move(fields);
    holder.Absorb(inner.status());
  }
  reader.Absorb(holder.status());
}

template <typename T>
std::string Echo(const std::optional<T>& value, const char* missing) {
  return value ? text::CompactJson(Json(*value)) : missing;
}

}  // namespace

Result<ResponsesRequest> ParseResponsesRequest(const Json& body, const ConvertOptions& options) {
  JsonReader reader(body, "");
  if (!reader.ok()) return DeserializeError("", "expected a JSON object");
  ResponsesRequest request;
  request.model = reader.RequiredString("model");
  if (!reader.ok()) return reader.status();
  DI_RETURN_IF_ERROR(ParseInput(reader, request));
  request.instructions = reader.String("instructions");
  request.echo.instructions = Echo(request.instructions, "null");
  for (const char* field : {"conversation", "previous_response_id"}) {
    if (reader.Find(field) != nullptr) request.history_field = field;
  }
  if (const Json* reasoning = reader.Object("reasoning")) {
    JsonReader inner(*reasoning, "reasoning");
    request.effort = ReadEffort(inner, "effort");
    if (const Json* effort = inner.Find("effort")) request.echo.reasoning_effort = text::CompactJson(*effort);
    reader.Absorb(inner.status());
  }
  request.sampling.temperature = reader.Number("temperature");
  request.sampling.top_p = reader.Number("top_p");
  request.sampling.max_tokens = reader.Unsigned("max_output_tokens", UINT32_MAX);
  request.top_logprobs = reader.Unsigned("top_logprobs", UINT32_MAX);
  request.echo.temperature = Echo(request.sampling.temperature, "1.0");
  request.echo.top_p = Echo(request.sampling.top_p, "1.0");
  request.echo.max_output_tokens = Echo(request.sampling.max_tokens, "null");
  request.echo.top_logprobs = Echo(request.top_logprobs, "0");
  if (options.sampling_policy == SamplingPolicy::kClient) {
    request.sampling.client = ReadClientSampling(reader, options.sampling_policy);
  }
  request.stream = reader.Bool("stream").value_or(false);
  request.echo.user = Echo(reader.String("user"), "null");
  request.parallel_tool_calls = reader.Bool("parallel_tool_calls").value_or(true);
  DI_RETURN_IF_ERROR(ReadResponsesTools(reader, request));
  ParseFormat(reader, request);
  ReadExtensions(reader, request.cache_salt, request.cache_mode, request.priority);
  if (!reader.ok()) return reader.status();
  return request;
}

}  // namespace deepinfer::protocols
