// SPDX-License-Identifier: Apache-2.0
//
// `deepinfer debug parse-stream`: model output, given as lines, through the output stream of a protocol (cli.md, forms 4).
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/json.h"
#include "protocols/api.h"
#include "protocols/converted_request.h"
#include "protocols/protocol_stream.h"
#include "text/tokenizer.h"

namespace deepinfer::protocols {

struct DebugStreamOptions {
  EngineFinish finish = EngineFinish::kStop;
  std::optional<int64_t> prompt_tokens;  // default: the length of the rendered prompt
  int64_t cached_tokens = 0;
  std::optional<std::string> system_fingerprint;
  bool normalize = false;   // fixed ids, names and times (golden/protocols)
  bool accumulate = false;  // one response instead of events
};

Result<EngineFinish> ParseEngineFinish(std::string_view name);  // stop, length, content_filter

// Server-sent events as lines {"event": name|null, "data": object|text}.
std::vector<Json> ReadServerSentEvents(std::string_view bytes);

// The events of a response as lines, read back from the bytes that a client would get.
class DebugStream {
 public:
  // `tokenizer` must outlive the stream. kInvalidArgument if the request is refused.
  static Result<std::unique_ptr<DebugStream>> Create(Api api,
                                                     std::string_view request_body,
                                                     const text::Tokenizer& tokenizer,
                                                     ConvertOptions convert_options,
                                                     const DebugStreamOptions& options);

  // Each returns output lines: {"event", "data"}, or the response when accumulating. Order: Start, Push..., Finish. A line is a
  // string, {"text", "tokens"?} or {"ids", "logprobs"?}; after a stop string further lines are ignored.
  std::vector<Json> Start();
  Result<std::vector<Json>> Push(const Json& line);
  std::vector<Json> Finish();

 private:
  DebugStream(const ConvertedRequest& request,
              const ResponseSetup& setup,
              const text::Tokenizer& tokenizer,
              const DebugStreamOptions& options,
              uint64_t id_seed);

  std::vector<Json> TakeLines();
  void WriteEnd();

  const text::Tokenizer& tokenizer_;
  const DebugStreamOptions options_;
  ProtocolStream stream_;
  std::string bytes_;
  bool has_ended_ = false;
};

}  // namespace deepinfer::protocols
