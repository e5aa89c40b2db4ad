// SPDX-License-Identifier: Apache-2.0
#include "protocols/responses_tools.h"

#include <unordered_set>

#include <fmt/format.h>

#include "protocols/apply_patch_tool.h"
#include "protocols/json_text.h"
#include "text/python_json.h"

namespace deepinfer::protocols {

namespace {

// {"type","name","description","parameters","strict"} with null for what is missing.
void AppendFunctionEcho(const ToolDefinition& tool, const std::string& name, std::string& out) {
  out += R"({"type":"function","name":)";
  AppendJsonString(name, out);
  out += R"(,"description":)";
  AppendJsonStringOrNull(tool.description, out);
  out += R"(,"parameters":)";
  out += tool.parameters ? text::CompactJson(*tool.parameters) : "null";
  out += R"(,"strict":)";
  out += !tool.strict ? "null" : *tool.strict ? "true" : "false";
  out += '}';
}

ToolDefinition ReadFunction(JsonReader& reader) {
  ToolDefinition tool;
  tool.name = reader.RequiredString("name");
  tool.description = reader.String("description");
  tool.strict = reader.Bool("strict");
  if (const Json* parameters = reader.Find("parameters")) tool.parameters = *parameters;
  return tool;
}

class ToolReader {
 public:
  explicit ToolReader(ResponsesRequest& request) : request_(request) {}

  Status Read(const Json& tools) {
    std::string echo = "[";
    for (size_t i = 0; i < tools.size(); ++i) {
      const std::string path = fmt::format("tools[{}]", i);
      JsonReader reader(tools[i], path);
      const std::string type = reader.RequiredString("type");
      if (!reader.ok()) return reader.status();
      if (type != "function" && type != "namespace" && type != "custom") continue;  // tools of other servers
      if (echo.size() > 1) echo += ',';
      if (type == "function") {
        ToolDefinition tool = ReadFunction(reader);
        AppendFunctionEcho(tool, tool.name, echo);
        Add(std::move(tool), path + ".name");
      } else if (type == "custom") {
        ReadCustom(reader, tools[i], path, echo);
      } else {
        ReadNamespace(reader, path, echo);
      }
      if (!reader.ok()) return reader.status();
    }
    request_.echo.tools = echo + "]";
    return Status::Ok();
  }

 private:
  void Fail(Status status) {
    if (request_.tools_status.ok()) request_.tools_status = std::move(status);
  }

  void Add(ToolDefinition tool, std::string path) { request_.tools.push_back({std::move(tool), std::move(path)}); }

  void ReadCustom(JsonReader& reader, const Json& json, const std::string& path, std::string& echo) {
    const std::string name = reader.RequiredString("name");
    if (!reader.ok()) return;
    if (name != kApplyPatchName) {
      return Fail(InvalidArgument(fmt::format("Unsupported custom tool: '{}'. Only 'apply_patch' is supported.", name)));
    }
    echo += text::CompactJson(json);
    request_.echo.custom_tools.insert(name);
    Add(ApplyPatchTool(), path + ".name");
  }

  void ReadNamespace(JsonReader& reader, const std::string& path, std::string& echo) {
    const std::string space = reader.RequiredString("name");
    const std::optional<std::string> description = reader.String("description");
    const Json* tools = reader.Array("tools");
    if (tools == nullptr) reader.Fail("", "missing field `tools`");
    if (!reader.ok()) return;
    echo += R"({"type":"namespace","name":)";
    AppendJsonString(space, echo);
    echo += R"(,"description":)";
    AppendJsonStringOrNull(description, echo);
    echo += R"(,"tools":[)";
    std::unordered_set<std::string> names;
    bool is_first = true;
    for (size_t k = 0; k < tools->size(); ++k) {
      const std::string inner_path = fmt::format("{}.tools[{}]", path, k);
      JsonReader inner((*tools)[k], inner_path);
      const std::string type = inner.RequiredString("type");
      if (inner.ok() && type == "custom") {
        Fail(InvalidArgument(fmt::format("Currently custom tools are not allowed inside a namespace. Found custom tool '{}' in {}.",
                                         inner.String("name").value_or(""),
                                         inner_path)));
      }
      if (inner.ok() && type == "function") {
        ToolDefinition tool = ReadFunction(inner);
        if (!is_first) echo += ',';
        is_first = false;
        AppendFunctionEcho(tool, tool.name, echo);
        if (!names.insert(tool.name).second) Fail(InvalidArgument("Tool names within a namespace must be unique."));
        tool.local_name = tool.name;
        tool.name = fmt::format("{}::{}", space, *tool.local_name);
        if (description && !description->empty()) {
          tool.description = fmt::format("{}\n{}", *description, tool.description.value_or(""));
        }
        request_.echo.namespace_tools[tool.name] = {space, *tool.local_name};
        Add(std::move(tool), inner_path + ".name");
      }
      reader.Absorb(inner.status());
    }
    echo += "]}";
  }

  ResponsesRequest& request_;
};

constexpr std::array<std::pair<std::string_view, ToolChoice::Kind>, 3> kChoices = {
    {{"auto", ToolChoice::Kind::kAuto}, {"none", ToolChoice::Kind::kNone}, {"required", ToolChoice::Kind::kRequired}}};

void ReadToolChoice(JsonReader& reader, ResponsesRequest& request) {
  const Json* choice = reader.Find("tool_choice");
  if (choice == nullptr) return;
  if (choice->is_string()) {
    const auto kind = OneOf(reader, "tool_choice", choice->get_ref<const std::string&>(), kChoices);
    if (!kind) return;
    request.tool_choice.kind = *kind;
  } else {
    JsonReader inner(*choice, "tool_choice");
    const std::string type = inner.RequiredString("type");
    if (inner.ok() && (type == "function" || type == "custom")) {
      request.tool_choice.kind = ToolChoice::Kind::kNamed;
      request.tool_choice.name = inner.RequiredString("name");
      if (const auto space = inner.String("namespace"); space && !space->empty()) {
        request.tool_choice.name = fmt::format("{}::{}", *space, request.tool_choice.name);
      }
    } else if (inner.ok() && !type.starts_with("web_search")) {
      inner.Fail("type", fmt::format("unknown value \"{}\"; expected one of function, custom, web_search", type));
    } else {
      reader.Absorb(inner.status());
      return;  // a tool that is dropped cannot be chosen: auto
    }
    reader.Absorb(inner.status());
  }
  request.echo.tool_choice = text::CompactJson(*choice);
}

}  // namespace

Status ReadResponsesTools(JsonReader& reader, ResponsesRequest& request) {
  if (const Json* tools = reader.Array("tools")) DI_RETURN_IF_ERROR(ToolReader(request).Read(*tools));
  ReadToolChoice(reader, request);
  return reader.status();
}

}  // namespace deepinfer::protocols
