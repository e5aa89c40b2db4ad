// SPDX-License-Identifier: Apache-2.0
//
// A whole response of one request, whatever its protocol: sampled tokens in, bytes out. The server drives it:
//
//   ConvertedRequest request = ConvertRequest(api, body, options);
//   ProtocolStream stream(request, &tokenizer, setup);         // setup.is_stream: events, else one body
//   stream.Start(prompt_tokens, cached_tokens, out);           // when the prompt's cache hit is known
//   for each step: stream.PushTokens(ids, logprobs, out);      // the end token too: it is counted
//                  if (stream.is_stopped()) break;             // a stop string: tell the engine to stop
//   stream.Finish(EngineFinish::kStop, now, out);              // or Fail(status, out)
//
// Every call appends to `out` what is to be sent (nothing before Finish for a body). One thread at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "protocols/api.h"
#include "protocols/converted_request.h"
#include "protocols/output_stream.h"
#include "protocols/response_writer.h"
#include "text/tokenizer.h"

namespace deepinfer::protocols {

// "chatcmpl-", "resp_" or "msg_" and 32 hexadecimal digits of random bits.
std::string MakeResponseId(Api api, uint64_t high, uint64_t low);

// The setup of a response: model and form as the request has them.
ResponseSetup MakeResponseSetup(const ConvertedRequest& request, std::string id, int64_t created);

class ProtocolStream {
 public:
  // `tokenizer` must outlive the stream; null if only text is pushed. `tool_id_seed`: random bits for the ids of tool calls.
  ProtocolStream(const ConvertedRequest& request, const text::Tokenizer* tokenizer, const ResponseSetup& setup, uint64_t tool_id_seed);

  // Tool call ids without their random part, for output that is compared.
  void UseFixedToolIds() { output_.UseFixedToolIds(); }

  void Start(int64_t prompt_tokens, int64_t cached_tokens, std::string& out);
  void PushTokens(std::span<const int32_t> ids, std::span<const SampledLogprob> logprobs, std::string& out);
  void PushText(std::string_view text, int64_t num_tokens, std::string& out);
  // `now`: seconds since 1970.
  void Finish(EngineFinish finish, int64_t now, std::string& out);
  // An error after the first byte (protocols.md 5.5). Before it the server sends an error status instead.
  void Fail(const Status& status, std::string& out);

  // To be sent every 10 s of silence: a comment, a ping event, or an empty line before a body.
  void KeepAlive(std::string& out) const { writer_->KeepAlive(is_started_, out); }

  // A stop string ended the output: the engine is to be told, further tokens are ignored.
  bool is_stopped() const { return output_.is_stopped(); }
  bool is_started() const { return is_started_; }
  // Content-Type of what is written.
  bool is_event_stream() const { return is_event_stream_; }

  // So far; complete after Finish.
  TokenUsage Usage() const;
  FinishReason ReasonFor(EngineFinish finish) const { return output_.ReasonFor(finish); }

 private:
  void Write(std::span<const OutputEvent> events, std::string& out);

  OutputStream output_;
  std::unique_ptr<ResponseWriter> writer_;
  std::vector<std::string> stop_sequences_;
  bool is_event_stream_;
  bool is_started_ = false;
  int64_t prompt_tokens_ = 0;
  int64_t cached_tokens_ = 0;
};

}  // namespace deepinfer::protocols
