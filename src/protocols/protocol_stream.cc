// SPDX-License-Identifier: Apache-2.0
#include "protocols/protocol_stream.h"

#include <utility>

#include <fmt/format.h>

namespace deepinfer::protocols {

namespace {

std::unique_ptr<ResponseWriter> MakeWriter(const ConvertedRequest& request, const ResponseSetup& setup) {
  switch (request.api) {
    case Api::kResponses: return MakeResponsesWriter(request, setup);
    case Api::kMessages: return MakeMessagesWriter(request, setup);
    case Api::kChat: break;
  }
  return MakeChatWriter(request, setup);
}

}  // namespace

std::string MakeResponseId(Api api, uint64_t high, uint64_t low) {
  const std::string_view prefix = api == Api::kChat ? "chatcmpl-" : api == Api::kResponses ? "resp_" : "msg_";
  return fmt::format("{}{:016x}{:016x}", prefix, high, low);
}

ResponseSetup MakeResponseSetup(const ConvertedRequest& request, std::string id, int64_t created) {
  ResponseSetup setup;
  setup.id = std::move(id);
  setup.created = created;
  setup.model = request.model;
  setup.is_stream = request.stream;
  return setup;
}

ProtocolStream::ProtocolStream(const ConvertedRequest& request, const text::Tokenizer* tokenizer, const ResponseSetup& setup,
                               uint64_t tool_id_seed)
    : output_(request.parsing, tokenizer, tool_id_seed),
      writer_(MakeWriter(request, setup)),
      stop_sequences_(request.parsing.stop_sequences),
      is_event_stream_(setup.is_stream) {}

void ProtocolStream::Start(int64_t prompt_tokens, int64_t cached_tokens, std::string& out) {
  is_started_ = true;
  prompt_tokens_ = prompt_tokens;
  cached_tokens_ = cached_tokens;
  writer_->Start(Usage(), out);
}

void ProtocolStream::PushTokens(std::span<const int32_t> ids, std::span<const SampledLogprob> logprobs, std::string& out) {
  Write(output_.PushTokens(ids, logprobs), out);
}

void ProtocolStream::PushText(std::string_view text, int64_t num_tokens, std::string& out) {
  Write(output_.PushText(text, num_tokens), out);
}

void ProtocolStream::Finish(EngineFinish finish, int64_t now, std::string& out) {
  Write(output_.Finish(), out);
  ResponseEnd end;
  end.reason = output_.ReasonFor(finish);
  if (output_.stop_idx()) end.stop_string = stop_sequences_[*output_.stop_idx()];
  end.usage = Usage();
  end.now = now;
  writer_->Finish(end, out);
}

void ProtocolStream::Fail(const Status& status, std::string& out) { writer_->Fail(status, out); }

TokenUsage ProtocolStream::Usage() const {
  TokenUsage usage;
  usage.prompt_tokens = prompt_tokens_;
  usage.cached_tokens = cached_tokens_;
  usage.completion_tokens = output_.num_tokens();
  usage.reasoning_tokens = output_.num_reasoning_tokens();
  return usage;
}

void ProtocolStream::Write(std::span<const OutputEvent> events, std::string& out) {
  for (const OutputEvent& event : events) writer_->Write(event, out);
}

}  // namespace deepinfer::protocols
