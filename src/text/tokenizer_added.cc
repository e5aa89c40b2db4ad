// SPDX-License-Identifier: Apache-2.0
#include "text/tokenizer_added.h"

namespace deepinfer::text {

void AddedTokenTrie::Add(std::string_view content, int32_t id) {
  if (content.empty()) return;
  is_first_byte_[static_cast<uint8_t>(content[0])] = true;
  uint32_t node = 0;
  for (const char c : content) {
    const uint64_t edge = (uint64_t{node} << 8) | static_cast<uint8_t>(c);
    const auto [at, is_new] = child_.try_emplace(edge, static_cast<uint32_t>(id_of_node_.size()));
    if (is_new) id_of_node_.push_back(-1);
    node = at->second;
  }
  id_of_node_[node] = id;
}

int32_t AddedTokenTrie::MatchAt(std::string_view text, size_t* length) const {
  int32_t id = -1;
  *length = 0;
  uint32_t node = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto at = child_.find((uint64_t{node} << 8) | static_cast<uint8_t>(text[i]));
    if (at == child_.end()) break;
    node = at->second;
    if (id_of_node_[node] >= 0) {
      id = id_of_node_[node];
      *length = i + 1;
    }
  }
  return id;
}

int32_t AddedTokenTrie::FindNext(std::string_view text, size_t from, size_t* begin, size_t* end) const {
  for (size_t i = from; i < text.size(); ++i) {
    if (!is_first_byte_[static_cast<uint8_t>(text[i])]) continue;
    size_t length;
    const int32_t id = MatchAt(text.substr(i), &length);
    if (id < 0) continue;
    *begin = i;
    *end = i + length;
    return id;
  }
  *begin = *end = text.size();
  return -1;
}

}  // namespace deepinfer::text
