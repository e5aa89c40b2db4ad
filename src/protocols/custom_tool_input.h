// SPDX-License-Identifier: Apache-2.0
//
// The arguments of a custom tool's call -> its input text, piece by piece (protocols.md 6.1). When the arguments start with a
// string parameter `input`, its decoded text is the input and the rest is ignored; otherwise the whole JSON text is.
#pragma once

#include <string>
#include <string_view>

namespace deepinfer::protocols {

class CustomToolInput {
 public:
  // Appends the text that `arguments`, the next piece of the JSON text, adds. Arguments that end before the first parameter's
  // value add nothing.
  void Push(std::string_view arguments, std::string& out);

 private:
  enum class State { kOpening, kText, kDone, kRaw };

  void PushText(std::string_view piece, std::string& out);

  State state_ = State::kOpening;
  size_t num_matched_ = 0;   // of the opening
  std::string escape_;       // an escape sequence that the next piece completes
};

}  // namespace deepinfer::protocols
