// SPDX-License-Identifier: Apache-2.0
//
// Output events -> Chat Completions chunks (protocols.md 5.3) and the whole response (5.2). No sockets: the caller frames the
// chunks as server-sent events.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/json.h"
#include "protocols/converted_request.h"
#include "protocols/output_stream.h"

namespace deepinfer::protocols {

// What all chunks of a response share.
struct ChatResponseInfo {
  std::string id;
  int64_t created = 0;  // seconds since 1970
  std::string model;
  std::optional<std::string> system_fingerprint;
  bool thinking = false;
  text::InitialStage stage = text::InitialStage::kAnswer;
  bool has_usage_key = false;  // include_usage: every chunk has the key "usage"
};
ChatResponseInfo MakeChatResponseInfo(const ConvertedRequest& request, std::string id, int64_t created);

class ChatStreamEncoder {
 public:
  explicit ChatStreamEncoder(ChatResponseInfo info) : info_(std::move(info)) {}

  Json First() const;
  // nullopt for events that have no chunk (the end of a tool call).
  std::optional<Json> Chunk(const OutputEvent& event) const;
  Json Last(FinishReason reason, const TokenUsage& usage) const;

 private:
  Json Frame(Json delta, Json logprobs, Json finish_reason) const;

  ChatResponseInfo info_;
};

// Collects the events of a response that is sent in one piece.
class ChatResponseBuilder {
 public:
  explicit ChatResponseBuilder(ChatResponseInfo info) : info_(std::move(info)) {}

  void Add(const OutputEvent& event);
  Json Finish(FinishReason reason, const TokenUsage& usage) const;

 private:
  struct Call {
    std::string id;
    std::string name;
    std::string arguments;
  };

  ChatResponseInfo info_;
  std::string content_;
  std::string reasoning_;
  std::vector<Call> calls_;
  Json content_logprobs_ = Json::array();
  Json reasoning_logprobs_ = Json::array();
};

}  // namespace deepinfer::protocols
