// SPDX-License-Identifier: Apache-2.0
#include "server/listener.h"

#include <sys/resource.h>

#include <chrono>
#include <mutex>

#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <fmt/format.h>

#include "core/log.h"
#include "server/asio_socket.h"

namespace deepinfer::server {

namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

// When no further file can be opened.
constexpr std::chrono::milliseconds kRetry{100};
constexpr int kBacklog = 4096;

asio::io_context& ContextOf(IoThread& thread) { return *static_cast<asio::io_context*>(thread.native()); }

class ListenerImpl : public Listener, public std::enable_shared_from_this<ListenerImpl> {
 public:
  ListenerImpl(std::span<const std::unique_ptr<IoThread>> threads)
      : threads_(threads), acceptor_(ContextOf(*threads[0])), timer_(ContextOf(*threads[0])) {}

  Status Bind(const std::string& host, int port, std::string_view option) {
    error_code ec;
    const std::string name = fmt::format("{}:{}", host, port);
    tcp::resolver resolver(ContextOf(*threads_[0]));
    const auto found = resolver.resolve(host, std::to_string(port), tcp::resolver::passive, ec);
    if (ec || found.begin() == found.end())
      return InvalidArgument(fmt::format("--host {}: {}; give an address of this machine", host, ec ? ec.message() : "no address"), "host");
    const tcp::endpoint endpoint = found.begin()->endpoint();
    acceptor_.open(endpoint.protocol(), ec);
    if (!ec) acceptor_.set_option(tcp::acceptor::reuse_address(true), ec);
    if (!ec) acceptor_.bind(endpoint, ec);
    if (!ec) acceptor_.listen(kBacklog, ec);
    if (ec == asio::error::address_in_use)
      return Unavailable(fmt::format("port {} of {} is in use by another program; stop it or choose another {}", port, host, option));
    if (ec) return Unavailable(fmt::format("cannot listen on {}: {}", name, ec.message()));
    port_ = acceptor_.local_endpoint(ec).port();
    is_loopback_ = endpoint.address().is_loopback();
    return Status::Ok();
  }

  void Start(OnAccept on_accept) override {
    on_accept_ = std::move(on_accept);
    asio::post(acceptor_.get_executor(), [self = shared_from_this()] { self->Accept(); });
  }
  void SetTls(std::shared_ptr<TlsContext> tls) override {
    std::lock_guard lock(mutex_);
    tls_ = std::move(tls);
  }
  void Stop() override {
    asio::post(acceptor_.get_executor(), [self = shared_from_this()] {
      error_code ignored;
      self->acceptor_.close(ignored);
      self->timer_.cancel();
    });
  }
  int port() const override { return port_; }
  bool is_loopback() const override { return is_loopback_; }

 private:
  void Accept() {
    IoThread& thread = *threads_[next_++ % threads_.size()];
    acceptor_.async_accept(ContextOf(thread), [self = shared_from_this(), &thread](const error_code& ec, tcp::socket socket) {
      if (!self->acceptor_.is_open()) return;
      if (ec) {
        // Out of files, or a client that left at once.
        self->timer_.expires_after(kRetry);
        self->timer_.async_wait([self](const error_code& timer_ec) {
          if (!timer_ec && self->acceptor_.is_open()) self->Accept();
        });
        return;
      }
      std::shared_ptr<TlsContext> tls;
      {
        std::lock_guard lock(self->mutex_);
        tls = self->tls_;
      }
      std::shared_ptr<Socket> made = MakeSocket(std::move(socket), thread, std::move(tls));
      thread.Post([self, made = std::move(made), &thread] { self->on_accept_(made, thread); });
      self->Accept();
    });
  }

  std::span<const std::unique_ptr<IoThread>> threads_;
  tcp::acceptor acceptor_;
  asio::steady_timer timer_;
  OnAccept on_accept_;
  size_t next_ = 0;
  int port_ = 0;
  bool is_loopback_ = false;
  std::mutex mutex_;
  std::shared_ptr<TlsContext> tls_;  // GUARDED_BY(mutex_)
};

}  // namespace

Result<std::shared_ptr<Listener>> Listener::Open(const std::string& host, int port, std::span<const std::unique_ptr<IoThread>> threads,
                                                 std::string_view option) {
  auto listener = std::make_shared<ListenerImpl>(threads);
  DI_RETURN_IF_ERROR(listener->Bind(host, port, option));
  return std::shared_ptr<Listener>(std::move(listener));
}

int64_t RaiseOpenFileLimit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return 0;
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
  ::getrlimit(RLIMIT_NOFILE, &limit);
  return static_cast<int64_t>(limit.rlim_cur);
}

}  // namespace deepinfer::server
