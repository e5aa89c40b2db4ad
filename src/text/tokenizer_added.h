// SPDX-License-Identifier: Apache-2.0
//
// Finds added tokens in text by leftmost-longest match: a byte trie entered only at bytes that begin some token. Matching
// restarts at most the length of the longest token back, and the tokens of the family share nearly no inner prefixes, so
// this is linear in practice.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace deepinfer::text {

class AddedTokenTrie {
 public:
  void Add(std::string_view content, int32_t id);

  // The longest token that begins at text[0]; *length is its size, 0 (and -1 returned) if there is none.
  int32_t MatchAt(std::string_view text, size_t* length) const;

  // The leftmost-longest match at or after `from`: returns the id and sets [*begin, *end), or -1 with *begin = text.size().
  int32_t FindNext(std::string_view text, size_t from, size_t* begin, size_t* end) const;

 private:
  std::array<bool, 256> is_first_byte_{};
  std::vector<int32_t> id_of_node_ = {-1};
  std::unordered_map<uint64_t, uint32_t> child_;  // node << 8 | byte -> node; node 0 is the root
};

}  // namespace deepinfer::text
