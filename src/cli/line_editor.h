// SPDX-License-Identifier: Apache-2.0
//
// Line editing for chat. EditState is the pure part: bytes from the terminal in, a text with a cursor out (arrow keys,
// history, word moves, bracketed paste with several lines, UTF-8 in any chunking). LineEditor puts a terminal around it.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "core/status.h"

namespace deepinfer::cli {

class EditState {
 public:
  enum class Event { kNone, kSubmit, kInterrupt, kEndOfInput, kClearScreen };

  explicit EditState(std::vector<std::string> completions = {}) : completions_(std::move(completions)) {}

  // Takes one byte. After an event other than kNone, text() holds the line; Start() begins the next.
  Event Feed(char byte);
  void Start();

  const std::string& text() const { return text_; }
  size_t cursor() const { return cursor_; }  // byte offset, between characters

  void AddHistory(std::string line);  // no repeats of the last line, at most kMaxHistory
  const std::vector<std::string>& history() const { return history_; }

  static constexpr size_t kMaxHistory = 1000;
  static constexpr size_t kMaxLineBytes = size_t{1} << 20;

 private:
  Event Control(char byte);
  void EscapeSequence(std::string_view sequence);
  void Insert(std::string_view bytes);
  void EraseRange(size_t begin, size_t end);
  size_t WordLeft() const;
  size_t WordRight() const;
  bool MoveLine(int direction);
  void MoveHistory(int direction);
  void Complete();

  std::vector<std::string> completions_;
  std::vector<std::string> history_;
  size_t history_at_ = 0;   // history_.size() = the line being written
  std::string draft_;       // that line while older ones are shown
  std::string text_;
  size_t cursor_ = 0;
  std::string escape_;      // bytes of an unfinished escape sequence
  std::string character_;   // bytes of an unfinished UTF-8 character
  std::string killed_;      // for Ctrl-Y
  bool is_pasting_ = false;
  bool pasted_return_ = false;  // the last byte of the paste was a carriage return
};

// Screen rows and the cursor's place for `prompt` + `text` on a terminal of `columns`; control characters in the text
// other than newline are shown escaped.
struct Layout {
  std::string display;  // with \r\n between rows
  int num_rows = 1;
  int cursor_row = 0;
  int cursor_column = 0;
};
Layout LayOut(std::string_view prompt, std::string_view text, size_t cursor, int columns);

class LineEditor {
 public:
  enum class Outcome { kLine, kInterrupt, kEndOfInput };

  // history_file empty: history lives as long as the editor.
  LineEditor(std::string prompt, std::vector<std::string> completions, std::string history_file);
  ~LineEditor();

  // Shows the prompt and returns when a line is complete.
  Outcome Read(std::string& line);

 private:
  void Refresh();
  void Erase();

  std::string prompt_;
  std::string history_file_;
  EditState state_;
  std::string pending_;  // bytes read but not consumed
  int shown_rows_ = 0;
  int shown_cursor_row_ = 0;
};

}  // namespace deepinfer::cli
