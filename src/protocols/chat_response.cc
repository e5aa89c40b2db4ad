// SPDX-License-Identifier: Apache-2.0
#include "protocols/chat_response.h"

#include "protocols/token_text.h"

namespace deepinfer::protocols {

namespace {

Json TokenJson(std::string_view bytes, double logprob) {
  Json out = Json::object();
  out["token"] = ReadableToken(bytes);
  out["logprob"] = logprob;
  Json numbers = Json::array();
  for (const char c : bytes) numbers.push_back(static_cast<unsigned char>(c));
  out["bytes"] = std::move(numbers);
  return out;
}

void AppendLogprobs(const std::vector<TokenLogprob>& logprobs, Json& list) {
  for (const TokenLogprob& token : logprobs) {
    Json entry = TokenJson(token.bytes, token.logprob);
    Json top = Json::array();
    for (const auto& [bytes, logprob] : token.top) top.push_back(TokenJson(bytes, logprob));
    entry["top_logprobs"] = std::move(top);
    list.push_back(std::move(entry));
  }
}

std::string_view ReasonName(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop: return "stop";
    case FinishReason::kLength: return "length";
    case FinishReason::kContentFilter: return "content_filter";
    case FinishReason::kToolCalls: return "tool_calls";
  }
  return "stop";
}

Json UsageJson(const TokenUsage& usage, bool thinking) {
  Json out = Json::object();
  out["prompt_tokens"] = usage.prompt_tokens;
  out["completion_tokens"] = usage.completion_tokens;
  out["total_tokens"] = usage.prompt_tokens + usage.completion_tokens;
  out["prompt_tokens_details"]["cached_tokens"] = usage.cached_tokens;
  if (thinking) out["completion_tokens_details"]["reasoning_tokens"] = usage.reasoning_tokens;
  out["prompt_cache_hit_tokens"] = usage.cached_tokens;
  out["prompt_cache_miss_tokens"] = usage.prompt_tokens - usage.cached_tokens;
  return out;
}

Json FingerprintJson(const std::optional<std::string>& fingerprint) {
  return fingerprint ? Json(*fingerprint) : Json(nullptr);
}

Json CallJson(int idx, const std::string& id, const std::string& name, const std::string& arguments) {
  Json call = Json::object();
  call["index"] = idx;
  call["id"] = id;
  call["type"] = "function";
  call["function"]["name"] = name;
  call["function"]["arguments"] = arguments;
  return call;
}

}  // namespace

ChatResponseInfo MakeChatResponseInfo(const ConvertedRequest& request, std::string id, int64_t created) {
  ChatResponseInfo info;
  info.id = std::move(id);
  info.created = created;
  info.model = request.model;
  info.thinking = request.conversation.thinking;
  info.stage = request.prompt.stage;
  info.has_usage_key = request.include_usage || !request.stream;
  return info;
}

Json ChatStreamEncoder::Frame(Json delta, Json logprobs, Json finish_reason) const {
  Json choice = Json::object();
  choice["index"] = 0;
  choice["delta"] = std::move(delta);
  choice["logprobs"] = std::move(logprobs);
  choice["finish_reason"] = std::move(finish_reason);
  Json chunk = Json::object();
  chunk["id"] = info_.id;
  chunk["object"] = "chat.completion.chunk";
  chunk["created"] = info_.created;
  chunk["model"] = info_.model;
  chunk["system_fingerprint"] = FingerprintJson(info_.system_fingerprint);
  chunk["choices"] = Json::array({std::move(choice)});
  if (info_.has_usage_key) chunk["usage"] = nullptr;
  return chunk;
}

Json ChatStreamEncoder::First() const {
  Json delta = Json::object();
  delta["role"] = "assistant";
  if (!info_.thinking) {
    delta["content"] = "";
  } else if (info_.stage == text::InitialStage::kContentContinuation) {
    delta["content"] = "";
    delta["reasoning_content"] = nullptr;
  } else {
    delta["content"] = nullptr;
    delta["reasoning_content"] = "";
  }
  return Frame(std::move(delta), nullptr, nullptr);
}

