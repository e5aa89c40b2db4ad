// SPDX-License-Identifier: Apache-2.0
#include "constrain/tokenizer_view.h"

#include <algorithm>

namespace deepinfer::constrain {
namespace {

constexpr const char* kStopTokens[] = {"<｜end▁of▁sentence｜>", "<|EOT|>"};
constexpr const char* kTagTokens[] = {
    "<think>",  "</think>",    "｜DSML｜",     "<｜ref｜>",      "<｜/ref｜>",      "<｜box｜>",
    "<｜/box｜>", "<｜point｜>", "<｜/point｜>", "<｜polygon｜>", "<｜/polygon｜>",
};

}  // namespace

TokenizerView MakeTokenizerView(const text::Tokenizer& tokenizer, ViewKind kind, int logit_width,
                                const std::vector<int32_t>& extra_stop_ids) {
  TokenizerView view;
  view.vocab_size = logit_width;
  view.tokens.resize(static_cast<size_t>(std::max(logit_width, 0)));
  for (int id = 0; id < std::min(logit_width, tokenizer.vocab_size()); ++id) {
    if (!tokenizer.IsAddedToken(id)) view.tokens[static_cast<size_t>(id)] = tokenizer.TokenBytes(id);
  }
  if (kind == ViewKind::kTags) {
    for (const char* content : kTagTokens) {
      const int id = tokenizer.FindAddedToken(content);
      if (id >= 0 && id < logit_width) view.tokens[static_cast<size_t>(id)] = content;
    }
  }
  view.stop_ids = extra_stop_ids;
  for (const char* content : kStopTokens) view.stop_ids.push_back(tokenizer.FindAddedToken(content));
  std::erase_if(view.stop_ids, [&](int32_t id) { return id < 0 || id >= logit_width; });
  std::sort(view.stop_ids.begin(), view.stop_ids.end());
  view.stop_ids.erase(std::unique(view.stop_ids.begin(), view.stop_ids.end()), view.stop_ids.end());
  return view;
}

}  // namespace deepinfer::constrain
