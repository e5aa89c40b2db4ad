// SPDX-License-Identifier: Apache-2.0
//
// The answer to one generation request: outputs of the backend in, bytes of the response body out. One thread at a time. The
// conversation APIs share one implementation, Completions has its own.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "core/status.h"
#include "protocols/protocol_stream.h"
#include "protocols/completion_request.h"
#include "server/backend.h"

namespace deepinfer::server {

class Reply {
 public:
  virtual ~Reply() = default;
  virtual bool is_event_stream() const = 0;
  // Once, before the first Push.
  virtual void Start(int64_t prompt_tokens, int64_t cached_tokens, std::string& out) = 0;
  // A token or text of a sample; the answer may end that sample.
  virtual StreamAction Push(const BackendOutput& output, std::string& out) = 0;
  // A sample has ended by "stop" or "length"; when it was the last one the body is complete.
  virtual void EndSample(const BackendOutput& output, std::string& out) = 0;
  // Instead of the rest.
  virtual void Fail(const Status& status, std::string& out) = 0;
  virtual void KeepAlive(std::string& out) = 0;
  virtual int64_t num_output_tokens() const = 0;
  // For logs: the finish reason that the client was told.
  virtual std::string_view reason() const = 0;
};

// `tokenizer` outlives the reply.
std::unique_ptr<Reply> MakeConversationReply(const protocols::ConvertedRequest& request, const text::Tokenizer& tokenizer);
std::unique_ptr<Reply> MakeCompletionReply(const protocols::CompletionRequest& request, const protocols::ConvertOptions& options,
                                           const text::Tokenizer& tokenizer);

// 64 random bits, for ids.
uint64_t RandomBits();

}  // namespace deepinfer::server
