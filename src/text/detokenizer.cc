// SPDX-License-Identifier: Apache-2.0
#include "text/detokenizer.h"

#include <string_view>

#include "core/utf8.h"
#include "text/tokenizer.h"

namespace deepinfer::text {

namespace {

constexpr std::string_view kReplacement = "\xef\xbf\xbd";

}  // namespace

Detokenizer::Detokenizer(const Tokenizer& tokenizer, bool skip_special)
    : tokenizer_(tokenizer), skip_special_(skip_special) {}

void Detokenizer::Push(int32_t id, std::string& out) {
  const std::string_view bytes = tokenizer_.TokenBytes(id);
  if (tokenizer_.IsAddedToken(id)) {
    if (!held_.empty()) out += ReplaceInvalidUtf8(held_);
    held_.clear();
    if (!skip_special_ || !tokenizer_.IsSpecial(id)) out += bytes;
    return;
  }
  if (bytes.empty()) return;

  const size_t token_begin = held_.size();
  held_ += bytes;
  const size_t old_size = out.size();
  size_t at = 0;
  // Where to cut, in held_ and in out, if the text turns out to end inside a character of this token: before the token, or
  // before the character that reaches over the token's start.
  size_t cut = 0;
  size_t out_cut = old_size;
  while (at < held_.size()) {
    if (at <= token_begin) {
      cut = at;
      out_cut = out.size();
    }
    const Utf8Char c = DecodeUtf8(std::string_view(held_).substr(at));
    if (c.is_truncated) {
      if (at < token_begin) {  // still the character that everything here waits for
        cut = 0;
        out_cut = old_size;
      }
      out.resize(out_cut);
      held_.erase(0, cut);
      return;
    }
    if (c.is_valid) {
      out.append(held_, at, c.num_bytes);
    } else {
      out += kReplacement;
    }
    at += c.num_bytes;
  }
  held_.clear();
}

void Detokenizer::Finish(std::string& out) {
  std::string_view rest = held_;
  while (!rest.empty()) {
    const Utf8Char c = DecodeUtf8(rest);
    if (c.is_truncated) break;
    out += c.is_valid ? rest.substr(0, c.num_bytes) : kReplacement;
    rest.remove_prefix(c.num_bytes);
  }
  held_.clear();
}

}  // namespace deepinfer::text
