// SPDX-License-Identifier: Apache-2.0
//
// Stop strings over streamed text. Text that could still turn into a stop string is held back; everything else is released
// at once. The result does not depend on how the text is cut into pieces, except that a match must end in text that was
// pushed with `search` set.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace deepinfer::engine {

class StopStrings {
 public:
  StopStrings(std::vector<std::string> stops, bool include_in_output);

  // Appends the text that is certain to `out`. Returns the index of the stop string that ended the text, -1 for none: the
  // match that ends first, ties by list order. After a match the text is complete and nothing may be pushed.
  int Push(std::string_view text, bool search, std::string& out);
  // The end of the text: what was held is released.
  void Finish(std::string& out);

  const std::string& stop(int idx) const { return stops_[static_cast<size_t>(idx)]; }

 private:
  std::vector<std::string> stops_;
  bool include_in_output_;
  std::string held_;  // unreleased end of the text
};

}  // namespace deepinfer::engine
