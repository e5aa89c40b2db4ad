// SPDX-License-Identifier: Apache-2.0
#include "engine/text_stream.h"

#include <string_view>

namespace deepinfer::engine {
namespace {

// Cuts UTF-8 text to at most `max_bytes`, never inside a character.
std::string_view CutText(std::string_view text, size_t max_bytes) {
  if (text.size() <= max_bytes) return text;
  size_t end = max_bytes;
  while (end > 0 && (static_cast<uint8_t>(text[end]) & 0xC0u) == 0x80u) --end;
  return text.substr(0, end);
}

}  // namespace

TextStream::TextStream(const text::Tokenizer& tokenizer, const SamplingParams& params, bool hide_stop_token)
    : hide_stop_token_(hide_stop_token),
      detokenize_(params.detokenize),
      min_tokens_(params.min_tokens),
      max_output_bytes_(params.max_output_bytes),
      detokenizer_(tokenizer, params.skip_special_tokens),
      stop_strings_(params.stop, params.include_stop_str_in_output) {}

void TextStream::LimitText(std::string& text, Completion& completion) const {
  if (!max_output_bytes_) return;
  const size_t limit = static_cast<size_t>(*max_output_bytes_);
  if (completion.text.size() + text.size() < limit) return;
  text.resize(CutText(text, limit - completion.text.size()).size());
  if (completion.finish_reason == FinishReason::kNone) completion.finish_reason = FinishReason::kLength;
}

std::string TextStream::Push(int32_t id, Completion& completion) {
  std::string released;
  if (!detokenize_) return released;
  const bool is_hidden = hide_stop_token_ && completion.stop_token_id.has_value();
  std::string decoded;
  if (!is_hidden) detokenizer_.Push(id, decoded);
  if (completion.finish_reason != FinishReason::kNone) detokenizer_.Finish(decoded);
  const bool search = static_cast<int64_t>(completion.ids.size()) >= min_tokens_;
  const int stop_idx = stop_strings_.Push(decoded, search, released);
  if (stop_idx >= 0) {
    // A stop string that the last allowed token completes counts as a stop: the text is cut there all the same.
    if (completion.finish_reason != FinishReason::kStop) completion.stop_string = stop_strings_.stop(stop_idx);
    completion.finish_reason = FinishReason::kStop;
  } else if (completion.finish_reason != FinishReason::kNone) {
    stop_strings_.Finish(released);
  }
  LimitText(released, completion);
  completion.text += released;
  return released;
}

std::string TextStream::Finish(Completion& completion) {
  std::string released;
  if (!detokenize_) return released;
  std::string decoded;
  detokenizer_.Finish(decoded);
  stop_strings_.Push(decoded, false, released);
  stop_strings_.Finish(released);
  LimitText(released, completion);
  completion.text += released;
  return released;
}

void FinishFigures(double total_s, Completion& completion) {
  const int64_t num_output = static_cast<int64_t>(completion.ids.size());
  completion.usage.completion_tokens = num_output;
  Timing& timing = completion.timing;
  timing.total_s = total_s;
  if (num_output > 1 && timing.total_s > timing.ttft_s) {
    timing.tokens_per_s = static_cast<double>(num_output - 1) / (timing.total_s - timing.ttft_s);
  }
  if (timing.ttft_s > 0) {
    timing.prefill_tokens_per_s = static_cast<double>(completion.usage.prompt_tokens) / timing.ttft_s;
  }
  int64_t& steps = completion.speculation.steps;
  if (steps == 0) steps = num_output;  // where nobody counts them, every token has its own
  completion.speculation.emitted_per_step = steps > 0 ? static_cast<double>(num_output) / static_cast<double>(steps) : 0.0;
}

}  // namespace deepinfer::engine
