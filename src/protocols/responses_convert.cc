// SPDX-License-Identifier: Apache-2.0
#include <unordered_map>
#include <utility>

#include <fmt/format.h>

#include "protocols/image_source.h"
#include "protocols/responses_request.h"

namespace deepinfer::protocols {

namespace {

using text::Role;

constexpr uint64_t kMaxTopLogprobs = 20;

// Items in order -> messages. Reasoning, the answer and the calls of one turn come as separate items and become one assistant
// message.
class ItemConverter {
 public:
  explicit ItemConverter(text::Conversation& conversation) : messages_(conversation.messages) {}

  Status Add(ResponsesItem& item) {
    switch (item.kind) {
      case ResponsesItem::Kind::kReasoning: return AddReasoning(item);
      case ResponsesItem::Kind::kCall: {
        if (!is_open_) Open();
        const auto [call, is_new] = calls_.emplace(item.call.id, Call{calls_.size(), false});
        if (!is_new) call->second.is_answered = false;
        messages_.back().tool_calls.push_back(std::move(item.call));
        return Status::Ok();
      }
      case ResponsesItem::Kind::kCallOutput: {
        const auto call = calls_.find(item.call.id);
        if (call == calls_.end()) {
          return InvalidArgument(fmt::format("No tool call found for tool output with call_id {}.", item.call.id));
        }
        call->second.is_answered = true;
        break;
      }
      case ResponsesItem::Kind::kMessage:
        if (item.role == Role::kAssistant) return AddAnswer(item);
        break;
    }
    is_open_ = false;
    text::Message message;
    message.role = item.role;
    message.tool_call_id = std::move(item.call.id);
    DI_RETURN_IF_ERROR(AddParts(item, message));
    messages_.push_back(std::move(message));
    return Status::Ok();
  }

  // Every call has an output.
  Status Finish() const {
    const std::pair<const std::string, Call>* first = nullptr;
    for (const auto& entry : calls_) {
      if (!entry.second.is_answered && (first == nullptr || entry.second.order < first->second.order)) first = &entry;
    }
    if (first == nullptr) return Status::Ok();
    return InvalidArgument(fmt::format("No tool output found for tool call {}.", first->first));
  }

 private:
  struct Call {
    size_t order;
    bool is_answered;
  };

  void Open() {
    is_open_ = true;
    messages_.emplace_back().role = Role::kAssistant;
  }

  Status AddReasoning(ResponsesItem& item) {
    if (!item.reasoning) return Status::Ok();
    const bool joins = is_open_ && messages_.back().parts.empty() && messages_.back().tool_calls.empty();
    if (joins && messages_.back().reasoning) {
      *messages_.back().reasoning += "\n" + *item.reasoning;
      return Status::Ok();
    }
    if (!joins) Open();
    messages_.back().reasoning = std::move(item.reasoning);
    return Status::Ok();
  }

  Status AddAnswer(ResponsesItem& item) {
    if (!is_open_ || !messages_.back().parts.empty()) Open();
    return AddParts(item, messages_.back());
  }

  static Status AddParts(ResponsesItem& item, text::Message& message) {
    const std::string path = fmt::format("input[{}]", item.idx);
    const std::string_view list = item.kind == ResponsesItem::Kind::kCallOutput ? "output" : "content";
    for (size_t k = 0; k < item.parts.size(); ++k) {
      ResponsesPart& part = item.parts[k];
      if (part.kind == ResponsesPart::Kind::kText) {
        message.parts.push_back({std::move(part.text), std::nullopt});
        continue;
      }
      if (message.role == Role::kAssistant) return InvalidArgument("Image in assistant message is not supported");
      const std::string place = fmt::format("{}.{}[{}]", path, list, k);
      if (part.kind == ResponsesPart::Kind::kImageFile) {
        return InvalidArgument(
            fmt::format("{}: file_id is not supported. Pass the image as a base64 data url instead.", place));
      }
      DI_ASSIGN_OR_RETURN(text::ImageRef image, CheckImageUrl(part.text, part.detail, place));
      image.path = path;
      message.parts.push_back({"", std::move(image)});
    }
    return Status::Ok();
  }

  std::vector<text::Message>& messages_;
  bool is_open_ = false;  // the last message is an assistant's that the next item may join
  std::unordered_map<std::string, Call> calls_;
};

}  // namespace

Result<ConvertedRequest> ConvertResponsesRequest(ResponsesRequest request, const ConvertOptions& options) {
  ConvertedRequest out;
  out.api = Api::kResponses;
  DI_RETURN_IF_ERROR(CheckModelName(request.model, options));
  // An answer without the stored history would be worse than none.
  if (!request.history_field.empty() && !options.ignore_previous_response_id) {
    return InvalidArgument(fmt::format("{} is not supported", request.history_field));
  }
  if (request.input_is_empty_list) return InvalidArgument("Input items array must not be empty");
  const bool has_instructions = request.instructions && !request.instructions->empty();
  if (!request.input && !has_instructions) return InvalidArgument("Either input or instructions must be provided");
  ApplyThinking(std::nullopt, request.effort, out);
  DI_RETURN_IF_ERROR(
      ApplySampling(request.sampling, out.conversation.thinking, /*clamp_max_tokens=*/false, options, out.inference));
  if (request.top_logprobs.value_or(0) > kMaxTopLogprobs) {
    return InvalidArgument("Invalid top_logprobs value, the valid range of top_logprobs is [0, 20].");
  }
  if (request.top_logprobs.value_or(0) > 0) {
    out.inference.logprobs = true;
    out.inference.top_logprobs = static_cast<int>(*request.top_logprobs);
  }

  if (has_instructions) out.conversation.messages.push_back(text::Message::Text(Role::kSystem, *request.instructions));
  if (request.input) {
    ItemConverter converter(out.conversation);
    for (ResponsesItem& item : *request.input) DI_RETURN_IF_ERROR(converter.Add(item));
    DI_RETURN_IF_ERROR(converter.Finish());
  }

  DI_RETURN_IF_ERROR(request.tools_status);
  std::vector<ToolDefinition> tools;
  for (ResponsesTool& tool : request.tools) tools.push_back(std::move(tool.definition));
  const auto name_path = [&](size_t i) { return request.tools[i].path; };
  DI_RETURN_IF_ERROR(ApplyTools(tools, request.tool_choice, name_path, request.format.has_value(), options, out));
  DI_RETURN_IF_ERROR(ApplyResponseFormat(request.format, out));
  out.inference.parallel_tool_calls = request.parallel_tool_calls;
  if (options.reject_missing_reasoning) DI_RETURN_IF_ERROR(CheckReasoningHistory(out));

  TakeEnvelope(request, out);
  out.responses_echo = std::make_shared<const ResponsesEcho>(std::move(request.echo));
  FinishConversion(options, out);
  return out;
}

}  // namespace deepinfer::protocols
