// SPDX-License-Identifier: Apache-2.0
//
// TextStream: the text of one sample while its tokens come. Detokenises, holds back what may become a stop string, applies
// the byte limit. Used by everything that generates, so a request's text is the same wherever it runs.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "deepinfer/output.h"
#include "deepinfer/sampling_params.h"
#include "engine/stop_strings.h"
#include "text/detokenizer.h"
#include "text/tokenizer.h"

namespace deepinfer::engine {

class TextStream {
 public:
  // `tokenizer` outlives the stream. The token that ends the sample leaves no text with `hide_stop_token`.
  TextStream(const text::Tokenizer& tokenizer, const SamplingParams& params, bool hide_stop_token);

  // Adds the text that `id`, the newest of the completion's ids, makes certain; returns it. The token's own checks have been
  // made: finish_reason and stop_token_id are set. May end the completion itself (stop string, byte limit).
  std::string Push(int32_t id, Completion& completion);
  // What was held back when the sample ended by something else than its newest token.
  std::string Finish(Completion& completion);

 private:
  void LimitText(std::string& text, Completion& completion) const;

  bool hide_stop_token_;
  bool detokenize_;
  int64_t min_tokens_;
  std::optional<int64_t> max_output_bytes_;
  text::Detokenizer detokenizer_;
  StopStrings stop_strings_;
};

// Usage, timing and speculation figures of a sample that has ended `total_s` after its request came.
void FinishFigures(double total_s, Completion& completion);

}  // namespace deepinfer::engine
