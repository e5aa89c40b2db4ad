// SPDX-License-Identifier: Apache-2.0
#include "engine/token_policy.h"

#include <algorithm>

namespace deepinfer::engine {
namespace {

constexpr const char* kAllowedAddedTokens[] = {
    kEndOfSentence, kEndOfTurn,  "<think>",     "</think>",    "｜DSML｜",     "<｜ref｜>",      "<｜/ref｜>",
    "<｜box｜>",    "<｜/box｜>", "<｜point｜>", "<｜/point｜>", "<｜polygon｜>", "<｜/polygon｜>",
};

}  // namespace

std::vector<uint32_t> BuildTokenMask(const text::Tokenizer& tokenizer,
                                     int vocab_size,
                                     bool apply_policy,
                                     std::span<const int32_t> blacklist) {
  std::vector<uint32_t> mask((static_cast<size_t>(vocab_size) + 31) / 32, ~uint32_t{0});
  const auto clear = [&](int id) {
    if (id >= 0 && id < vocab_size) mask[static_cast<size_t>(id) / 32] &= ~(uint32_t{1} << (id % 32));
  };
  const auto set = [&](int id) {
    if (id >= 0 && id < vocab_size) mask[static_cast<size_t>(id) / 32] |= uint32_t{1} << (id % 32);
  };
  if (apply_policy) {
    for (int id = 0; id < vocab_size; ++id) {
      if (id >= tokenizer.vocab_size() || tokenizer.IsAddedToken(id)) clear(id);
    }
    for (const char* content : kAllowedAddedTokens) set(tokenizer.FindAddedToken(content));
  }
  for (const int32_t id : blacklist) clear(id);
  return mask;
}

}  // namespace deepinfer::engine
