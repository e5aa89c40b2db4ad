// SPDX-License-Identifier: Apache-2.0
#include "server/socket.h"

#include <openssl/ssl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include <boost/asio/buffer.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/asio/ssl/error.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <boost/asio/write.hpp>
#include <fmt/format.h>

#include "core/escape.h"
#include "server/asio_socket.h"

namespace deepinfer::server {

namespace {

namespace asio = boost::asio;
using boost::system::error_code;
using asio::ip::tcp;

class TlsContextImpl : public TlsContext {
 public:
  TlsContextImpl() : context(asio::ssl::context::tls_server) {}
  void* native() override { return &context; }
  asio::ssl::context context;
};

// What both kinds do on the TCP socket itself.
template <typename Derived>
class SocketBase : public Socket, public std::enable_shared_from_this<SocketBase<Derived>> {
 public:
  void WatchReset(std::shared_ptr<SocketUser> user) override {
    self().lowest().async_wait(tcp::socket::wait_error, [keep = this->shared_from_this(), user = std::move(user)](const error_code& ec) {
      if (ec != asio::error::operation_aborted) user->OnRead(SocketEvent::kReset, {});
    });
  }
  void Close() override {
    error_code ignored;
    self().lowest().close(ignored);
  }
  std::string PeerAddress() const override { return peer_; }

 protected:
  explicit SocketBase(std::string peer) : peer_(std::move(peer)) {}
  Derived& self() { return static_cast<Derived&>(*this); }

  void Written(const std::shared_ptr<SocketUser>& user, const error_code& ec) { user->OnWritten(!ec); }

 private:
  std::string peer_;
};

class PlainSocket : public SocketBase<PlainSocket> {
 public:
  PlainSocket(tcp::socket socket, IoThread& io, std::string peer) : SocketBase(std::move(peer)), socket_(std::move(socket)), io_(io) {
    error_code ignored;
    socket_.non_blocking(true, ignored);
  }
  tcp::socket& lowest() { return socket_; }
  bool is_tls() const override { return false; }

  void Open(std::shared_ptr<SocketUser> user) override { Read(std::move(user)); }

  // Waits for readiness and reads into the thread's scratch, so that an idle connection holds no buffer.
  void Read(std::shared_ptr<SocketUser> user) override {
    socket_.async_wait(tcp::socket::wait_read, [this, keep = shared_from_this(), user = std::move(user)](error_code ec) mutable {
      if (ec == asio::error::operation_aborted) return;
      if (ec) return user->OnRead(SocketEvent::kReset, {});
      std::vector<char>& scratch = io_.scratch();
      const size_t size = socket_.read_some(asio::buffer(scratch), ec);
      if (ec == asio::error::would_block || ec == asio::error::try_again) return Read(std::move(user));
      if (ec == asio::error::eof) return user->OnRead(SocketEvent::kEnd, {});
      if (ec) return user->OnRead(SocketEvent::kReset, {});
      user->OnRead(SocketEvent::kData, std::string_view(scratch.data(), size));
    });
  }
  size_t TryWrite(std::string_view data) override {
    error_code ec;
    const size_t size = socket_.write_some(asio::buffer(data.data(), data.size()), ec);
    return ec ? 0 : size;
  }
  void Write(std::shared_ptr<SocketUser> user, std::string_view data) override {
    asio::async_write(socket_, asio::buffer(data.data(), data.size()),
                      [this, keep = shared_from_this(), user = std::move(user)](const error_code& ec, size_t) { Written(user, ec); });
  }
  void ShutDownSending() override {
    error_code ignored;
    socket_.shutdown(tcp::socket::shutdown_send, ignored);
  }

