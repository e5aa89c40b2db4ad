// SPDX-License-Identifier: Apache-2.0
//
// Output events -> the bytes of a response, one implementation for each protocol and form (server-sent events, or one body). A
// writer appends to the caller's buffer and keeps only what a later event repeats. Driven by ProtocolStream.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "core/status.h"
#include "protocols/converted_request.h"
#include "protocols/output_stream.h"

namespace deepinfer::protocols {

// What the server adds to a request for its response.
struct ResponseSetup {
  std::string id;
  int64_t created = 0;  // seconds since 1970
  std::string model;    // as the client wrote it
  std::optional<std::string> system_fingerprint;
  bool is_stream = false;
};

// How a response ends.
struct ResponseEnd {
  FinishReason reason = FinishReason::kStop;
  std::optional<std::string> stop_string;  // that ended it
  TokenUsage usage;
  int64_t now = 0;  // seconds since 1970
};

// Calls come in the order of the declarations: Start, any number of Write, and then Finish or Fail once.
class ResponseWriter {
 public:
  virtual ~ResponseWriter() = default;

  // `usage` has the prompt's counts.
  virtual void Start(const TokenUsage& usage, std::string& out) = 0;
  virtual void Write(const OutputEvent& event, std::string& out) = 0;
  virtual void Finish(const ResponseEnd& end, std::string& out) = 0;
  virtual void Fail(const Status& status, std::string& out) = 0;
  // Something that clients skip; `is_started` tells whether Start was called.
  virtual void KeepAlive(bool is_started, std::string& out) const = 0;
};

// Copies what it needs of the request.
std::unique_ptr<ResponseWriter> MakeChatWriter(const ConvertedRequest& request, const ResponseSetup& setup);
std::unique_ptr<ResponseWriter> MakeMessagesWriter(const ConvertedRequest& request, const ResponseSetup& setup);
std::unique_ptr<ResponseWriter> MakeResponsesWriter(const ConvertedRequest& request, const ResponseSetup& setup);

// `: keep-alive` as a comment of an event stream, or the empty line before a body that is sent in one piece.
inline constexpr std::string_view kKeepAliveComment = ": keep-alive\n\n";
inline constexpr std::string_view kKeepAliveLine = "\n";

}  // namespace deepinfer::protocols
