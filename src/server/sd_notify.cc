// SPDX-License-Identifier: Apache-2.0
#include "server/sd_notify.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <charconv>
#include <cstddef>
#include <cstring>

namespace deepinfer::server {

ServiceNotifier::ServiceNotifier(const Environment& environment) {
  const std::string path = environment.Get("NOTIFY_SOCKET").value_or("");
  sockaddr_un address{};
  if (path.empty() || (path[0] != '/' && path[0] != '@') || path.size() >= sizeof(address.sun_path)) return;
  path_ = path;
  if (path_[0] == '@') path_[0] = '\0';  // an abstract name
  fd_ = ::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  const std::string watchdog = environment.Get("WATCHDOG_USEC").value_or("");
  const std::string pid = environment.Get("WATCHDOG_PID").value_or("");
  if (!pid.empty() && pid != std::to_string(::getpid())) return;
  int64_t usec = 0;
  std::from_chars(watchdog.data(), watchdog.data() + watchdog.size(), usec);
  if (usec > 0) watchdog_ns_ = usec * 1000 / 2;
}

ServiceNotifier::~ServiceNotifier() {
  if (fd_ >= 0) ::close(fd_);
}

void ServiceNotifier::Send(std::string_view state) const {
  if (fd_ < 0) return;
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path_.data(), path_.size());
  const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + path_.size());
  // A manager that does not listen is not the server's problem.
  (void)::sendto(fd_, state.data(), state.size(), MSG_NOSIGNAL | MSG_DONTWAIT, reinterpret_cast<const sockaddr*>(&address), size);
}

}  // namespace deepinfer::server
