// SPDX-License-Identifier: Apache-2.0
//
// Tells the service manager how the server is: datagrams to $NOTIFY_SOCKET, as systemd expects them of Type=notify.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "core/config_env.h"

namespace deepinfer::server {

class ServiceNotifier {
 public:
  // Without $NOTIFY_SOCKET everything is a no-op.
  explicit ServiceNotifier(const Environment& environment);
  ~ServiceNotifier();
  ServiceNotifier(const ServiceNotifier&) = delete;
  ServiceNotifier& operator=(const ServiceNotifier&) = delete;

  // "READY=1", "STOPPING=1", "WATCHDOG=1".
  void Send(std::string_view state) const;
  // Half of the time after which the manager ends a silent process ($WATCHDOG_USEC); 0 = it does not watch.
  int64_t watchdog_ns() const { return watchdog_ns_; }

 private:
  int fd_ = -1;
  std::string path_;
  int64_t watchdog_ns_ = 0;
};

}  // namespace deepinfer::server
