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
#include "protocols/output_stream.h"
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

class DebugStream {
 public:
  // `tokenizer` must outlive the stream. kInvalidArgument if the request is refused.
  static Result<std::unique_ptr<DebugStream>> Create(Api api,
                                                     std::string_view request_body,
                                                     const text::Tokenizer& tokenizer,
                                                     ConvertOptions convert_options,
                                                     const DebugStreamOptions& options);
  virtual ~DebugStream() = default;

  // Each returns output lines: {"event", "data"}, or the response when accumulating. Order: Start, Push..., Finish. A line is a
  // string, {"text", "tokens"?} or {"ids", "logprobs"?}; after a stop string further lines are ignored.
  virtual std::vector<Json> Start() = 0;
  virtual Result<std::vector<Json>> Push(const Json& line) = 0;
  virtual std::vector<Json> Finish() = 0;
};

}  // namespace deepinfer::protocols
