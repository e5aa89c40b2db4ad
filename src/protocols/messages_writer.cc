// SPDX-License-Identifier: Apache-2.0
//
// Messages: events (protocols.md 7.1) and the whole message.
#include <fmt/format.h>

#include "core/json.h"
#include "protocols/api.h"
#include "protocols/json_text.h"
#include "protocols/response_writer.h"

namespace deepinfer::protocols {

namespace {

std::string_view StopReason(const ResponseEnd& end) {
  switch (end.reason) {
    case FinishReason::kStop: return end.stop_string ? "stop_sequence" : "end_turn";
    case FinishReason::kLength: return "max_tokens";
    case FinishReason::kContentFilter: return "refusal";
    case FinishReason::kToolCalls: return "tool_use";
  }
  return "end_turn";
}

void AppendStop(const ResponseEnd& end, std::string& out) {
  out += R"("stop_reason":")";
  out += StopReason(end);
  out += R"(","stop_sequence":)";
  AppendJsonStringOrNull(end.stop_string, out);
}

void AppendUsage(const TokenUsage& usage, int64_t output_tokens, std::string& out) {
  fmt::format_to(std::back_inserter(out),
                 R"("usage":{{"input_tokens":{},"cache_creation_input_tokens":0,"cache_read_input_tokens":{},"output_tokens":{},)"
                 R"("service_tier":"standard"}})",
                 usage.prompt_tokens - usage.cached_tokens, usage.cached_tokens, output_tokens);
}

// The message up to its content.
void AppendHead(const ResponseSetup& setup, std::string& out) {
  out += R"({"id":)";
  AppendJsonString(setup.id, out);
  out += R"(,"type":"message","role":"assistant","model":)";
  AppendJsonString(setup.model, out);
  out += R"(,"content":[)";
}

// Thinking mode shows a thinking block even when it stays empty, unless the answer continues the client's text.
bool OpensThinking(const ConvertedRequest& request) {
  return request.conversation.thinking && request.prompt.stage != text::InitialStage::kContentContinuation;
}

enum class Block { kNone, kThinking, kText, kTool };

Block BlockOf(OutputEvent::Kind kind) {
  switch (kind) {
    case OutputEvent::Kind::kReasoning: return Block::kThinking;
    case OutputEvent::Kind::kContent: return Block::kText;
    default: return Block::kTool;
  }
}

class MessagesStreamWriter : public ResponseWriter {
 public:
  MessagesStreamWriter(const ConvertedRequest& request, const ResponseSetup& setup)
      : setup_(setup), opens_thinking_(OpensThinking(request)) {}

  void Start(const TokenUsage& usage, std::string& out) override {
    out += "event: message_start\ndata: {\"type\":\"message_start\",\"message\":";
    AppendHead(setup_, out);
    out += R"(],"stop_reason":null,"stop_sequence":null,)";
    AppendUsage(usage, 0, out);
    out += "}}\n\n";
    if (opens_thinking_) OpenBlock(Block::kThinking, nullptr, out);
  }

  void Write(const OutputEvent& event, std::string& out) override {
    if (event.kind == OutputEvent::Kind::kToolCallEnd) return;
    if (event.kind == OutputEvent::Kind::kToolCallBegin) return OpenBlock(Block::kTool, &event, out);
    const Block block = BlockOf(event.kind);
    if (block != Block::kTool && event.text.empty()) return;  // a log probability without text
    if (block != block_) OpenBlock(block, &event, out);
    BeginDelta(out);
    switch (block) {
      case Block::kThinking: out += R"("thinking_delta","thinking":)"; break;
      case Block::kText: out += R"("text_delta","text":)"; break;
      default: out += R"("input_json_delta","partial_json":)"; break;
    }
    AppendJsonString(event.text, out);
    out += "}}\n\n";
  }

  void Finish(const ResponseEnd& end, std::string& out) override {
    CloseBlock(out);
    out += "event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{";
    AppendStop(end, out);
    out += "},";
    AppendUsage(end.usage, end.usage.completion_tokens, out);
    out += "}\n\nevent: message_stop\ndata: {\"type\":\"message_stop\"}\n\n";
  }

  void Fail(const Status& status, std::string& out) override {
    const Json error = ErrorBody(Api::kMessages, status)["error"];
    out += "event: error\ndata: ";
    out += DumpJson(Json{{"type", "error"}, {"error", {{"type", error["type"]}, {"message", error["message"]}}}});
    out += "\n\n";
  }

  void KeepAlive(bool is_started, std::string& out) const override {
    out += is_started ? kPing : kKeepAliveComment;  // clients refuse an event before message_start
  }

 private:
  static constexpr std::string_view kPing = "event: ping\ndata: {\"type\":\"ping\"}\n\n";

