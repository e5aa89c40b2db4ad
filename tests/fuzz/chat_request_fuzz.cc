// SPDX-License-Identifier: Apache-2.0
//
// Chat conversion and rendering: any body. A refusal has a message and a body; an accepted request has special ranges that are
// in order and hold nothing but special tokens, one image for each image token, and a constraint that is JSON.
#include <cstdint>
#include <set>
#include <string>
#include <string_view>

#include "core/check.h"
#include "core/utf8.h"
#include "protocols/convert_request.h"
#include "protocols/debug_render.h"
#include "text/python_json.h"

namespace {

using namespace deepinfer;
using namespace deepinfer::protocols;

void CheckAccepted(const ConvertedRequest& request, const text::PromptTokens& tokens) {
  const std::set<std::string_view> special = {tokens.bos, tokens.eos, tokens.system, tokens.user, tokens.assistant,
                                              tokens.latest_reminder, tokens.think, tokens.end_think, tokens.dsml, tokens.image};
  size_t end = 0;
  size_t num_images = 0;
  for (const text::SpecialRange& range : request.prompt.special_ranges) {
    DI_CHECK(range.begin >= end && range.end > range.begin && range.end <= request.prompt.text.size());
    const std::string_view token = std::string_view(request.prompt.text).substr(range.begin, range.end - range.begin);
    DI_CHECK(special.contains(token)) << token;
    if (token == tokens.image) ++num_images;
    end = range.end;
  }
  DI_CHECK(num_images == request.prompt.images.size());
  DI_CHECK(IsValidUtf8(request.prompt.text));
  DI_CHECK(request.conversation.effort >= 1 && request.conversation.effort <= 100);
  if (const auto& constraint = request.inference.constraint; constraint && constraint->kind != ConstraintKind::kRegex) {
    DI_CHECK(constraint->schema.empty() || text::IsJsonText(constraint->schema)) << constraint->schema;
  }
  DI_CHECK(!DumpJson(DescribeRequest(request)).empty());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view body(reinterpret_cast<const char*>(data), size);
  ConvertOptions options;
  for (const SamplingPolicy policy : {SamplingPolicy::kOfficial, SamplingPolicy::kClient}) {
    options.sampling_policy = policy;
    options.tool_choice_thinking_grammar = policy == SamplingPolicy::kClient;
    options.reject_missing_reasoning = policy == SamplingPolicy::kClient;
    const Result<ConvertedRequest> request = ConvertRequest(Api::kChat, body, options);
    if (request.ok()) {
      CheckAccepted(*request, options.tokens);
    } else {
      DI_CHECK(!request.status().message().empty());
      DI_CHECK(HttpStatus(request.status()) == 400) << request.status().ToString();
      DI_CHECK(!DumpJson(ErrorBody(Api::kChat, request.status())).empty());
    }
  }
  return 0;
}
