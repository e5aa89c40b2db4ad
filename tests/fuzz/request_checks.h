// SPDX-License-Identifier: Apache-2.0
//
// What the fuzzers of request bodies check of any body: a refusal has a message and a body; an accepted request has special
// ranges that are in order and hold nothing but special tokens, one image for each image token, and a constraint that is JSON;
// its response is JSON whatever the model writes.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <string_view>

#include "core/check.h"
#include "core/utf8.h"
#include "protocols/convert_request.h"
#include "protocols/debug_render.h"
#include "protocols/debug_stream.h"
#include "text/python_json.h"

namespace deepinfer::protocols {

inline void CheckAccepted(const ConvertedRequest& request, const text::PromptTokens& tokens) {
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

// A fixed answer with everything in it, as events and as one body.
inline void CheckResponse(const ConvertedRequest& request) {
  constexpr std::string_view kAnswer =
      "plan</think>\n\nsay {\"a\": 1}\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"apply_patch\">\n<｜DSML｜ parameter name=\"input\" "
      "string=\"true\">x\"\\\n</｜DSML｜ parameter>\n</｜DSML｜ invoke>\n<｜DSML｜ invoke name=\"f\">\n<｜DSML｜ parameter name=\"n\" "
      "string=\"false\">[1</｜DSML｜ parameter>\n</｜DSML｜ invoke>\n</｜DSML｜ calls>";
  for (const bool is_stream : {true, false}) {
    ResponseSetup setup = MakeResponseSetup(request, "ID", 0);
    setup.is_stream = is_stream;
    ProtocolStream stream(request, nullptr, setup, 0);
    std::string out;
    stream.Start(10, 5, out);
    for (size_t i = 0; i < kAnswer.size() && !stream.is_stopped(); i += 7) stream.PushText(kAnswer.substr(i, 7), 1, out);
    stream.Finish(EngineFinish::kStop, 0, out);
    if (is_stream) {
      for (const Json& line : ReadServerSentEvents(out)) DI_CHECK(line["data"].is_object() || line["data"] == "[DONE]") << DumpJson(line);
    } else {
      DI_CHECK(text::IsJsonText(out)) << out;
    }
  }
}

inline void CheckBody(Api api, std::string_view body) {
  ConvertOptions options;
  for (const bool other : {false, true}) {
    options.sampling_policy = other ? SamplingPolicy::kClient : SamplingPolicy::kOfficial;
    options.tool_choice_thinking_grammar = other;
    options.reject_missing_reasoning = other;
    options.messages_prefill = other;
    options.ignore_previous_response_id = other;
    const Result<ConvertedRequest> request = ConvertRequest(api, body, options);
    if (request.ok()) {
      CheckAccepted(*request, options.tokens);
      CheckResponse(*request);
    } else {
      DI_CHECK(!request.status().message().empty());
      DI_CHECK(HttpStatus(request.status()) == 400) << request.status().ToString();
      DI_CHECK(!DumpJson(ErrorBody(api, request.status())).empty());
    }
  }
}

}  // namespace deepinfer::protocols
