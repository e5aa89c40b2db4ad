// SPDX-License-Identifier: Apache-2.0
//
// Responses: events (protocols.md 6.1) and the response object (6.2). The last event holds the whole response, so the writer of
// a stream keeps the finished items as JSON text; a body is the same without the events.
#include <fmt/format.h>

#include "core/json.h"
#include "protocols/api.h"
#include "protocols/custom_tool_input.h"
#include "protocols/json_text.h"
#include "protocols/logprobs_text.h"
#include "protocols/response_writer.h"

namespace deepinfer::protocols {

namespace {

enum class Item { kNone, kReasoning, kMessage, kFunctionCall, kCustomCall };

std::string_view IdPrefix(Item item) {
  switch (item) {
    case Item::kReasoning: return "rs_";
    case Item::kFunctionCall: return "fc_";
    case Item::kCustomCall: return "ctc_";
    default: return "msg_";
  }
}

class ResponsesWriter : public ResponseWriter {
 public:
  ResponsesWriter(const ConvertedRequest& request, const ResponseSetup& setup)
      : setup_(setup), echo_(request.responses_echo ? request.responses_echo : std::make_shared<const ResponsesEcho>()) {}

  void Start(const TokenUsage&, std::string& out) override {
    if (!setup_.is_stream) return;
    for (const char* type : {"response.created", "response.in_progress"}) {
      BeginEvent(type, out);
      out += R"("response":)";
      AppendResponse("in_progress", "null", "null", "null", nullptr, out);
      EndEvent(out);
    }
  }

  void Write(const OutputEvent& event, std::string& out) override {
    switch (event.kind) {
      case OutputEvent::Kind::kReasoning:
        if (item_ != Item::kReasoning) OpenItem(Item::kReasoning, out);
        AddDelta("response.reasoning_text.delta", event.text, out);
        break;
      case OutputEvent::Kind::kContent:
        if (item_ != Item::kMessage) OpenItem(Item::kMessage, out);
        if (!event.logprobs.empty()) {
          if (!logprobs_.empty()) logprobs_ += ',';
          const size_t begin = logprobs_.size();
          AppendLogprobEntries(event.logprobs, logprobs_);
          new_logprobs_ = begin;
        } else {
          new_logprobs_ = logprobs_.size();
        }
        AddDelta("response.output_text.delta", event.text, out);
        break;
      case OutputEvent::Kind::kToolCallBegin:
        CloseItem(/*is_incomplete=*/false, /*is_before_call=*/true, out);
        BeginCall(event, out);
        break;
      case OutputEvent::Kind::kArguments:
        if (item_ == Item::kCustomCall) {
          delta_.clear();
          custom_input_.Push(event.text, delta_);
          if (!delta_.empty()) AddDelta("response.custom_tool_call_input.delta", delta_, out);
        } else {
          AddDelta("response.function_call_arguments.delta", event.text, out);
        }
        break;
      case OutputEvent::Kind::kToolCallEnd: break;  // the item ends with the next one, or with the response
    }
  }

  void Finish(const ResponseEnd& end, std::string& out) override {
    const bool is_incomplete = end.reason == FinishReason::kLength || end.reason == FinishReason::kContentFilter;
    CloseItem(is_incomplete, /*is_before_call=*/false, out);
    const std::string_view status = is_incomplete ? "incomplete" : "completed";
    const std::string_view details = !is_incomplete                          ? "null"
                                     : end.reason == FinishReason::kLength ? R"({"reason":"max_output_tokens"})"
                                                                           : R"({"reason":"content_filter"})";
    const std::string completed_at = std::to_string(end.now);
    if (setup_.is_stream) {
      BeginEvent(is_incomplete ? "response.incomplete" : "response.completed", out);
      out += R"("response":)";
    }
    AppendResponse(status, completed_at, "null", details, &end.usage, out);
    if (setup_.is_stream) EndEvent(out);
  }

  void Fail(const Status& status, std::string& out) override {
    const Json body = ErrorBody(Api::kResponses, status);
    if (!setup_.is_stream) {
      out += DumpJson(body);
      return;
    }
    CloseItem(/*is_incomplete=*/true, /*is_before_call=*/false, out);
    const std::string error = DumpJson(Json{{"code", body["error"]["code"]}, {"message", body["error"]["message"]}});
    BeginEvent("response.failed", out);
    out += R"("response":)";
    AppendResponse("failed", "null", error, "null", nullptr, out);
    EndEvent(out);
  }

  void KeepAlive(bool, std::string& out) const override { out += setup_.is_stream ? kKeepAliveComment : kKeepAliveLine; }

 private:
  // --- events ---

