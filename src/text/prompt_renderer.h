// SPDX-License-Identifier: Apache-2.0
//
// Conversation -> prompt text, byte-exact for this model family (protocols.md 2). The renderer records which byte ranges it
// wrote as special tokens; everything else is plain text for the tokenizer, so no client text can open a turn. It also says in
// which state the model's answer starts, which the output parser needs.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "core/status.h"
#include "text/conversation.h"
#include "text/tokenizer.h"

namespace deepinfer::text {

// Spellings of the special tokens. The defaults are the released ones; FromTokenizer checks that the tokenizer has them.
struct PromptTokens {
  std::string bos = "<｜begin▁of▁sentence｜>";
  std::string eos = "<｜end▁of▁sentence｜>";
  std::string system = "<｜System｜>";
  std::string user = "<｜User｜>";
  std::string assistant = "<｜Assistant｜>";
  std::string latest_reminder = "<｜latest_reminder｜>";
  std::string think = "<think>";
  std::string end_think = "</think>";
  std::string dsml = "｜DSML｜";
  std::string image = "<｜deepseek_image｜>";  // other checkpoints of the family: <｜image｜>, <image>

  // kBadModel names the missing token. A tokenizer without an image token is fine as long as no prompt has an image.
  static Result<PromptTokens> FromTokenizer(const Tokenizer& tokenizer);
};

// What the first generated token continues.
enum class InitialStage { kAnswer, kReasoningStart, kReasoningContinuation, kContentContinuation };
std::string_view InitialStageName(InitialStage stage);

struct RenderedPrompt {
  std::string text;
  std::vector<SpecialRange> special_ranges;  // ascending, each exactly one special token
  std::vector<ImageRef> images;              // in prompt order, one for each image token the renderer wrote
  InitialStage stage = InitialStage::kAnswer;
  bool starts_in_tool_calls = false;
};

RenderedPrompt RenderPrompt(const Conversation& conversation, const PromptTokens& tokens = {});

}  // namespace deepinfer::text
