// SPDX-License-Identifier: Apache-2.0
#include <unordered_set>
#include <utility>

#include <fmt/format.h>

#include "protocols/chat_request.h"
#include "protocols/image_source.h"
#include "protocols/request_rules.h"

namespace deepinfer::protocols {

namespace {

using text::Role;

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

}  // namespace

Result<ConvertedRequest> ConvertChatRequest(ChatRequest request, const ConvertOptions& options) {
  ConvertedRequest out;
  DI_RETURN_IF_ERROR(CheckModelName(request.model, options));
  if (request.messages.empty()) return InvalidArgument("Empty input messages");
  if (request.n && *request.n != 1) return InvalidArgument("Invalid n value (currently only n = 1 is supported)");
  ApplyThinking(request.thinking, request.effort, out);
  const bool thinking = out.conversation.thinking;
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
  const auto name_path = [](size_t i) { return fmt::format("tools[{}].function.name", i); };
  DI_RETURN_IF_ERROR(
      ApplyTools(request.tools, request.tool_choice, name_path, request.response_format.has_value(), options, out));
  DI_RETURN_IF_ERROR(ApplyResponseFormat(request.response_format, out));
  out.inference.parallel_tool_calls = request.parallel_tool_calls;
  if (options.reject_missing_reasoning) DI_RETURN_IF_ERROR(CheckReasoningHistory(out));

  TakeEnvelope(request, out);
  out.include_usage = request.include_usage.value_or(false);
  out.has_usage_chunk = out.include_usage && options.openai_usage_chunk;
  FinishConversion(options, out);
  return out;
}

}  // namespace deepinfer::protocols
