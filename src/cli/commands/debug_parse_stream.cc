// SPDX-License-Identifier: Apache-2.0
//
// debug parse-stream: model output on stdin through the output parser and a protocol's response encoder.
#include "protocols/debug_stream.h"

#include <fmt/format.h>

#include "cli/commands.h"
#include "cli/engine_options.h"
#include "cli/input.h"
#include "core/json.h"
#include "text/tokenizer.h"

namespace deepinfer::cli {

namespace {

// The request whose answer is parsed: --request, else one short user message; --tools puts a tool list into it.
Result<std::string> RequestBody(const DebugConfig& debug, protocols::Api api, const protocols::ConvertOptions& options) {
  Json request = Json::object();
  if (!debug.request.empty()) {
    DI_ASSIGN_OR_RETURN(request, ReadJsonFile(debug.request));
    if (!request.is_object()) return BadModel(fmt::format("{}: expected a request object", debug.request));
  } else {
    request["model"] = options.served_models.front();
    if (api == protocols::Api::kResponses) {
      request["input"] = "";
    } else {
      request["messages"] = Json::array({Json{{"role", "user"}, {"content", ""}}});
    }
    request["stream"] = true;
  }
  if (!debug.tools.empty()) {
    DI_ASSIGN_OR_RETURN(request["tools"], ReadJsonFile(debug.tools));
  }
  return DumpJson(request);
}

Status PrintLines(Invocation& invocation, const std::vector<Json>& lines) {
  for (const Json& line : lines) invocation.out.Line(DumpJson(line));
  return invocation.out.Check();
}

Status RunParseStream(Invocation& invocation) {
  const DebugConfig& debug = invocation.config.debug;
  DI_ASSIGN_OR_RETURN(const protocols::Api api, protocols::ParseApi(debug.api));
  protocols::DebugStreamOptions options;
  DI_ASSIGN_OR_RETURN(options.finish, protocols::ParseEngineFinish(debug.finish));
  if (invocation.sources.IsSet("prompt-tokens")) options.prompt_tokens = debug.prompt_tokens;
  options.cached_tokens = debug.cached_tokens;
  if (invocation.sources.IsSet("system-fingerprint")) options.system_fingerprint = debug.system_fingerprint;
  options.normalize = debug.normalize;
  options.accumulate = debug.accumulate;

  const protocols::ConvertOptions convert_options = ToConvertOptions(invocation.config.protocol);
  DI_ASSIGN_OR_RETURN(const std::string body, RequestBody(debug, api, convert_options));
  DI_ASSIGN_OR_RETURN(const std::string dir, ModelDir(invocation));
  DI_ASSIGN_OR_RETURN(const std::unique_ptr<text::Tokenizer> tokenizer, text::Tokenizer::Load(dir));
  auto stream = protocols::DebugStream::Create(api, body, *tokenizer, convert_options, options);
  if (!stream.ok()) {
    const std::string place = debug.request.empty() ? debug.tools : debug.request;
    return stream.status().code() == StatusCode::kInvalidArgument
               ? BadModel(fmt::format("{}: {}", place, stream.status().message()))
               : stream.status();
  }
  DI_ASSIGN_OR_RETURN(const std::string input, ReadStdin());
  DI_RETURN_IF_ERROR(PrintLines(invocation, (*stream)->Start()));
  DI_RETURN_IF_ERROR(ForEachLine(input, [&](std::string_view text, int64_t) -> Status {
    const Result<Json> line = ParseJson(text);
    if (!line.ok()) return BadModel(line.status().message());
    const Result<std::vector<Json>> events = (*stream)->Push(*line);
    if (!events.ok()) return BadModel(events.status().message());
    return PrintLines(invocation, *events);
  }));
  return PrintLines(invocation, (*stream)->Finish());
}

}  // namespace

Command DebugParseStreamCommand() {
  return {.name = "debug parse-stream",
          .summary = "events of the model output on stdin, one JSON a line",
          .usage = "",
          .run = RunParseStream,
          .arg_choices = {},
          .details = "Each line of stdin is a JSON string, {\"text\", \"tokens\"?} or {\"ids\", \"logprobs\"?}."};
}

}  // namespace deepinfer::cli
