// SPDX-License-Identifier: Apache-2.0
//
// What the server decides about requests and responses, whatever the request says. Defaults are those of `deepinfer serve`.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "text/prompt_renderer.h"

namespace deepinfer::protocols {

// Who decides temperature and top_p (protocols.md 3.2): the model's vendor or the client.
enum class SamplingPolicy { kOfficial, kClient };

struct ConvertOptions {
  std::vector<std::string> served_models = {
      "DeepSeek-V4.1-Flash", "deepseek-flash", "deepseek-ai/DeepSeek-V4.1-Flash", "deepseek-v4-flash"};
  SamplingPolicy sampling_policy = SamplingPolicy::kOfficial;
  bool tool_choice_thinking_grammar = false;  // a forced tool choice while thinking: constrain the answer, not 400
  bool reject_missing_reasoning = false;      // history without reasoning text: 400 instead of an empty one
  bool ignore_previous_response_id = false;   // Responses: answer without the stored history instead of 400
  bool openai_usage_chunk = false;            // a chunk without choices ends a stream with include_usage
  bool messages_prefill = false;              // Messages: the model continues a last assistant message
  int64_t max_output_tokens = 393216;
  size_t max_tools = 1024;
  size_t max_stop_bytes = 256;
  text::PromptTokens tokens;
};

}  // namespace deepinfer::protocols
