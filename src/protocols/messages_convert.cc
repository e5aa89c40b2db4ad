// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "protocols/image_source.h"
#include "protocols/messages_request.h"

namespace deepinfer::protocols {

namespace {

using text::Role;
using Kind = MessagesBlock::Kind;

// The rounds of tool calls: every call is answered at the head of the next message, once.
class HistoryCheck {
 public:
  Status Check(const std::vector<MessagesMessage>& messages) {
    for (size_t i = 0; i < messages.size(); ++i) {
      const MessagesMessage& message = messages[i];
      if (message.blocks.empty()) return InvalidArgument(fmt::format("messages.{}: all messages must have non-empty content", i));
      DI_RETURN_IF_ERROR(CheckPlaces(message, i));
      DI_RETURN_IF_ERROR(CheckAnswers(message, i));
      calls_.clear();
      call_idx_.clear();
      num_open_ = 0;
      if (message.role == Role::kAssistant) DI_RETURN_IF_ERROR(CheckCalls(message, i));
    }
    if (num_open_ > 0) return Missing(fmt::format("messages.{}:", messages.size() - 1));
    return Status::Ok();
  }

 private:
  Status Missing(const std::string& place) const {
    std::vector<std::string_view> open;
    for (const auto& [id, is_answered] : calls_) {
      if (!is_answered) open.push_back(id);
    }
    return InvalidArgument(
        fmt::format("{}`tool_use` ids were found without `tool_result` blocks immediately after: {}. Each `tool_use` block must have "
                    "a corresponding `tool_result` block in the next message.",
                    place,
                    fmt::join(open, ", ")));
  }

  static Status CheckPlaces(const MessagesMessage& message, size_t i) {
    const auto only_in = [&](std::string_view block, Role role, std::string_view role_name) {
      if (message.role == role) return Status::Ok();
      return InvalidArgument(fmt::format("messages.{}: `{}` blocks can only be in `{}` messages", i, block, role_name));
    };
    for (const MessagesBlock& block : message.blocks) {
      switch (block.kind) {
        case Kind::kToolAddition: DI_RETURN_IF_ERROR(only_in("tool_addition", Role::kSystem, "system")); break;
        case Kind::kToolUse: DI_RETURN_IF_ERROR(only_in("tool_use", Role::kAssistant, "assistant")); break;
        case Kind::kThinking: DI_RETURN_IF_ERROR(only_in("thinking", Role::kAssistant, "assistant")); break;
        case Kind::kToolResult: DI_RETURN_IF_ERROR(only_in("tool_result", Role::kUser, "user")); break;
        case Kind::kServerTool: return InvalidArgument("Unsupported content block: server tools are not supported");
        case Kind::kImage:
          if (message.role == Role::kAssistant) return InvalidArgument("Image in assistant message is not supported");
          break;
        case Kind::kText:
        case Kind::kRedactedThinking:
        case Kind::kToolReference: break;
      }
    }
    return Status::Ok();
  }

  // Message i against the calls of the one before it.
  Status CheckAnswers(const MessagesMessage& message, size_t i) {
    for (size_t k = 0; k < message.blocks.size(); ++k) {
      const MessagesBlock& block = message.blocks[k];
      if (block.kind == Kind::kRedactedThinking) continue;
      if (block.kind != Kind::kToolResult) {
        if (num_open_ > 0) return Missing(fmt::format("messages.{}: ", i));
        continue;
      }
      const std::string& id = block.call.id;
      const auto call = call_idx_.find(id);
      if (call != call_idx_.end() && !calls_[call->second].is_answered) {
        calls_[call->second].is_answered = true;
        --num_open_;
      } else if (call != call_idx_.end()) {
        return InvalidArgument(fmt::format(
            "messages.{}.content.{}: each tool_use must have a single result. Found multiple `tool_result` blocks with id: {}", i, k, id));
      } else {
        return InvalidArgument(
            fmt::format("unexpected `messages.{}.content.{}: tool_use_id` found in `tool_result` blocks: {}. Each `tool_result` block "
                        "must have a corresponding `tool_use` block in the previous message.",
                        i,
                        k,
                        id));
      }
    }
    if (num_open_ > 0) return Missing(fmt::format("messages.{}:", i - 1));
    return Status::Ok();
  }

  Status CheckCalls(const MessagesMessage& message, size_t i) {
    for (size_t k = 0; k < message.blocks.size(); ++k) {
      const MessagesBlock& block = message.blocks[k];
      if (block.kind == Kind::kText && num_open_ > 0) return Missing(fmt::format("messages.{}.{}: ", i, k));
      if (block.kind != Kind::kToolUse) continue;
      if (!call_idx_.emplace(block.call.id, calls_.size()).second) {
        return InvalidArgument(fmt::format("messages.{}.content.{}: `tool_use` ids must be unique", i, k));
      }
      calls_.push_back({block.call.id, false});
      ++num_open_;
    }
    return Status::Ok();
  }

