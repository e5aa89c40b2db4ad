// SPDX-License-Identifier: Apache-2.0
//
// Which added tokens a conversation may contain in an answer: the end tokens, the thinking and tool-call marks, and the
// grounding marks. All others would open turns or name things that only a prompt may write; they are masked. Tokens are
// looked up by content, since checkpoints number them differently.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "text/tokenizer.h"

namespace deepinfer::engine {

inline constexpr const char* kEndOfSentence = "<｜end▁of▁sentence｜>";
inline constexpr const char* kEndOfTurn = "<|EOT|>";  // a safety stop

// One bit per id of the model's vocabulary, set = can be sampled. With `apply_policy` only the tokens named above are left
// of the added ones, and ids that the tokenizer does not know are masked. The blacklist is always masked.
std::vector<uint32_t> BuildTokenMask(const text::Tokenizer& tokenizer,
                                     int vocab_size,
                                     bool apply_policy,
                                     std::span<const int32_t> blacklist);

}  // namespace deepinfer::engine
