// SPDX-License-Identifier: Apache-2.0
#include "cli/answer_printer.h"

#include "core/escape.h"

namespace deepinfer::cli {

namespace {

constexpr std::string_view kDim = "\033[2m";
constexpr std::string_view kPlain = "\033[0m";

}  // namespace

void AnswerPrinter::Write(std::string_view text) {
  if (text.empty()) return;
  out_.Write(styled_ ? EscapeForTerminal(text) : std::string(text));
  at_line_start_ = text.back() == '\n';
}

void AnswerPrinter::Enter(Part part) {
  if (part == part_) return;
  if (part_ != Part::kNone) {
    if (styled_ && part_ == Part::kThinking) out_.Write(kPlain);
    // The parts of an answer are paragraphs; the blank line belongs to the terminal's view only.
    if (!at_line_start_) Write("\n");
    if (styled_ && part_ == Part::kThinking) Write("\n");
  }
  if (styled_ && part == Part::kThinking) out_.Write(kDim);
  part_ = part;
}

void AnswerPrinter::Raw(std::string_view text) {
  if (text.empty()) return;
  part_ = Part::kAnswer;
  Write(text);
  out_.Flush();
}

void AnswerPrinter::Delta(const ChatDelta& delta) {
  if (!delta.reasoning.empty() && styled_) {
    Enter(Part::kThinking);
    Write(delta.reasoning);
  }
  if (!delta.content.empty()) {
    Enter(Part::kAnswer);
    Write(delta.content);
  }
  if (delta.tool_call_idx >= 0) {
    if (!delta.tool_name.empty()) {
      part_ = part_ == Part::kToolCall ? Part::kAnswer : part_;
      Enter(Part::kToolCall);
      Write("tool call ");
      Write(delta.tool_name);
      Write(" ");
    }
    Write(delta.tool_arguments);
  }
  out_.Flush();
}

void AnswerPrinter::Finish() {
  if (styled_ && part_ == Part::kThinking) out_.Write(kPlain);
  if (!at_line_start_) out_.Write("\n");
  part_ = Part::kNone;
  at_line_start_ = true;
  out_.Flush();
}

}  // namespace deepinfer::cli