  struct Call {
    std::string_view id;
    bool is_answered;
  };
  std::vector<Call> calls_;  // of the last message
  std::unordered_map<std::string_view, size_t> call_idx_;
  size_t num_open_ = 0;
};

class MessageConverter {
 public:
  // `declared`: all names of the request's tools; `conversation` has those that tool_choice left.
  MessageConverter(const std::unordered_set<std::string>& declared, text::Conversation& conversation)
      : declared_(declared), conversation_(conversation) {
    for (size_t i = 0; i < conversation.tools.size(); ++i) tool_idx_.emplace(conversation.tools[i].name, i);
  }

  Status Add(MessagesMessage& message, size_t i) {
    switch (message.role) {
      case Role::kAssistant: AddAssistant(message); return Status::Ok();
      case Role::kSystem: return AddSystem(message, i);
      default: return AddUser(message, i);
    }
  }

 private:
  void ShowTool(const std::string& name, std::vector<size_t>& added) const {
    if (const auto it = tool_idx_.find(name); it != tool_idx_.end()) added.push_back(it->second);
  }

  static Status AddImage(const MessagesImage& image, const std::string& place, const std::string& path, text::Message& message) {
    switch (image.kind) {
      case MessagesImage::Kind::kFile:
        return InvalidArgument(
            fmt::format("{}: file_id is not supported. Pass the image as a base64 data url instead.", place));
      case MessagesImage::Kind::kUrl: {
        DI_ASSIGN_OR_RETURN(text::ImageRef ref, CheckImageAddress(image.data, place, path));
        message.parts.push_back({"", std::move(ref)});
        break;
      }
      case MessagesImage::Kind::kBase64: {
        DI_ASSIGN_OR_RETURN(text::ImageRef ref, CheckImageBase64(image.media_type, image.data, place, path));
        message.parts.push_back({"", std::move(ref)});
        break;
      }
    }
    return Status::Ok();
  }

  static void AddReasoning(const std::string& text, text::Message& message) {
    if (message.reasoning) {
      *message.reasoning += "\n\n";
      *message.reasoning += text;
    } else {
      message.reasoning = text;
    }
  }

  void AddAssistant(MessagesMessage& source) {
    text::Message message;
    message.role = Role::kAssistant;
    for (MessagesBlock& block : source.blocks) {
      if (block.kind == Kind::kText) message.parts.push_back({std::move(block.text), std::nullopt});
      if (block.kind == Kind::kThinking) AddReasoning(block.text, message);
      if (block.kind == Kind::kToolUse) message.tool_calls.push_back(std::move(block.call));
    }
    conversation_.messages.push_back(std::move(message));
  }

  Status AddSystem(MessagesMessage& source, size_t i) {
    text::Message message;
    message.role = Role::kSystem;
    const std::string path = fmt::format("messages.{}", i);
    bool has_additions = false;
    for (size_t k = 0; k < source.blocks.size(); ++k) {
      MessagesBlock& block = source.blocks[k];
      if (block.kind == Kind::kText) message.parts.push_back({std::move(block.text), std::nullopt});
      if (block.kind == Kind::kImage) DI_RETURN_IF_ERROR(AddImage(block.image, fmt::format("{}.content[{}]", path, k), path, message));
      if (block.kind != Kind::kToolAddition) continue;
      has_additions = true;
      if (!declared_.contains(block.text)) {
        return InvalidArgument(fmt::format("{}.content.{}: `tool_addition` references unknown tool '{}'", path, k, block.text));
      }
      ShowTool(block.text, message.added_tools);
    }
    // Nothing is left of a message whose tools the choice removed.
    if (has_additions && message.parts.empty() && message.added_tools.empty()) return Status::Ok();
    conversation_.messages.push_back(std::move(message));
    return Status::Ok();
  }

  // Results first (HistoryCheck), then what else the user says. Tools that results name become visible after all of it.
  Status AddUser(MessagesMessage& source, size_t i) {
    text::Message user;
    bool has_user_blocks = false;
    size_t num_results = 0;
    std::vector<size_t> added;
    for (size_t k = 0; k < source.blocks.size(); ++k) {
      MessagesBlock& block = source.blocks[k];
      switch (block.kind) {
        case Kind::kToolResult:
          DI_RETURN_IF_ERROR(AddResult(block, i, k, added));
          ++num_results;
          break;
        case Kind::kImage: {
          const std::string path = fmt::format("messages.{}.content[{}]", i, k);
          DI_RETURN_IF_ERROR(AddImage(block.image, path, path, user));
          has_user_blocks = true;
          break;
        }
        case Kind::kText:
          user.parts.push_back({std::move(block.text), std::nullopt});
          has_user_blocks = true;
          break;
        default: break;
      }
    }
    if (has_user_blocks || num_results == 0) conversation_.messages.push_back(std::move(user));
    conversation_.messages.back().added_tools = std::move(added);
    return Status::Ok();
  }

