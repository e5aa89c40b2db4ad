// SPDX-License-Identifier: Apache-2.0
#include "core/terminal.h"

#include <mutex>
#include <string>
#include <sys/ioctl.h>
#include <unistd.h>

namespace deepinfer {

namespace {

std::mutex g_mutex;
bool g_is_shown = false;  // guarded by g_mutex

void WriteToStderr(std::string_view text) {
  // Progress that cannot be shown is not worth an error.
  while (!text.empty()) {
    const ssize_t n = ::write(STDERR_FILENO, text.data(), text.size());
    if (n <= 0) return;
    text.remove_prefix(static_cast<size_t>(n));
  }
}

}  // namespace

bool StderrIsTerminal() {
  static const bool is_terminal = ::isatty(STDERR_FILENO) == 1;
  return is_terminal;
}

int TerminalColumns(int fd) {
  winsize size{};
  if (::ioctl(fd, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return 80;
  return size.ws_col;
}

void ShowStatusLine(std::string_view text) {
  if (!StderrIsTerminal()) return;
  const std::lock_guard<std::mutex> lock(g_mutex);
  std::string line(1, '\r');
  line.append(text).append("\033[K");
  WriteToStderr(line);
  g_is_shown = true;
}

void EndStatusLine() {
  const std::lock_guard<std::mutex> lock(g_mutex);
  if (!g_is_shown) return;
  WriteToStderr("\r\033[K");
  g_is_shown = false;
}

}  // namespace deepinfer
