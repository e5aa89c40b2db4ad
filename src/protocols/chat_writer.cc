// SPDX-License-Identifier: Apache-2.0
//
// Chat Completions: chunks (protocols.md 5.3) and the whole response (5.2).
#include <fmt/format.h>

#include "core/json.h"
#include "protocols/api.h"
#include "protocols/json_text.h"
#include "protocols/logprobs_text.h"
#include "protocols/response_writer.h"

namespace deepinfer::protocols {

namespace {

std::string_view ReasonName(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop: return "stop";
    case FinishReason::kLength: return "length";
    case FinishReason::kContentFilter: return "content_filter";
    case FinishReason::kToolCalls: return "tool_calls";
  }
  return "stop";
}

void AppendUsage(const TokenUsage& usage, bool thinking, std::string& out) {
  fmt::format_to(std::back_inserter(out),
                 R"({{"prompt_tokens":{},"completion_tokens":{},"total_tokens":{},"prompt_tokens_details":{{"cached_tokens":{}}})",
                 usage.prompt_tokens, usage.completion_tokens, usage.prompt_tokens + usage.completion_tokens, usage.cached_tokens);
  if (thinking) {
    fmt::format_to(std::back_inserter(out), R"(,"completion_tokens_details":{{"reasoning_tokens":{}}})", usage.reasoning_tokens);
  }
  fmt::format_to(std::back_inserter(out), R"(,"prompt_cache_hit_tokens":{},"prompt_cache_miss_tokens":{}}})", usage.cached_tokens,
                 usage.prompt_tokens - usage.cached_tokens);
}

// {"index","id","type","function":{"name","arguments"}}
void AppendCall(int idx, std::string_view id, std::string_view name, std::string_view arguments, std::string& out) {
  out += R"({"index":)";
  AppendJsonInt(idx, out);
  out += R"(,"id":)";
  AppendJsonString(id, out);
  out += R"(,"type":"function","function":{"name":)";
  AppendJsonString(name, out);
  out += R"(,"arguments":)";
  AppendJsonString(arguments, out);
  out += "}}";
}

class ChatStreamWriter : public ResponseWriter {
 public:
  ChatStreamWriter(const ConvertedRequest& request, const ResponseSetup& setup)
      : thinking_(request.conversation.thinking),
        continues_content_(request.prompt.stage == text::InitialStage::kContentContinuation),
        has_usage_chunk_(request.has_usage_chunk) {
    head_ = R"(data: {"id":)";
    AppendJsonString(setup.id, head_);
    fmt::format_to(std::back_inserter(head_), R"(,"object":"chat.completion.chunk","created":{},"model":)", setup.created);
    AppendJsonString(setup.model, head_);
    head_ += R"(,"system_fingerprint":)";
    AppendJsonStringOrNull(setup.system_fingerprint, head_);
    head_ += R"(,"choices":[)";
    tail_ = request.include_usage || !request.stream ? "],\"usage\":null}\n\n" : "]}\n\n";
  }

  void Start(const TokenUsage&, std::string& out) override {
    Open(out);
    out += R"("role":"assistant",)";
    if (!thinking_) {
      out += R"("content":"")";
    } else {
      out += continues_content_ ? R"("content":"","reasoning_content":null)" : R"("content":null,"reasoning_content":"")";
    }
    Close(out);
  }

  void Write(const OutputEvent& event, std::string& out) override {
    switch (event.kind) {
      case OutputEvent::Kind::kReasoning:
        Open(out);
        out += R"("content":null,"reasoning_content":)";
        AppendJsonString(event.text, out);
        CloseText(event, "reasoning_content", out);
        break;
      case OutputEvent::Kind::kContent:
        Open(out);
        out += R"("content":)";
        AppendJsonString(event.text, out);
        if (thinking_) out += R"(,"reasoning_content":null)";
        CloseText(event, "content", out);
        break;
      case OutputEvent::Kind::kToolCallBegin:
        Open(out);
        out += R"("tool_calls":[)";
        AppendCall(event.tool_idx, event.tool_id, event.text, "", out);
        out += ']';
        Close(out);
        break;
      case OutputEvent::Kind::kArguments:
        Open(out);
        out += R"("tool_calls":[{"index":)";
        AppendJsonInt(event.tool_idx, out);
        out += R"(,"function":{"arguments":)";
        AppendJsonString(event.text, out);
        out += "}}]";
        Close(out);
        break;
      case OutputEvent::Kind::kToolCallEnd: break;
    }
  }

