// SPDX-License-Identifier: Apache-2.0
//
// debug render: a request on stdin through conversion, rendering and tokenization.
#include "protocols/debug_render.h"

#include "cli/commands.h"
#include "cli/engine_options.h"
#include "cli/input.h"
#include "text/tokenizer.h"

namespace deepinfer::cli {

namespace {

constexpr int64_t kMaxRequestBytes = int64_t{64} << 20;  // the body limit of the server

Status RunRender(Invocation& invocation) {
  DI_ASSIGN_OR_RETURN(const protocols::Api api, protocols::ParseApi(invocation.config.debug.api));
  DI_ASSIGN_OR_RETURN(const std::string dir, ModelDir(invocation));
  DI_ASSIGN_OR_RETURN(const std::unique_ptr<text::Tokenizer> tokenizer, text::Tokenizer::Load(dir));
  DI_ASSIGN_OR_RETURN(const std::string body, ReadStdin(kMaxRequestBytes));
  const protocols::DebugRenderResult result =
      protocols::DebugRender(api, body, *tokenizer, ToConvertOptions(invocation.config.protocol));
  invocation.out.Line(DumpJson(result.json));
  invocation.exit_code = result.is_error ? 1 : 0;
  return Status::Ok();
}

}  // namespace

Command DebugRenderCommand() {
  return {.name = "debug render",
          .summary = "prompt, special ranges and token ids of the request on stdin",
          .usage = "",
          .run = RunRender,
          .arg_choices = {},
          .details = "A refused request prints {\"error\": {\"status\": ..., \"body\": ...}} and exits with 1."};
}

}  // namespace deepinfer::cli
