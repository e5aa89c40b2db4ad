// SPDX-License-Identifier: Apache-2.0
//
// An answer as a model gives it: thinking, text with code and other scripts, two tool calls. For measurements of what lies
// between a model and its clients.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "protocols/convert_request.h"
#include "protocols/protocol_stream.h"
#include "text/tokenizer.h"

namespace deepinfer {

// About 600 tokens; longer by more thinking.
inline std::vector<int32_t> RecordedAnswer(const text::Tokenizer& tokenizer, int64_t num_tokens = 0) {
  const std::string thought = "The user asks for the weather in Paris, \"the capital\". I should call the tool, then compare it with yesterday's values.\n";
  std::string text = "</think>\n\nHere is what I found so far:\n\n```cpp\nint main() { return 0; }\n```\n\n";
  for (int i = 0; i < 8; ++i) text += "Das Wetter in Paris ist schön \u2014 \u6771\u4eac\u306e\u5929\u6c17\u306f\u6674\u308c \U0001F600. Temperature: 21.5\u00b0C, wind 3 m/s.\n";
  text += "\n\n<｜DSML｜ calls>\n";
  for (int i = 0; i < 2; ++i) {
    text += "<｜DSML｜ invoke name=\"weather\">\n<｜DSML｜ parameter name=\"city\" string=\"true\">Paris, \"Île-de-France\"\nsecond line"
            "</｜DSML｜ parameter>\n<｜DSML｜ parameter name=\"days\" string=\"false\">[1, 2, 3]</｜DSML｜ parameter>\n</｜DSML｜ invoke>\n";
  }
  text += "</｜DSML｜ calls><｜end▁of▁sentence｜>";
  const std::vector<int32_t> thinking = tokenizer.EncodeFull(thought), rest = tokenizer.EncodeFull(text);
  std::vector<int32_t> ids;
  for (int i = 0; i < 8 || static_cast<int64_t>(ids.size() + rest.size()) < num_tokens; ++i) ids.insert(ids.end(), thinking.begin(), thinking.end());
  ids.insert(ids.end(), rest.begin(), rest.end());
  return ids;
}

// The answer in steps that each give the client something: tokens that are held back (half a character, the marks of a call) come
// together with the one that releases them, as drafts do. So every gap between two steps is the server's doing.
inline std::vector<std::vector<int32_t>> RecordedSteps(const text::Tokenizer& tokenizer, int64_t num_tokens) {
  constexpr const char* kBody =
      R"({"model":"deepseek-flash","messages":[{"role":"user","content":"Weather in Paris?"}],"stream":true,)"
      R"("tools":[{"type":"function","function":{"name":"weather"}}]})";
  const protocols::ConvertedRequest request = protocols::ConvertRequest(protocols::Api::kChat, std::string_view(kBody), {}).value();
  protocols::ProtocolStream stream(request, &tokenizer, protocols::MakeResponseSetup(request, "chatcmpl-1", 1), 1);
  std::string out;
  stream.Start(1, 0, out);
  std::vector<std::vector<int32_t>> steps(1);
  for (const int32_t id : RecordedAnswer(tokenizer, num_tokens)) {
    out.clear();
    stream.PushTokens(std::span(&id, 1), {}, out);
    steps.back().push_back(id);
    if (!out.empty()) steps.emplace_back();
  }
  // What is held back to the end comes with the last step.
  const std::vector<int32_t> last = std::move(steps.back());
  steps.pop_back();
  if (!steps.empty()) steps.back().insert(steps.back().end(), last.begin(), last.end());
  return steps;
}

}  // namespace deepinfer
