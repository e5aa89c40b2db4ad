// SPDX-License-Identifier: Apache-2.0
//
// A streamed answer on stdout. On a terminal thinking is shown dimmed and control characters of the model's text are
// escaped; otherwise only the answer itself is written, byte for byte.
#pragma once

#include <string>
#include <string_view>

#include "cli/output.h"
#include "deepinfer/llm.h"

namespace deepinfer::cli {

class AnswerPrinter {
 public:
  // `styled`: whether stdout is a terminal that understands escape sequences.
  AnswerPrinter(Output& out, bool styled) : out_(out), styled_(styled) {}

  void Raw(std::string_view text);  // continued text without structure
  void Delta(const ChatDelta& delta);
  // Ends styles and the line.
  void Finish();

 private:
  enum class Part { kNone, kThinking, kAnswer, kToolCall };
  void Enter(Part part);
  void Write(std::string_view text);

  Output& out_;
  bool styled_;
  Part part_ = Part::kNone;
  bool at_line_start_ = true;
};

}  // namespace deepinfer::cli
