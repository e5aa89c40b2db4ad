// SPDX-License-Identifier: Apache-2.0
//
// A listening TCP address. Accepted sockets go to the I/O threads in turn.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "core/status.h"
#include "server/io_thread.h"
#include "server/socket.h"

namespace deepinfer::server {

class Listener {
 public:
  // Called on the thread the socket belongs to.
  using OnAccept = std::function<void(std::shared_ptr<Socket>, IoThread&)>;

  // Binds and listens; accepts nothing before Start. Errors name the address and, when it is in use, say so. Port 0: a free one.
  // `option`: what chooses the port, for the message.
  static Result<std::shared_ptr<Listener>> Open(const std::string& host, int port, std::span<const std::unique_ptr<IoThread>> threads,
                                                std::string_view option = "--port");
  virtual ~Listener() = default;

  virtual void Start(OnAccept on_accept) = 0;
  // Of connections from now on; null = plain. Any thread.
  virtual void SetTls(std::shared_ptr<TlsContext> tls) = 0;
  // Any thread.
  virtual void Stop() = 0;
  virtual int port() const = 0;
  virtual bool is_loopback() const = 0;
};

// Raises RLIMIT_NOFILE to its hard limit. Returns the limit.
int64_t RaiseOpenFileLimit();

}  // namespace deepinfer::server