  void Finish(const ResponseEnd& end, std::string& out) override {
    Open(out);
    out += thinking_ ? R"("content":"","reasoning_content":null)" : R"("content":"")";
    out += R"(},"logprobs":null,"finish_reason":")";
    out += ReasonName(end.reason);
    out += R"("}],"usage":)";
    AppendUsage(end.usage, thinking_, out);
    out += "}\n\n";
    if (has_usage_chunk_) {
      out += head_;
      out += R"(],"usage":)";
      AppendUsage(end.usage, thinking_, out);
      out += "}\n\n";
    }
    out += "data: [DONE]\n\n";
  }

  void Fail(const Status& status, std::string& out) override {
    out += "data: ";
    out += DumpJson(ErrorBody(Api::kChat, status));
    out += "\n\n";
  }

  void KeepAlive(bool, std::string& out) const override { out += kKeepAliveComment; }

 private:
  void Open(std::string& out) const {
    out += head_;
    out += R"({"index":0,"delta":{)";
  }
  void Close(std::string& out) const {
    out += R"(},"logprobs":null,"finish_reason":null})";
    out += tail_;
  }
  void CloseText(const OutputEvent& event, std::string_view key, std::string& out) const {
    if (event.logprobs.empty()) return Close(out);
    out += R"(},"logprobs":{")";
    out += key;
    out += "\":[";
    AppendLogprobEntries(event.logprobs, out);
    out += R"(]},"finish_reason":null})";
    out += tail_;
  }

  const bool thinking_;
  const bool continues_content_;
  const bool has_usage_chunk_;
  std::string head_;  // up to the list of choices
  std::string tail_;  // after the choice
};

class ChatBodyWriter : public ResponseWriter {
 public:
  ChatBodyWriter(const ConvertedRequest& request, const ResponseSetup& setup)
      : setup_(setup),
        thinking_(request.conversation.thinking),
        has_reasoning_(thinking_ && request.prompt.stage != text::InitialStage::kContentContinuation) {}

  void Start(const TokenUsage&, std::string&) override {}

  void Write(const OutputEvent& event, std::string&) override {
    switch (event.kind) {
      case OutputEvent::Kind::kReasoning: AddText(event, reasoning_, reasoning_logprobs_); break;
      case OutputEvent::Kind::kContent: AddText(event, content_, content_logprobs_); break;
      case OutputEvent::Kind::kToolCallBegin: calls_.push_back({event.tool_id, event.text, ""}); break;
      case OutputEvent::Kind::kArguments:
        if (!calls_.empty()) calls_.back().arguments += event.text;
        break;
      case OutputEvent::Kind::kToolCallEnd: break;
    }
  }

  void Finish(const ResponseEnd& end, std::string& out) override {
    out += R"({"id":)";
    AppendJsonString(setup_.id, out);
    fmt::format_to(std::back_inserter(out), R"(,"object":"chat.completion","created":{},"model":)", setup_.created);
    AppendJsonString(setup_.model, out);
    out += R"(,"choices":[{"index":0,"message":{"role":"assistant","content":)";
    AppendJsonString(content_, out);
    if (has_reasoning_) {
      out += R"(,"reasoning_content":)";
      AppendJsonString(reasoning_, out);
    }
    for (size_t i = 0; i < calls_.size(); ++i) {
      out += i == 0 ? R"(,"tool_calls":[)" : ",";
      AppendCall(static_cast<int>(i), calls_[i].id, calls_[i].name, calls_[i].arguments, out);
    }
    if (!calls_.empty()) out += ']';
    out += R"(},"logprobs":)";
    AppendLogprobs(out);
    out += R"(,"finish_reason":")";
    out += ReasonName(end.reason);
    out += R"("}],"usage":)";
    AppendUsage(end.usage, thinking_, out);
    out += R"(,"system_fingerprint":)";
    AppendJsonStringOrNull(setup_.system_fingerprint, out);
    out += '}';
  }

  void Fail(const Status& status, std::string& out) override { out += DumpJson(ErrorBody(Api::kChat, status)); }
  void KeepAlive(bool, std::string& out) const override { out += kKeepAliveLine; }

 private:
  struct Call {
    std::string id;
    std::string name;
    std::string arguments;
  };

  static void AddText(const OutputEvent& event, std::string& text, std::string& logprobs) {
    text += event.text;
    if (event.logprobs.empty()) return;
    if (!logprobs.empty()) logprobs += ',';
    AppendLogprobEntries(event.logprobs, logprobs);
  }

  void AppendLogprobs(std::string& out) const {
    if (content_logprobs_.empty() && reasoning_logprobs_.empty()) {
      out += "null";
      return;
    }
    char opening = '{';
    for (const auto& [key, entries] : {std::pair("content", &content_logprobs_), std::pair("reasoning_content", &reasoning_logprobs_)}) {
      if (entries->empty()) continue;
      fmt::format_to(std::back_inserter(out), "{}\"{}\":[{}]", opening, key, *entries);
      opening = ',';
    }
    out += '}';
  }

  const ResponseSetup setup_;
  const bool thinking_;
  const bool has_reasoning_;
  std::string content_;
  std::string reasoning_;
  std::vector<Call> calls_;
  std::string content_logprobs_;  // JSON entries, separated by commas
  std::string reasoning_logprobs_;
};

}  // namespace

std::unique_ptr<ResponseWriter> MakeChatWriter(const ConvertedRequest& request, const ResponseSetup& setup) {
  if (setup.is_stream) return std::make_unique<ChatStreamWriter>(request, setup);
  return std::make_unique<ChatBodyWriter>(request, setup);
}

}  // namespace deepinfer::protocols
