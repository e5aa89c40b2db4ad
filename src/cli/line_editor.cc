// SPDX-License-Identifier: Apache-2.0
#include "cli/line_editor.h"

#include <algorithm>
#include <cerrno>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <termios.h>
#include <unistd.h>

#include <fmt/format.h>

#include "cli/text_width.h"
#include "core/escape.h"
#include "core/file.h"
#include "core/log.h"
#include "core/signals.h"
#include "core/terminal.h"
#include "core/utf8.h"

namespace deepinfer::cli {

namespace {

constexpr char kEscape = '\033';
constexpr char Ctrl(char letter) { return static_cast<char>(letter & 0x1f); }

// Writing to the user's terminal; when it is gone the next read ends the session.
void WriteTerminal(std::string_view text) {
  while (!text.empty()) {
    const ssize_t n = ::write(STDOUT_FILENO, text.data(), text.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return;
    text.remove_prefix(static_cast<size_t>(n));
  }
}

class RawMode {
 public:
  RawMode() {
    if (::tcgetattr(STDIN_FILENO, &saved_) != 0) return;
    termios raw = saved_;
    raw.c_iflag &= ~static_cast<tcflag_t>(BRKINT | ICRNL | INPCK | ISTRIP | IXON);
    raw.c_lflag &= ~static_cast<tcflag_t>(ECHO | ICANON | IEXTEN | ISIG);
    raw.c_cflag |= CS8;
    raw.c_cc[VMIN] = 1;
    raw.c_cc[VTIME] = 0;
    SetTerminalToRestore(STDIN_FILENO, saved_);
    active_ = ::tcsetattr(STDIN_FILENO, TCSADRAIN, &raw) == 0;
    // What was typed before this moment went through ICRNL: its Enter is a newline by now.
    int waiting = 0;
    if (active_ && (saved_.c_iflag & ICRNL) != 0 && ::ioctl(STDIN_FILENO, FIONREAD, &waiting) == 0 && waiting > 0) {
      num_typed_ahead_ = static_cast<size_t>(waiting);
    }
    WriteTerminal("\033[?2004h");  // bracketed paste
  }
  ~RawMode() {
    WriteTerminal("\033[?2004l");
    if (active_) ::tcsetattr(STDIN_FILENO, TCSADRAIN, &saved_);
    ClearTerminalToRestore();
  }
  RawMode(const RawMode&) = delete;
  RawMode& operator=(const RawMode&) = delete;

  // Bytes that were typed before raw mode and not read yet.
  size_t num_typed_ahead() const { return num_typed_ahead_; }

 private:
  termios saved_{};
  size_t num_typed_ahead_ = 0;
  bool active_ = false;
};

// One line of the history file: newlines and backslashes escaped.
std::string PackLine(std::string_view line) {
  std::string out;
  for (const char c : line) {
    if (c == '\\') {
      out += "\\\\";
    } else if (c == '\n') {
      out += "\\n";
    } else {
      out += c;
    }
  }
  return out;
}

std::string UnpackLine(std::string_view line) {
  std::string out;
  for (size_t i = 0; i < line.size(); ++i) {
    if (line[i] == '\\' && i + 1 < line.size()) {
      ++i;
      out += line[i] == 'n' ? '\n' : line[i];
    } else {
      out += line[i];
    }
  }
  return out;
}

bool IsBlank(char c) { return c == ' ' || c == '\n' || c == '\t'; }

}  // namespace

void EditState::Start() {
  text_.clear();
  cursor_ = 0;
  escape_.clear();
  character_.clear();
  draft_.clear();
  is_pasting_ = false;
  history_at_ = history_.size();
}

void EditState::AddHistory(std::string line) {
  if (line.empty() || (!history_.empty() && history_.back() == line)) return;
  history_.push_back(std::move(line));
  if (history_.size() > kMaxHistory) history_.erase(history_.begin());
  history_at_ = history_.size();
}

void EditState::Insert(std::string_view bytes) {
  if (text_.size() + bytes.size() > kMaxLineBytes) return;
  text_.insert(cursor_, bytes);
  cursor_ += bytes.size();
}

void EditState::EraseRange(size_t begin, size_t end) {
  text_.erase(begin, end - begin);
  cursor_ = begin;
}

size_t EditState::WordLeft() const {
  size_t at = cursor_;
  while (at > 0 && IsBlank(text_[at - 1])) --at;
  while (at > 0 && !IsBlank(text_[at - 1])) --at;
  return at;
}

size_t EditState::WordRight() const {
  size_t at = cursor_;
  while (at < text_.size() && IsBlank(text_[at])) ++at;
  while (at < text_.size() && !IsBlank(text_[at])) ++at;
  return at;
}

bool EditState::MoveLine(int direction) {
  const size_t line_begin = cursor_ == 0 ? 0 : text_.rfind('\n', cursor_ - 1) + 1;  // npos + 1 = 0
  const size_t column = cursor_ - line_begin;
  if (direction < 0) {
    if (line_begin == 0) return false;
    const size_t previous = line_begin < 2 ? 0 : text_.rfind('\n', line_begin - 2) + 1;
    cursor_ = std::min(previous + column, line_begin - 1);
  } else {
    const size_t line_end = text_.find('\n', cursor_);
    if (line_end == std::string::npos) return false;
    const size_t next_end = std::min(text_.find('\n', line_end + 1), text_.size());
    cursor_ = std::min(line_end + 1 + column, next_end);
  }
  // The same byte column can fall inside a character.
  while (cursor_ > 0 && cursor_ < text_.size() && (static_cast<uint8_t>(text_[cursor_]) & 0xc0) == 0x80) --cursor_;
  return true;
}

void EditState::MoveHistory(int direction) {
  if (direction < 0 ? history_at_ == 0 : history_at_ >= history_.size()) return;
  if (history_at_ == history_.size()) draft_ = text_;
  history_at_ = direction < 0 ? history_at_ - 1 : history_at_ + 1;
  text_ = history_at_ == history_.size() ? draft_ : history_[history_at_];
  cursor_ = text_.size();
}

void EditState::Complete() {
  if (cursor_ != text_.size() || text_.empty()) return;
  std::string common;
  for (const std::string& candidate : completions_) {
    if (!candidate.starts_with(text_)) continue;
    if (common.empty()) {
      common = candidate;
      continue;
    }
    const auto [end, unused] = std::mismatch(common.begin(), common.end(), candidate.begin(), candidate.end());
    common.erase(end, common.end());
  }
  if (common.size() > text_.size()) {
    text_ = common;
    cursor_ = text_.size();
  }
}

EditState::Event EditState::Control(char byte) {
  switch (byte) {
    case '\r':
      // A backslash before Enter continues on the next line.
      if (cursor_ == text_.size() && text_.ends_with('\\')) {
        text_.back() = '\n';
        return Event::kNone;
      }
      return Event::kSubmit;
    case '\n': Insert("\n"); return Event::kNone;  // Ctrl-J
    case Ctrl('C'): return Event::kInterrupt;
    case Ctrl('D'):
      if (text_.empty()) return Event::kEndOfInput;
      EraseRange(cursor_, NextCharacter(text_, cursor_));
      return Event::kNone;
    case Ctrl('L'): return Event::kClearScreen;
    case Ctrl('A'): cursor_ = cursor_ == 0 ? 0 : text_.rfind('\n', cursor_ - 1) + 1; return Event::kNone;
    case Ctrl('E'): cursor_ = std::min(text_.find('\n', cursor_), text_.size()); return Event::kNone;
    case Ctrl('B'): cursor_ = PreviousCharacter(text_, cursor_); return Event::kNone;
    case Ctrl('F'): cursor_ = NextCharacter(text_, cursor_); return Event::kNone;
    case Ctrl('P'): MoveHistory(-1); return Event::kNone;
    case Ctrl('N'): MoveHistory(1); return Event::kNone;
    case Ctrl('K'): {
      const size_t end = std::min(text_.find('\n', cursor_), text_.size());
      killed_ = text_.substr(cursor_, end - cursor_);
      EraseRange(cursor_, end);
      return Event::kNone;
    }
    case Ctrl('U'):
      killed_ = text_.substr(0, cursor_);
      EraseRange(0, cursor_);
      return Event::kNone;
    case Ctrl('W'): {
      const size_t begin = WordLeft();
      killed_ = text_.substr(begin, cursor_ - begin);
      EraseRange(begin, cursor_);
      return Event::kNone;
    }
    case Ctrl('Y'): Insert(killed_); return Event::kNone;
    case '\t': Complete(); return Event::kNone;
    case '\b':
    case '\x7f':
      if (cursor_ > 0) EraseRange(PreviousCharacter(text_, cursor_), cursor_);
      return Event::kNone;
    default: return Event::kNone;
  }
}

void EditState::EscapeSequence(std::string_view sequence) {
  const auto is = [sequence](std::initializer_list<std::string_view> names) {
    return std::find(names.begin(), names.end(), sequence) != names.end();
  };
  if (is({"[200~"})) {
    is_pasting_ = true;
  } else if (is({"[D", "OD"})) {
    cursor_ = PreviousCharacter(text_, cursor_);
  } else if (is({"[C", "OC"})) {
    cursor_ = NextCharacter(text_, cursor_);
  } else if (is({"[A", "OA"})) {
    if (!MoveLine(-1)) MoveHistory(-1);
  } else if (is({"[B", "OB"})) {
    if (!MoveLine(1)) MoveHistory(1);
  } else if (is({"[H", "OH", "[1~", "[7~"})) {
    Control(Ctrl('A'));
  } else if (is({"[F", "OF", "[4~", "[8~"})) {
    Control(Ctrl('E'));
  } else if (is({"[3~"})) {
    if (cursor_ < text_.size()) EraseRange(cursor_, NextCharacter(text_, cursor_));
  } else if (is({"b", "[1;5D", "[1;3D"})) {
    cursor_ = WordLeft();
  } else if (is({"f", "[1;5C", "[1;3C"})) {
    cursor_ = WordRight();
  } else if (is({"d"})) {
    EraseRange(cursor_, WordRight());
  } else if (is({"\x7f"})) {
    Control(Ctrl('W'));
  } else if (is({"\r", "\n"})) {  // Alt-Enter
    Insert("\n");
  }
}

EditState::Event EditState::Feed(char byte) {
  if (!escape_.empty()) {
    escape_ += byte;
    const std::string_view sequence = std::string_view(escape_).substr(1);
    const bool is_long = sequence[0] == '[' || sequence[0] == 'O';
    // CSI ends with a byte of @..~; the introducer itself does not count.
    const bool is_complete = is_long ? sequence.size() > 1 && byte >= '@' && byte <= '~' : true;
    if (is_complete || escape_.size() > 16) {
      const std::string done(sequence);
      escape_.clear();
      if (is_pasting_) {
        if (done == "[201~") is_pasting_ = false;
        return Event::kNone;  // other sequences inside a paste are dropped
      }
      EscapeSequence(done);
    }
    return Event::kNone;
  }
  if (byte == kEscape) {
    escape_ = byte;
    return Event::kNone;
  }
  const auto value = static_cast<uint8_t>(byte);
  if (value < 0x20 || value == 0x7f) {
    character_.clear();
    if (!is_pasting_) return Control(byte);
    if (byte == '\r' || byte == '\n') {
      // \r\n of a paste is one line end.
      if (!(byte == '\n' && cursor_ > 0 && text_[cursor_ - 1] == '\n' && pasted_return_)) Insert("\n");
      pasted_return_ = byte == '\r';
    } else if (byte == '\t') {
      Insert("\t");
    }
    return Event::kNone;
  }
  pasted_return_ = false;
  character_ += byte;
  const Utf8Char c = DecodeUtf8(character_);
  if (c.is_truncated) return Event::kNone;
  if (c.is_valid) {
    Insert(character_);
  } else {
    Insert("\xef\xbf\xbd");  // U+FFFD for bytes that are no UTF-8
  }
  character_.clear();
  return Event::kNone;
}

Layout LayOut(std::string_view prompt, std::string_view text, size_t cursor, int columns) {
  Layout layout;
  columns = std::max(columns, 4);
  int row = 0;
  int column = 0;
  const auto new_row = [&] {
    layout.display += "\r\n";
    ++row;
    column = 0;
  };
  const auto append = [&](std::string_view shown, int width) {
    if (column + width > columns) new_row();
    layout.display += shown;
    column += width;
  };
  layout.display += prompt;
  // Escape sequences of the prompt take no columns.
  bool in_escape = false;
  for (size_t at = 0; at < prompt.size();) {
    const Utf8Char c = DecodeUtf8(prompt.substr(at));
    if (c.code_point == static_cast<uint32_t>(kEscape)) in_escape = true;
    if (!in_escape) column += CodePointColumns(c.code_point);
    if (in_escape && c.code_point == 'm') in_escape = false;
    at += c.num_bytes;
  }
  const int indent = column;
  const auto mark_cursor = [&] {
    // A cursor right of the last column stands at the start of the next row.
    if (column >= columns) new_row();
    layout.cursor_row = row;
    layout.cursor_column = column;
  };
  for (size_t at = 0; at < text.size();) {
    const size_t next = NextCharacter(text, at);
    if (at == cursor) mark_cursor();
    const std::string_view one = text.substr(at, next - at);
    if (one == "\n") {
      new_row();
      append(std::string(static_cast<size_t>(indent), ' '), indent);
    } else {
      const std::string shown = Escape(one);
      append(shown, TextColumns(shown));
    }
    at = next;
  }
  if (cursor >= text.size()) mark_cursor();
  layout.num_rows = row + 1;
  return layout;
}

LineEditor::LineEditor(std::string prompt, std::vector<std::string> completions, std::string history_file)
    : prompt_(std::move(prompt)), history_file_(std::move(history_file)), state_(std::move(completions)) {
  if (history_file_.empty()) return;
  struct stat st {};
  if (::stat(history_file_.c_str(), &st) != 0 && errno == ENOENT) return;
  const Result<std::string> text = ReadFile(history_file_, int64_t{1} << 24);
  if (!text.ok()) {
    DI_LOG(warn, "{}; the history starts empty", text.status().message());
    return;
  }
  std::string_view rest = *text;
  while (!rest.empty()) {
    const size_t end = rest.find('\n');
    state_.AddHistory(UnpackLine(rest.substr(0, end)));
    rest = end == std::string_view::npos ? std::string_view() : rest.substr(end + 1);
  }
}

LineEditor::~LineEditor() {
  if (history_file_.empty() || state_.history().empty()) return;
  std::string text;
  for (const std::string& line : state_.history()) text += PackLine(line) + "\n";
  // What was typed is private: the file is made unreadable for others before it gets its content.
  const mode_t old = ::umask(0077);
  const Status status = WriteFileAtomically(history_file_, text);
  ::umask(old);
  if (!status.ok()) DI_LOG(warn, "the history is not kept: {}", status.message());
}

void LineEditor::Erase() {
  std::string out = "\r";
  if (shown_rows_ > 0) {
    if (shown_cursor_row_ > 0) out += fmt::format("\033[{}A", shown_cursor_row_);
    out += "\033[J";
  }
  WriteTerminal(out);
  shown_rows_ = 0;
  shown_cursor_row_ = 0;
}

void LineEditor::Refresh() {
  const Layout layout = LayOut(prompt_, state_.text(), state_.cursor(), TerminalColumns(STDOUT_FILENO));
  Erase();
  std::string out = layout.display + "\r";
  const int up = layout.num_rows - 1 - layout.cursor_row;
  if (up > 0) out += fmt::format("\033[{}A", up);
  if (layout.cursor_column > 0) out += fmt::format("\033[{}C", layout.cursor_column);
  WriteTerminal(out);
  shown_rows_ = layout.num_rows;
  shown_cursor_row_ = layout.cursor_row;
}

LineEditor::Outcome LineEditor::Read(std::string& line) {
  const RawMode raw;
  size_t num_typed_ahead = raw.num_typed_ahead();
  state_.Start();
  shown_rows_ = 0;
  shown_cursor_row_ = 0;
  const auto leave = [&](Outcome outcome) {
    // The cursor goes below the text, wherever it stood in it.
    const int down = shown_rows_ - 1 - shown_cursor_row_;
    WriteTerminal((down > 0 ? fmt::format("\033[{}B", down) : std::string()) + "\r\n");
    return outcome;
  };
  if (pending_.empty()) Refresh();
  for (;;) {
    // A chunk of input (a paste) is taken in as a whole before the screen is drawn again.
    for (size_t i = 0; i < pending_.size(); ++i) {
      const EditState::Event event = state_.Feed(pending_[i]);
      if (event == EditState::Event::kNone) continue;
      pending_.erase(0, i + 1);
      i = static_cast<size_t>(-1);
      if (event == EditState::Event::kClearScreen) {
        WriteTerminal("\033[H\033[2J");
        shown_rows_ = shown_cursor_row_ = 0;
        continue;
      }
      Refresh();
      line = state_.text();
      if (event == EditState::Event::kSubmit) {
        state_.AddHistory(line);
        return leave(Outcome::kLine);
      }
      return leave(event == EditState::Event::kInterrupt ? Outcome::kInterrupt : Outcome::kEndOfInput);
    }
    pending_.clear();
    Refresh();
    char buffer[4096];
    const ssize_t n = ::read(STDIN_FILENO, buffer, sizeof(buffer));
    if (n < 0 && errno == EINTR) continue;  // the window changed its size
    if (n <= 0) return leave(Outcome::kEndOfInput);
    pending_.assign(buffer, static_cast<size_t>(n));
    const size_t num_cooked = std::min(num_typed_ahead, pending_.size());
    std::replace(pending_.begin(), pending_.begin() + static_cast<ptrdiff_t>(num_cooked), '\n', '\r');
    num_typed_ahead -= num_cooked;
  }
}

}  // namespace deepinfer::cli