  void BeginDelta(std::string& out) const {
    out += "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":";
    AppendJsonInt(block_idx_, out);
    out += R"(,"delta":{"type":)";
  }

  void OpenBlock(Block block, const OutputEvent* event, std::string& out) {
    CloseBlock(out);
    block_ = block;
    ++block_idx_;
    out += "event: content_block_start\ndata: {\"type\":\"content_block_start\",\"index\":";
    AppendJsonInt(block_idx_, out);
    out += R"(,"content_block":)";
    switch (block) {
      case Block::kThinking: out += R"({"type":"thinking","thinking":"","signature":""})"; break;
      case Block::kText: out += R"({"type":"text","text":""})"; break;
      default:
        out += R"({"type":"tool_use","id":)";
        AppendJsonString(event->tool_id, out);
        out += R"(,"name":)";
        AppendJsonString(event->text, out);
        out += R"(,"input":{}})";
        break;
    }
    out += "}\n\n";
    if (block_idx_ == 0) out += kPing;
  }

  void CloseBlock(std::string& out) {
    if (block_ == Block::kNone) return;
    if (block_ == Block::kThinking) {
      BeginDelta(out);
      out += R"("signature_delta","signature":)";
      AppendJsonString(setup_.id, out);
      out += "}}\n\n";
    }
    out += "event: content_block_stop\ndata: {\"type\":\"content_block_stop\",\"index\":";
    AppendJsonInt(block_idx_, out);
    out += "}\n\n";
    block_ = Block::kNone;
  }

  const ResponseSetup setup_;
  const bool opens_thinking_;
  Block block_ = Block::kNone;
  int block_idx_ = -1;
};

class MessagesBodyWriter : public ResponseWriter {
 public:
  MessagesBodyWriter(const ConvertedRequest& request, const ResponseSetup& setup) : setup_(setup) {
    if (OpensThinking(request)) blocks_.push_back({Block::kThinking, "", "", ""});
  }

  void Start(const TokenUsage&, std::string&) override {}

  void Write(const OutputEvent& event, std::string&) override {
    if (event.kind == OutputEvent::Kind::kToolCallEnd) return;
    if (event.kind == OutputEvent::Kind::kToolCallBegin) {
      blocks_.push_back({Block::kTool, event.tool_id, event.text, ""});
      return;
    }
    const Block block = BlockOf(event.kind);
    if (event.text.empty()) return;
    if (blocks_.empty() || blocks_.back().kind != block) blocks_.push_back({block, "", "", ""});
    blocks_.back().text += event.text;
  }

  void Finish(const ResponseEnd& end, std::string& out) override {
    AppendHead(setup_, out);
    for (size_t i = 0; i < blocks_.size(); ++i) {
      if (i > 0) out += ',';
      AppendBlock(blocks_[i], out);
    }
    out += "],";
    AppendStop(end, out);
    out += ',';
    AppendUsage(end.usage, end.usage.completion_tokens, out);
    out += '}';
  }

  void Fail(const Status& status, std::string& out) override { out += DumpJson(ErrorBody(Api::kMessages, status)); }
  void KeepAlive(bool, std::string& out) const override { out += kKeepAliveLine; }

 private:
  struct BlockText {
    Block kind;
    std::string tool_id;
    std::string tool_name;
    std::string text;  // kTool: the arguments
  };

  void AppendBlock(const BlockText& block, std::string& out) const {
    switch (block.kind) {
      case Block::kThinking:
        out += R"({"type":"thinking","thinking":)";
        AppendJsonString(block.text, out);
        out += R"(,"signature":)";
        AppendJsonString(setup_.id, out);
        break;
      case Block::kTool: {
        out += R"({"type":"tool_use","id":)";
        AppendJsonString(block.tool_id, out);
        out += R"(,"name":)";
        AppendJsonString(block.tool_name, out);
        out += R"(,"input":)";
        // Arguments that were cut off are no object: the client gets an empty one.
        const Result<Json> input = ParseJson(block.text);
        out += input.ok() && input->is_object() ? std::string_view(block.text) : std::string_view("{}");
        break;
      }
      default:
        out += R"({"type":"text","text":)";
        AppendJsonString(block.text, out);
        break;
    }
    out += '}';
  }

  const ResponseSetup setup_;
  std::vector<BlockText> blocks_;
};

}  // namespace

std::unique_ptr<ResponseWriter> MakeMessagesWriter(const ConvertedRequest& request, const ResponseSetup& setup) {
  if (setup.is_stream) return std::make_unique<MessagesStreamWriter>(request, setup);
  return std::make_unique<MessagesBodyWriter>(request, setup);
}

}  // namespace deepinfer::protocols
