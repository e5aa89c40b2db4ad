// SPDX-License-Identifier: Apache-2.0
//
// One temporary line at the bottom of the terminal (a progress bar) that log lines and errors do not tear: they erase it
// before they write. All on stderr; a no-op when stderr is no terminal.
#pragma once

#include <string_view>

namespace deepinfer {

bool StderrIsTerminal();
// Width in columns of the terminal on `fd`; 80 if unknown.
int TerminalColumns(int fd);

// Replaces the status line. Thread-safe. `text` holds no control characters and should fit the width.
void ShowStatusLine(std::string_view text);
// Erases it, if there is one.
void EndStatusLine();

}  // namespace deepinfer
