// SPDX-License-Identifier: Apache-2.0
#include "engine/stop_strings.h"

#include <algorithm>

namespace deepinfer::engine {

StopStrings::StopStrings(std::vector<std::string> stops, bool include_in_output)
    : stops_(std::move(stops)), include_in_output_(include_in_output) {}

int StopStrings::Push(std::string_view text, bool search, std::string& out) {
  if (stops_.empty()) {
    out.append(text);
    return -1;
  }
  const size_t new_begin = held_.size();
  held_.append(text);
  const std::string_view buffer = held_;
  if (search && !text.empty()) {
    size_t best_end = std::string_view::npos;
    int best = -1;
    for (size_t i = 0; i < stops_.size(); ++i) {
      const std::string& stop = stops_[i];
      // The match ends in the new text, so it begins at most one byte less than its length before it.
      const size_t from = new_begin + 1 > stop.size() ? new_begin + 1 - stop.size() : 0;
      const size_t begin = buffer.find(stop, from);
      if (begin == std::string_view::npos) continue;
      const size_t end = begin + stop.size();
      if (end < best_end) {
        best_end = end;
        best = static_cast<int>(i);
      }
    }
    if (best >= 0) {
      out.append(buffer.substr(0, include_in_output_ ? best_end : best_end - stops_[static_cast<size_t>(best)].size()));
      held_.clear();
      return best;
    }
  }
  // The longest end of the text that begins a stop string.
  size_t keep = 0;
  for (const std::string& stop : stops_) {
    for (size_t n = std::min(stop.size() - 1, buffer.size()); n > keep; --n) {
      if (buffer.substr(buffer.size() - n) == std::string_view(stop).substr(0, n)) keep = n;
    }
  }
  out.append(buffer.substr(0, buffer.size() - keep));
  held_.erase(0, buffer.size() - keep);
  return -1;
}

void StopStrings::Finish(std::string& out) {
  out.append(held_);
  held_.clear();
}

}  // namespace deepinfer::engine
