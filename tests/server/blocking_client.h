// SPDX-License-Identifier: Apache-2.0
//
// A TCP client of 127.0.0.1 that sends bytes and waits for bytes. Reads give up after a minute, so that a server that does not
// answer fails a test and hangs none.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "core/check.h"

namespace deepinfer::testing {

class BlockingClient {
 public:
  // `receive_bytes`: the kernel's buffer for what has not been read; 0 = its default.
  explicit BlockingClient(int port, int receive_bytes = 0) : fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    DI_CHECK(fd_ >= 0);
    const timeval limit{30, 0};
    ::setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
    ::setsockopt(fd_, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
    if (receive_bytes > 0) ::setsockopt(fd_, SOL_SOCKET, SO_RCVBUF, &receive_bytes, sizeof(receive_bytes));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    DI_CHECK(::connect(fd_, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0);
  }
  BlockingClient(const BlockingClient&) = delete;
  BlockingClient& operator=(const BlockingClient&) = delete;
  ~BlockingClient() { Close(); }

  // False: the peer has gone.
  bool Send(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t sent = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent <= 0) return false;
      bytes.remove_prefix(static_cast<size_t>(sent));
    }
    return true;
  }
  void HalfClose() { ::shutdown(fd_, SHUT_WR); }
  // A reset: what is under way is lost.
  void Reset() {
    const linger now{1, 0};
    ::setsockopt(fd_, SOL_SOCKET, SO_LINGER, &now, sizeof(now));
    Close();
  }
  void Close() {
    if (fd_ >= 0) ::close(std::exchange(fd_, -1));
  }

  // What has come until `mark` was seen, with the mark; less when the peer has closed. What comes behind it is kept.
  std::string ReadUntil(std::string_view mark) {
    size_t found = std::string::npos;
    while ((found = pending_.find(mark)) == std::string::npos) {
      if (!Receive()) return std::exchange(pending_, {});
    }
    std::string text = pending_.substr(0, found + mark.size());
    pending_.erase(0, text.size());
    return text;
  }
  // The peer has ended the connection in the regular way.
  bool is_at_end() const { return is_at_end_; }
  std::string ReadAll() {
    while (Receive()) {
    }
    return std::exchange(pending_, {});
  }

 private:
  bool Receive() {
    char buffer[16384];
    const ssize_t size = ::recv(fd_, buffer, sizeof(buffer), 0);
    is_at_end_ = size == 0;
    if (size <= 0) return false;
    pending_.append(buffer, static_cast<size_t>(size));
    return true;
  }

  int fd_;
  bool is_at_end_ = false;
  std::string pending_;
};

}  // namespace deepinfer::testing
