// SPDX-License-Identifier: Apache-2.0
//
// A connected stream, plain TCP or TLS, as its connection sees it: one read and one write at a time, answers on the I/O
// thread. Boost.Asio stands behind it.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include "core/status.h"

namespace deepinfer::server {

enum class SocketEvent {
  kData,
  kEnd,    // the peer's sending side is shut, the socket may still take what we send
  kReset,  // the connection is gone
};

class SocketUser {
 public:
  virtual ~SocketUser() = default;
  virtual void OnRead(SocketEvent event, std::string_view data) = 0;
  virtual void OnWritten(bool ok) = 0;
};

class Socket {
 public:
  virtual ~Socket() = default;
  // TLS: the handshake, then as for a plain socket. Its end is told like that of a read: kData without data, or kReset.
  virtual void Open(std::shared_ptr<SocketUser> user) = 0;
  virtual void Read(std::shared_ptr<SocketUser> user) = 0;
  // After kEnd: tells when the connection is reset, nothing else.
  virtual void WatchReset(std::shared_ptr<SocketUser> user) = 0;
  // Sends at once what the system takes, without an answer: the number of bytes. The rest, and errors, are for Write.
  virtual size_t TryWrite(std::string_view data) = 0;
  // `data` stays valid until OnWritten.
  virtual void Write(std::shared_ptr<SocketUser> user, std::string_view data) = 0;
  // No more data from us; the peer may still send.
  virtual void ShutDownSending() = 0;
  virtual void Close() = 0;
  virtual std::string PeerAddress() const = 0;
  virtual bool is_tls() const = 0;
};

// Certificates of a TLS listener; shared by its connections.
class TlsContext {
 public:
  // PEM files. Errors name them.
  static Result<std::shared_ptr<TlsContext>> Load(const std::string& cert_file, const std::string& key_file);
  virtual ~TlsContext() = default;
  virtual void* native() = 0;
};

}  // namespace deepinfer::server
