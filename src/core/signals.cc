// SPDX-License-Identifier: Apache-2.0
#include "core/signals.h"

#include <atomic>
#include <csignal>
#include <unistd.h>

namespace deepinfer {

namespace {

std::atomic<int> g_num_scopes{0};
std::atomic<bool> g_interrupted{false};
std::atomic<void (*)(void*)> g_on_interrupt{nullptr};
std::atomic<void*> g_context{nullptr};
std::atomic<int> g_terminal_fd{-1};
termios g_terminal_settings;

static_assert(std::atomic<int>::is_always_lock_free && std::atomic<bool>::is_always_lock_free);

void RestoreTerminal() {
  const int fd = g_terminal_fd.load();
  if (fd < 0) return;
  ::tcsetattr(fd, TCSANOW, &g_terminal_settings);
  constexpr char kPlain[] = "\033[?2004l\033[0m";  // no bracketed paste, no attributes
  if (::write(fd, kPlain, sizeof(kPlain) - 1) < 0) return;
}

void OnInterrupt(int) {
  if (g_num_scopes.load() > 0 && !g_interrupted.exchange(true)) {
    if (auto* call = g_on_interrupt.load()) call(g_context.load());
    return;
  }
  RestoreTerminal();
  ::_exit(130);
}

void OnTerminate(int signal_number) {
  RestoreTerminal();
  ::signal(signal_number, SIG_DFL);
  ::raise(signal_number);
}

// A page of a mapped file could not be read: the file became shorter, or its disk failed.
void OnBusError(int) {
  RestoreTerminal();
  constexpr char kText[] =
      "error: a model file became shorter or unreadable while it was in use; restore it (deepinfer inspect --verify) and start again\n";
  if (::write(STDERR_FILENO, kText, sizeof(kText) - 1) < 0) ::_exit(3);
  ::_exit(3);
}

}  // namespace

void InstallSignalHandlers() {
  struct sigaction action {};
  sigemptyset(&action.sa_mask);
  action.sa_handler = OnInterrupt;  // no SA_RESTART: a blocking read returns so that its owner can poll the flag
  struct sigaction old {};
  // A background job of a shell starts with SIGINT ignored and must stay so.
  ::sigaction(SIGINT, nullptr, &old);
  if (old.sa_handler != SIG_IGN) ::sigaction(SIGINT, &action, nullptr);
  action.sa_handler = OnTerminate;
  ::sigaction(SIGTERM, &action, nullptr);
  ::sigaction(SIGHUP, nullptr, &old);
  if (old.sa_handler != SIG_IGN) ::sigaction(SIGHUP, &action, nullptr);
  ::sigaction(SIGQUIT, &action, nullptr);
  action.sa_handler = OnBusError;
  ::sigaction(SIGBUS, &action, nullptr);
  ::signal(SIGPIPE, SIG_IGN);
  ::signal(SIGXFSZ, SIG_IGN);  // a file size limit becomes a failed write with its own message
}

InterruptScope::InterruptScope(void (*on_interrupt)(void*), void* context) {
  g_context.store(context);
  g_on_interrupt.store(on_interrupt);
  if (g_num_scopes.fetch_add(1) == 0) g_interrupted.store(false);
}

InterruptScope::~InterruptScope() {
  g_num_scopes.fetch_sub(1);
  g_on_interrupt.store(nullptr);
}

bool InterruptScope::requested() const { return g_interrupted.load(); }

void InterruptScope::Reset() { g_interrupted.store(false); }

void SetTerminalToRestore(int fd, const termios& settings) {
  g_terminal_fd.store(-1);
  g_terminal_settings = settings;
  g_terminal_fd.store(fd);
}

void ClearTerminalToRestore() { g_terminal_fd.store(-1); }

}  // namespace deepinfer