 private:
  tcp::socket socket_;
  IoThread& io_;
};

class TlsSocket : public SocketBase<TlsSocket> {
 public:
  TlsSocket(tcp::socket socket, std::shared_ptr<TlsContext> context, std::string peer)
      : SocketBase(std::move(peer)), context_(std::move(context)), stream_(std::move(socket), *static_cast<asio::ssl::context*>(context_->native())) {
    ::SSL_set_mode(stream_.native_handle(), SSL_MODE_RELEASE_BUFFERS);
  }
  tcp::socket& lowest() { return stream_.next_layer(); }
  bool is_tls() const override { return true; }

  void Open(std::shared_ptr<SocketUser> user) override {
    stream_.async_handshake(asio::ssl::stream_base::server, [keep = shared_from_this(), user = std::move(user)](const error_code& ec) {
      if (ec != asio::error::operation_aborted) user->OnRead(ec ? SocketEvent::kReset : SocketEvent::kData, {});
    });
  }
  void Read(std::shared_ptr<SocketUser> user) override {
    stream_.async_read_some(asio::buffer(buffer_), [this, keep = shared_from_this(), user = std::move(user)](const error_code& ec, size_t size) {
      if (ec == asio::error::operation_aborted) return;
      if (ec == asio::error::eof || ec == asio::ssl::error::stream_truncated) return user->OnRead(SocketEvent::kEnd, {});
      if (ec) return user->OnRead(SocketEvent::kReset, {});
      user->OnRead(SocketEvent::kData, std::string_view(buffer_.data(), size));
    });
  }
  size_t TryWrite(std::string_view) override { return 0; }
  void Write(std::shared_ptr<SocketUser> user, std::string_view data) override {
    asio::async_write(stream_, asio::buffer(data.data(), data.size()),
                      [this, keep = shared_from_this(), user = std::move(user)](const error_code& ec, size_t) { Written(user, ec); });
  }
  void ShutDownSending() override {
    stream_.async_shutdown([this, keep = shared_from_this()](const error_code&) {
      error_code ignored;
      lowest().shutdown(tcp::socket::shutdown_send, ignored);
    });
  }

 private:
  std::shared_ptr<TlsContext> context_;
  asio::ssl::stream<tcp::socket> stream_;
  std::array<char, 8 << 10> buffer_;
};

}  // namespace

Result<std::shared_ptr<TlsContext>> TlsContext::Load(const std::string& cert_file, const std::string& key_file) {
  auto tls = std::make_shared<TlsContextImpl>();
  error_code ec;
  tls->context.set_options(asio::ssl::context::default_workarounds | asio::ssl::context::no_sslv2 | asio::ssl::context::no_sslv3 |
                               asio::ssl::context::no_tlsv1 | asio::ssl::context::no_tlsv1_1,
                           ec);
  for (const auto& [option, file] : {std::pair{"--tls-cert", &cert_file}, std::pair{"--tls-key", &key_file}}) {
    if (::access(file->c_str(), R_OK) != 0) return BadModel(fmt::format("{} {}: {}", option, Escape(*file), std::strerror(errno)));
  }
  tls->context.use_certificate_chain_file(cert_file, ec);
  if (ec) return InvalidArgument(fmt::format("--tls-cert {}: {}; give a PEM file with the certificate chain", cert_file, ec.message()), "tls-cert");
  tls->context.use_private_key_file(key_file, asio::ssl::context::pem, ec);
  if (ec) return InvalidArgument(fmt::format("--tls-key {}: {}; give the PEM file of the certificate's key", key_file, ec.message()), "tls-key");
  return std::shared_ptr<TlsContext>(std::move(tls));
}

std::shared_ptr<Socket> MakeSocket(tcp::socket socket, IoThread& io, std::shared_ptr<TlsContext> tls) {
  error_code ec;
  socket.set_option(tcp::no_delay(true), ec);
  const tcp::endpoint peer = socket.remote_endpoint(ec);
  std::string address = ec ? "unknown" : peer.address().to_string();
  if (tls == nullptr) return std::make_shared<PlainSocket>(std::move(socket), io, std::move(address));
  return std::make_shared<TlsSocket>(std::move(socket), std::move(tls), std::move(address));
}

}  // namespace deepinfer::server
