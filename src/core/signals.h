// SPDX-License-Identifier: Apache-2.0
//
// Ctrl-C and broken pipes. By default SIGINT ends the process at once with exit code 130; while an InterruptScope lives,
// the first SIGINT only sets a flag that the scope's owner polls, and a second one before Reset() ends the process. One
// scope at a time.
#pragma once

#include <termios.h>

namespace deepinfer {

// Called once at start by the program (never by the library): handles SIGINT, SIGTERM, SIGHUP; ignores SIGPIPE, so that a
// closed pipe is a write error.
void InstallSignalHandlers();

class InterruptScope {
 public:
  // on_interrupt (optional) runs inside the signal handler and may only do what is safe there, such as a lock-free store.
  explicit InterruptScope(void (*on_interrupt)(void*) = nullptr, void* context = nullptr);
  ~InterruptScope();
  InterruptScope(const InterruptScope&) = delete;
  InterruptScope& operator=(const InterruptScope&) = delete;

  bool requested() const;
  void Reset();
};

// Terminal settings that the handlers put back when they end the process. One terminal at a time; fd < 0 = none.
void SetTerminalToRestore(int fd, const termios& settings);
void ClearTerminalToRestore();

}  // namespace deepinfer