  Status AddResult(MessagesBlock& result, size_t i, size_t k, std::vector<size_t>& added) {
    text::Message message;
    message.role = Role::kTool;
    message.tool_call_id = std::move(result.call.id);
    const std::string path = fmt::format("messages.{}.content.{}.tool_result", i, k);
    for (size_t n = 0; n < result.content.size(); ++n) {
      MessagesBlock& block = result.content[n];
      if (block.kind == Kind::kImage) {
        DI_RETURN_IF_ERROR(AddImage(block.image, fmt::format("{}.content[{}]", path, n), path, message));
        continue;
      }
      if (block.kind == Kind::kToolReference) {
        if (!declared_.contains(block.text)) {
          return InvalidArgument(
              fmt::format("messages.{}.content.{}: tool reference '{}' not found in available tools", i, k, block.text));
        }
        ShowTool(block.text, added);
      }
      message.parts.push_back({std::move(block.text), std::nullopt});
    }
    conversation_.messages.push_back(std::move(message));
    return Status::Ok();
  }

  const std::unordered_set<std::string>& declared_;
  text::Conversation& conversation_;
  std::unordered_map<std::string, size_t> tool_idx_;
};

// Returns the names of all tools, also of those that the choice removes.
Result<std::unordered_set<std::string>> ConvertTools(MessagesRequest& request, const ConvertOptions& options, ConvertedRequest& out) {
  std::vector<ToolDefinition> tools;
  std::unordered_set<std::string> names;
  for (size_t i = 0; i < request.tools.size(); ++i) {
    if (request.tools[i].is_server_tool) return InvalidArgument(fmt::format("tools[{}]: server tools are not supported", i));
    names.insert(request.tools[i].definition.name);
    tools.push_back(std::move(request.tools[i].definition));
  }
  if (!tools.empty() && std::all_of(tools.begin(), tools.end(), [](const ToolDefinition& tool) { return tool.defer_loading; })) {
    return InvalidArgument("tools: at least one tool must have defer_loading=false. All tools cannot be deferred.");
  }
  if (request.tool_choice_is_any && (!out.conversation.thinking || options.tool_choice_thinking_grammar)) {
    request.tool_choice.kind = ToolChoice::Kind::kRequired;
  }
  const auto name_path = [](size_t i) { return fmt::format("tools[{}].name", i); };
  DI_RETURN_IF_ERROR(ApplyTools(tools, request.tool_choice, name_path, request.output_format.has_value(), options, out));
  return names;
}

}  // namespace

Result<ConvertedRequest> ConvertMessagesRequest(MessagesRequest request, const ConvertOptions& options) {
  ConvertedRequest out;
  out.api = Api::kMessages;
  // Clients of the vendor of this protocol ask for its models.
  if (!request.model.starts_with("claude")) DI_RETURN_IF_ERROR(CheckModelName(request.model, options));
  if (request.messages.empty()) return InvalidArgument("messages: at least one message is required");
  ApplyThinking(request.thinking, request.effort, out);
  DI_RETURN_IF_ERROR(
      ApplySampling(request.sampling, out.conversation.thinking, /*clamp_max_tokens=*/true, options, out.inference));
  DI_RETURN_IF_ERROR(CheckStopStrings(request.stop, /*is_list=*/true, "stop", options));
  out.parsing.stop_sequences = std::move(request.stop);
  DI_RETURN_IF_ERROR(HistoryCheck().Check(request.messages));

  DI_ASSIGN_OR_RETURN(const std::unordered_set<std::string> declared, ConvertTools(request, options, out));
  if (request.system) {
    out.conversation.messages.push_back(text::Message::Text(Role::kSystem, fmt::format("{}", fmt::join(*request.system, "\n\n"))));
  }
  MessageConverter converter(declared, out.conversation);
  for (size_t i = 0; i < request.messages.size(); ++i) DI_RETURN_IF_ERROR(converter.Add(request.messages[i], i));
  if (options.messages_prefill && request.messages.back().role == Role::kAssistant) out.conversation.messages.back().prefix = true;
  DI_RETURN_IF_ERROR(ApplyResponseFormat(request.output_format, out));
  out.inference.parallel_tool_calls = request.parallel_tool_calls;
  if (options.reject_missing_reasoning) DI_RETURN_IF_ERROR(CheckReasoningHistory(out));

  TakeEnvelope(request, out);
  FinishConversion(options, out);
  return out;
}

}  // namespace deepinfer::protocols