std::optional<Json> ChatStreamEncoder::Chunk(const OutputEvent& event) const {
  Json delta = Json::object();
  Json logprobs;
  switch (event.kind) {
    case OutputEvent::Kind::kReasoning:
      delta["content"] = nullptr;
      delta["reasoning_content"] = event.text;
      if (!event.logprobs.empty()) AppendLogprobs(event.logprobs, logprobs["reasoning_content"]);
      break;
    case OutputEvent::Kind::kContent:
      delta["content"] = event.text;
      if (info_.thinking) delta["reasoning_content"] = nullptr;
      if (!event.logprobs.empty()) AppendLogprobs(event.logprobs, logprobs["content"]);
      break;
    case OutputEvent::Kind::kToolCallBegin:
      delta["tool_calls"] = Json::array({CallJson(event.tool_idx, event.tool_id, event.text, "")});
      break;
    case OutputEvent::Kind::kArguments: {
      Json call = Json::object();
      call["index"] = event.tool_idx;
      call["function"]["arguments"] = event.text;
      delta["tool_calls"] = Json::array({std::move(call)});
      break;
    }
    case OutputEvent::Kind::kToolCallEnd: return std::nullopt;
  }
  return Frame(std::move(delta), std::move(logprobs), nullptr);
}

Json ChatStreamEncoder::Last(FinishReason reason, const TokenUsage& usage) const {
  Json delta = Json::object();
  delta["content"] = "";
  if (info_.thinking) delta["reasoning_content"] = nullptr;
  Json chunk = Frame(std::move(delta), nullptr, std::string(ReasonName(reason)));
  chunk["usage"] = UsageJson(usage, info_.thinking);
  return chunk;
}

void ChatResponseBuilder::Add(const OutputEvent& event) {
  switch (event.kind) {
    case OutputEvent::Kind::kReasoning:
      reasoning_ += event.text;
      AppendLogprobs(event.logprobs, reasoning_logprobs_);
      break;
    case OutputEvent::Kind::kContent:
      content_ += event.text;
      AppendLogprobs(event.logprobs, content_logprobs_);
      break;
    case OutputEvent::Kind::kToolCallBegin: calls_.push_back({event.tool_id, event.text, ""}); break;
    case OutputEvent::Kind::kArguments:
      if (!calls_.empty()) calls_.back().arguments += event.text;
      break;
    case OutputEvent::Kind::kToolCallEnd: break;
  }
}

Json ChatResponseBuilder::Finish(FinishReason reason, const TokenUsage& usage) const {
  Json message = Json::object();
  message["role"] = "assistant";
  message["content"] = content_;
  if (info_.thinking && info_.stage != text::InitialStage::kContentContinuation) {
    message["reasoning_content"] = reasoning_;
  }
  if (!calls_.empty()) {
    Json calls = Json::array();
    for (size_t i = 0; i < calls_.size(); ++i) {
      calls.push_back(CallJson(static_cast<int>(i), calls_[i].id, calls_[i].name, calls_[i].arguments));
    }
    message["tool_calls"] = std::move(calls);
  }
  Json logprobs;
  if (!content_logprobs_.empty()) logprobs["content"] = content_logprobs_;
  if (!reasoning_logprobs_.empty()) logprobs["reasoning_content"] = reasoning_logprobs_;

  Json choice = Json::object();
  choice["index"] = 0;
  choice["message"] = std::move(message);
  choice["logprobs"] = std::move(logprobs);
  choice["finish_reason"] = std::string(ReasonName(reason));
  Json response = Json::object();
  response["id"] = info_.id;
  response["object"] = "chat.completion";
  response["created"] = info_.created;
  response["model"] = info_.model;
  response["choices"] = Json::array({std::move(choice)});
  response["usage"] = UsageJson(usage, info_.thinking);
  response["system_fingerprint"] = FingerprintJson(info_.system_fingerprint);
  return response;
}

}  // namespace deepinfer::protocols
