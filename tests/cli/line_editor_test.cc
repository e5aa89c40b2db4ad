// SPDX-License-Identifier: Apache-2.0
#include "cli/line_editor.h"

#include <gtest/gtest.h>

#include "cli/text_width.h"

namespace deepinfer::cli {
namespace {

using Event = EditState::Event;

Event Type(EditState& state, std::string_view bytes) {
  Event event = Event::kNone;
  for (const char byte : bytes) event = state.Feed(byte);
  return event;
}

std::string Edited(std::string_view bytes) {
  EditState state;
  state.Start();
  Type(state, bytes);
  return state.text();
}

TEST(EditState, Editing) {
  struct Case {
    const char* bytes;
    const char* text;
  };
  const Case cases[] = {
      {"hello", "hello"},
      {"helo\033[Dl", "hello"},                // left arrow
      {"ello\001h", "hello"},                  // Ctrl-A
      {"ello\033[Hh\033[F!", "hello!"},        // Home, End
      {"hellox\x7f", "hello"},                 // backspace
      {"xhello\033[H\033[3~", "hello"},        // delete
      {"one two\027three", "one three"},       // Ctrl-W
      {"one two\033bX", "one Xtwo"},           // Alt-b
      {"one two\033[1;5DX", "one Xtwo"},       // Ctrl-left
      {"one\025two", "two"},                   // Ctrl-U
      {"one two\033b\013x", "one x"},          // Ctrl-K
      {"one two\033b\013\001\031", "twoone "}, // Ctrl-K, Ctrl-A, Ctrl-Y
      {"a\nb", "a\nb"},                        // Ctrl-J
      {"a\033\rb", "a\nb"},                    // Alt-Enter
      {"a\\\rb", "a\nb"},                      // backslash Enter
      {"\033[200~one\r\ntwo\rthree\033[201~!", "one\ntwo\nthree!"},
      {"\033[200~a\033[31mb\033[201~", "ab"},  // no escape sequences out of a paste
      {"a\033[99zb", "ab"},                    // unknown sequence
      {"\x01\x02\x06\x0b\x7f\033[3~\033[D\033[C\033b\033f\033d", ""},
  };
  for (const Case& one : cases) EXPECT_EQ(Edited(one.bytes), one.text) << one.text;
}

TEST(EditState, CharactersAreDeletedWhole) {
  EXPECT_EQ(Edited("h\u00e9\x7f"), "h");
  EXPECT_EQ(Edited("\u4f60\u597d\033[D\x7f"), "\u597d");
  EXPECT_EQ(Edited("e\u0301\x7f"), "");                                // letter and combining accent
  EXPECT_EQ(Edited("x\U0001f469\u200d\U0001f680\x7f"), "x");            // joined emoji
  EXPECT_EQ(Edited("\xff\xc3!"), "\xef\xbf\xbd\xef\xbf\xbd");           // bytes that are no UTF-8 never enter the text
}

TEST(EditState, Events) {
  EditState state;
  state.Start();
  EXPECT_EQ(Type(state, "hi\r"), Event::kSubmit);
  EXPECT_EQ(state.text(), "hi");
  state.Start();
  EXPECT_EQ(Type(state, "hi\003"), Event::kInterrupt);
  state.Start();
  EXPECT_EQ(Type(state, "\004"), Event::kEndOfInput);
  state.Start();
  EXPECT_EQ(Type(state, "ab\001\004"), Event::kNone);  // Ctrl-D deletes when there is text
  EXPECT_EQ(state.text(), "b");
}

TEST(EditState, HistoryKeepsTheDraft) {
  EditState state;
  state.AddHistory("first");
  state.AddHistory("second");
  state.AddHistory("second");
  state.Start();
  Type(state, "draft\033[A");
  EXPECT_EQ(state.text(), "second");
  Type(state, "\033[A\033[A");
  EXPECT_EQ(state.text(), "first");
  Type(state, "\033[B\033[B\033[B");
  EXPECT_EQ(state.text(), "draft");
}

TEST(EditState, ArrowsMoveInsideSeveralLinesFirst) {
  EditState state;
  state.AddHistory("old");
  state.Start();
  Type(state, "one\ntwo\033[AX");
  EXPECT_EQ(state.text(), "oneX\ntwo");
  Type(state, "\033[A");
  EXPECT_EQ(state.text(), "old");
}

TEST(EditState, TabCompletesCommands) {
  EditState state({"/help", "/reset", "/save "});
  state.Start();
  Type(state, "/r\t");
  EXPECT_EQ(state.text(), "/reset");
  state.Start();
  Type(state, "/\t");
  EXPECT_EQ(state.text(), "/");
  state.Start();
  Type(state, "hello\t");
  EXPECT_EQ(state.text(), "hello");
}

TEST(EditState, AnyBytesAreSafe) {
  EditState state;
  state.Start();
  uint32_t random = 1;
  for (int i = 0; i < 200000; ++i) {
    random = random * 1664525u + 1013904223u;
    const char byte = (random >> 28) == 0 ? '\033' : static_cast<char>(random >> 20);
    if (state.Feed(byte) != Event::kNone) {
      state.AddHistory(state.text());
      state.Start();
    }
    ASSERT_LE(state.cursor(), state.text().size());
  }
}

TEST(LayOut, WrapsAndPlacesTheCursor) {
  Layout layout = LayOut("> ", "abcdef", 6, 5);
  EXPECT_EQ(layout.display, "> abc\r\ndef");
  EXPECT_EQ(layout.num_rows, 2);
  EXPECT_EQ(layout.cursor_row, 1);
  EXPECT_EQ(layout.cursor_column, 3);
  layout = LayOut("> ", "abc", 3, 5);  // the cursor does not fit behind a full row
  EXPECT_EQ(layout.cursor_row, 1);
  EXPECT_EQ(layout.cursor_column, 0);
  layout = LayOut("\033[1m>\033[0m ", "a\nb", 1, 80);
  EXPECT_EQ(layout.num_rows, 2);
  EXPECT_EQ(layout.cursor_row, 0);
  EXPECT_EQ(layout.cursor_column, 3);
  layout = LayOut("> ", "\u4f60\u597d\u4f60", 9, 5);  // wide characters are not split
  EXPECT_EQ(layout.display, "> \u4f60\r\n\u597d\u4f60");
}

TEST(TextColumns, CountsWideAndCombining) {
  EXPECT_EQ(TextColumns("abc"), 3);
  EXPECT_EQ(TextColumns("\u4f60\u597d"), 4);
  EXPECT_EQ(TextColumns("e\u0301"), 1);
  EXPECT_EQ(TextColumns("\U0001f600"), 2);
}

}  // namespace
}  // namespace deepinfer::cli