  void BeginEvent(std::string_view type, std::string& out) const {
    out += "event: ";
    out += type;
    out += "\ndata: {\"type\":\"";
    out += type;
    out += "\",";
  }
  // `,"sequence_number":N}` ends every event but the two with text at the end.
  void EndEvent(std::string& out) {
    out += ',';
    AppendSequenceNumber(out);
    out += "}\n\n";
  }
  void AppendSequenceNumber(std::string& out) {
    out += R"("sequence_number":)";
    AppendJsonInt(sequence_number_++, out);
  }
  void AppendItemId(std::string& out) const {
    out += R"("item_id":")";
    out += item_id_;
    out += '"';
  }
  void AppendOutputIndex(std::string& out) const {
    out += R"("output_index":)";
    AppendJsonInt(output_idx_, out);
  }

  void AddDelta(std::string_view type, std::string_view text, std::string& out) {
    text_ += text;
    if (!setup_.is_stream || (text.empty() && new_logprobs_ == logprobs_.size())) return;
    BeginEvent(type, out);
    if (item_ == Item::kReasoning || item_ == Item::kMessage) out += R"("content_index":0,)";
    out += R"("delta":)";
    AppendJsonString(text, out);
    out += ',';
    AppendItemId(out);
    out += ',';
    if (item_ == Item::kMessage) {
      out += R"("logprobs":[)";
      out += std::string_view(logprobs_).substr(new_logprobs_);
      out += "],";
    }
    AppendOutputIndex(out);
    EndEvent(out);
  }

  // --- items ---

  void SetItem(Item item) {
    item_ = item;
    ++output_idx_;
    text_.clear();
    logprobs_.clear();
    new_logprobs_ = 0;
    item_id_ = IdPrefix(item);
    std::string id;
    text::AppendJsonEscaped(setup_.id, id);
    fmt::format_to(std::back_inserter(item_id_), "{}_{}", id, output_idx_);
  }

  void PartEvent(std::string_view name, std::string& out) {
    BeginEvent(name, out);
    out += R"("content_index":0,)";
    AppendItemId(out);
    out += ',';
    AppendOutputIndex(out);
    out += R"(,"part":)";
    AppendPart(out);
    EndEvent(out);
  }

  void OpenItem(Item item, std::string& out) {
    CloseItem(/*is_incomplete=*/false, /*is_before_call=*/false, out);
    SetItem(item);
    AnnounceItem(out);
    if (!setup_.is_stream) return;
    PartEvent("response.content_part.added", out);
  }

  void BeginCall(const OutputEvent& event, std::string& out) {
    const bool is_custom = echo_->custom_tools.contains(event.text);
    SetItem(is_custom ? Item::kCustomCall : Item::kFunctionCall);
    call_ = R"("call_id":)";
    AppendJsonString(event.tool_id, call_);
    const auto space = echo_->namespace_tools.find(event.text);
    call_ += R"(,"name":)";
    AppendJsonString(space == echo_->namespace_tools.end() ? event.text : space->second.second, call_);
    if (space != echo_->namespace_tools.end()) {
      call_ += R"(,"namespace":)";
      AppendJsonString(space->second.first, call_);
    }
    custom_input_ = CustomToolInput();
    AnnounceItem(out);
  }

  void AnnounceItem(std::string& out) {
    if (!setup_.is_stream) return;
    BeginEvent("response.output_item.added", out);
    out += R"("item":)";
    AppendItem("in_progress", "final_answer", out);
    out += ',';
    AppendOutputIndex(out);
    EndEvent(out);
  }

  // The item as it is now.
  void AppendItem(std::string_view status, std::string_view phase, std::string& out) const {
    const bool has_content = status != "in_progress";
    const auto head = [&](std::string_view type) {
      fmt::format_to(std::back_inserter(out), R"({{"type":"{}","id":"{}","status":"{}",)", type, item_id_, status);
    };
    switch (item_) {
      case Item::kReasoning:
        head("reasoning");
        out += R"("content":[)";
        if (has_content) AppendPart(out);
        out += R"(],"summary":[],"encrypted_content":")";
        text::AppendJsonEscaped(setup_.id, out);
        out += '-';
        AppendJsonInt(output_idx_, out);
        out += '"';
        break;
      case Item::kFunctionCall:
        head("function_call");
        out += call_;
        out += R"(,"arguments":)";
        AppendJsonString(text_, out);
        break;
      case Item::kCustomCall:
        head("custom_tool_call");
        out += call_;
        out += R"(,"input":)";
        AppendJsonString(text_, out);
        break;
      default:
        head("message");
        out += R"("role":"assistant","phase":")";
        out += phase;
        out += R"(","content":[)";
        if (has_content) AppendPart(out);
        out += ']';
        break;
    }
    out += '}';
  }

  void AppendPart(std::string& out) const {
    if (item_ == Item::kReasoning) {
      out += R"({"type":"reasoning_text","text":)";
    } else {
      out += R"({"type":"output_text","annotations":[],"logprobs":[)";
      out += logprobs_;
      out += R"(],"text":)";
    }
    AppendJsonString(text_, out);
    out += '}';
  }

  void CloseItem(bool is_incomplete, bool is_before_call, std::string& out) {
    if (item_ == Item::kNone) return;
    if (setup_.is_stream) AppendTextDone(out);
    item_json_.clear();
    AppendItem(is_incomplete ? "incomplete" : "completed", is_before_call ? "commentary" : "final_answer", item_json_);
    if (setup_.is_stream) {
      BeginEvent("response.output_item.done", out);
      out += R"("item":)";
      out += item_json_;
      out += ',';
      AppendOutputIndex(out);
      EndEvent(out);
    }
    if (!items_.empty()) items_ += ',';
    items_ += item_json_;
    item_ = Item::kNone;
  }

  // The events between the last delta and output_item.done.
  void AppendTextDone(std::string& out) {
    switch (item_) {
      case Item::kFunctionCall:
      case Item::kCustomCall: {
        const bool is_custom = item_ == Item::kCustomCall;
        BeginEvent(is_custom ? "response.custom_tool_call_input.done" : "response.function_call_arguments.done", out);
        out += is_custom ? R"("input":)" : R"("arguments":)";
        AppendJsonString(text_, out);
        out += ',';
        AppendItemId(out);
        out += ',';
        AppendOutputIndex(out);
        EndEvent(out);
        break;
      }
      default:
        BeginEvent(item_ == Item::kMessage ? "response.output_text.done" : "response.reasoning_text.done", out);
        out += R"("content_index":0,)";
        AppendItemId(out);
        out += ',';
        if (item_ == Item::kMessage) {
          out += R"("logprobs":[)";
          out += logprobs_;
          out += "],";
        }
        AppendOutputIndex(out);
        out += ',';
        AppendSequenceNumber(out);
        out += R"(,"text":)";
        AppendJsonString(text_, out);
        out += "}\n\n";
        PartEvent("response.content_part.done", out);
        break;
    }
  }

  // --- the response object; the arguments are JSON texts ---

  void AppendResponse(std::string_view status, std::string_view completed_at, std::string_view error, std::string_view details,
                      const TokenUsage* usage, std::string& out) const {
    out += R"({"id":)";
    AppendJsonString(setup_.id, out);
    fmt::format_to(std::back_inserter(out),
                   R"(,"object":"response","created_at":{},"status":"{}","background":false,"completed_at":{},"content_filters":null,)"
                   R"("error":{},"frequency_penalty":0.0,"incomplete_details":{},"instructions":{},"max_output_tokens":{},)"
                   R"("max_tool_calls":null,"model":{},"moderation":null,"output":[{}],"parallel_tool_calls":true,)"
                   R"("presence_penalty":0.0,"previous_response_id":null,"prompt_cache_key":null,"prompt_cache_retention":null,)"
                   R"("reasoning":{{"effort":{},"summary":null}},"safety_identifier":null,"service_tier":"default","store":false,)",
                   setup_.created, status, completed_at, error, details, echo_->instructions, echo_->max_output_tokens,
                   JsonString(setup_.model), items_, echo_->reasoning_effort);
    fmt::format_to(std::back_inserter(out),
                   R"("temperature":{},"text":{{"format":{},"verbosity":null}},"tool_choice":{},"tools":{},"top_logprobs":{},"top_p":{},)"
                   R"("truncation":"disabled","usage":)",
                   echo_->temperature, echo_->text_format, echo_->tool_choice, echo_->tools, echo_->top_logprobs, echo_->top_p);
    if (usage == nullptr) {
      out += "null";
    } else {
      fmt::format_to(std::back_inserter(out),
                     R"({{"input_tokens":{},"input_tokens_details":{{"cached_tokens":{},"cache_write_tokens":0}},"output_tokens":{},)"
                     R"("output_tokens_details":{{"reasoning_tokens":{}}},"total_tokens":{}}})",
                     usage->prompt_tokens, usage->cached_tokens, usage->completion_tokens, usage->reasoning_tokens,
                     usage->prompt_tokens + usage->completion_tokens);
    }
    out += R"(,"user":)";
    out += echo_->user;
    out += R"(,"metadata":{}})";
  }

  const ResponseSetup setup_;
  const std::shared_ptr<const ResponsesEcho> echo_;
  int64_t sequence_number_ = 0;
  std::string items_;  // the finished ones, separated by commas

  // The open item.
  Item item_ = Item::kNone;
  int output_idx_ = -1;
  std::string item_id_;
  std::string text_;         // reasoning, answer, arguments or input so far
  std::string logprobs_;     // entries so far, separated by commas
  size_t new_logprobs_ = 0;  // where those of the newest delta begin
  std::string call_;         // call_id, name and namespace of a call
  CustomToolInput custom_input_;

  std::string delta_;      // scratch
  std::string item_json_;  // scratch
};

}  // namespace

std::unique_ptr<ResponseWriter> MakeResponsesWriter(const ConvertedRequest& request, const ResponseSetup& setup) {
  return std::make_unique<ResponsesWriter>(request, setup);
}

}  // namespace deepinfer::protocols
