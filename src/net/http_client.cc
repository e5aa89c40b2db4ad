// SPDX-License-Identifier: Apache-2.0
#include "net/http_client.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <limits>
#include <list>
#include <optional>

#include <boost/asio/connect.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/asio/ssl/error.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http.hpp>
#include <boost/beast/version.hpp>
#include <fmt/format.h>
#include <openssl/x509v3.h>

#include "core/ascii.h"
#include "core/base64.h"
#include "core/clock.h"
#include "core/escape.h"

namespace deepinfer::net {

namespace {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using asio::ip::tcp;
using boost::system::error_code;

constexpr size_t kMaxKept = 4;                    // connections to different servers
constexpr size_t kReadBytes = 256 << 10;
constexpr uint32_t kMaxHeaderBytes = 64 << 10;
constexpr std::chrono::milliseconds kLook{100};   // between two looks at is_cancelled

std::string Peer(const Url& url) { return fmt::format("{}:{}", Escape(url.host, 100), url.port); }

bool IsWithout(const std::string& no_proxy, const std::string& host) {
  for (size_t begin = 0; begin <= no_proxy.size();) {
    const size_t end = std::min(no_proxy.find(',', begin), no_proxy.size());
    std::string name = AsciiLower(no_proxy.substr(begin, end - begin));
    std::erase(name, ' ');
    if (name.starts_with('.')) name.erase(0, 1);
    if (name == "*" || (!name.empty() && (host == name || host.ends_with("." + name)))) return true;
    begin = end + 1;
  }
  return false;
}

}  // namespace

HttpClientOptions HttpClientOptions::FromEnvironment(const Environment& environment) {
  const auto either = [&](const char* lower, const char* upper) {
    const auto value = environment.GetNonEmpty(lower);
    return value ? *value : environment.GetNonEmpty(upper).value_or("");
  };
  HttpClientOptions options;
  options.http_proxy = environment.GetNonEmpty("http_proxy").value_or("");
  options.https_proxy = either("https_proxy", "HTTPS_PROXY");
  options.no_proxy = either("no_proxy", "NO_PROXY");
  options.ca_file = environment.GetNonEmpty("SSL_CERT_FILE").value_or("");
  return options;
}

const std::string* HttpAnswer::Find(std::string_view name) const {
  const auto it = std::find_if(headers.begin(), headers.end(), [name](const auto& header) { return header.first == name; });
  return it == headers.end() ? nullptr : &it->second;
}

// One connection, plain or TLS.
class HttpClient::Wire {
 public:
  Wire(asio::io_context& context, asio::ssl::context& tls_context, const Url& url)
      : socket(context), origin(url), tls_context_(tls_context) {}

  template <typename F>
  void With(F&& f) {
    if (tls) f(*tls);
    else f(socket);
  }
  void StartTls() { tls.emplace(socket, tls_context_); }
  void Close() {
    error_code ignored;
    socket.close(ignored);
  }

  tcp::socket socket;
  std::optional<asio::ssl::stream<tcp::socket&>> tls;
  boost::beast::flat_buffer buffer;
  Url origin;
  bool is_used = false;      // has answered before
  bool is_through_proxy = false;  // requests name the whole address

 private:
  asio::ssl::context& tls_context_;
};

struct HttpClient::Impl {
  explicit Impl(HttpClientOptions given) : options(std::move(given)), tls(asio::ssl::context::tls_client) {}

  HttpClientOptions options;
  asio::io_context context{1};
  asio::ssl::context tls;
  bool is_tls_ready = false;
  std::list<std::unique_ptr<Wire>> kept;  // the newest in front
  std::string proxy_authorization;

  // Starts one operation with a handler and waits for its end. `wire` is closed on a time-out.
  template <typename Start>
  Status Wait(Wire& wire, int64_t timeout_ms, std::string_view what, error_code& ec, Start&& start) {
    bool is_done = false;
    const auto handler = [&](const error_code& error, auto&&...) {
      ec = error;
      is_done = true;
    };
    start(handler);
    context.restart();
    const int64_t deadline_ns = Clock::Steady().NowNs() + timeout_ms * 1'000'000;
    while (!is_done) {
      context.run_one_for(kLook);
      if (is_done) break;
      const bool is_cancelled = options.is_cancelled != nullptr && options.is_cancelled->load(std::memory_order_relaxed);
      if (!is_cancelled && Clock::Steady().NowNs() < deadline_ns) continue;
      wire.Close();
      while (!is_done) context.run_one();  // the handler refers to this frame
      if (is_cancelled) return Cancelled("cancelled");
      return Status(StatusCode::kDeadlineExceeded, fmt::format("{} took longer than {} s", what, (timeout_ms + 999) / 1000));
    }
    return Status::Ok();
  }

  Status ReadyTls() {
    if (is_tls_ready) return Status::Ok();
    error_code ec;
    tls.set_options(asio::ssl::context::default_workarounds | asio::ssl::context::no_tlsv1 | asio::ssl::context::no_tlsv1_1, ec);
    if (options.ca_file.empty()) tls.set_default_verify_paths(ec);
    else tls.load_verify_file(options.ca_file, ec);
    if (ec) {
      return Status(StatusCode::kPermissionDenied, options.ca_file.empty()
                                                       ? fmt::format("cannot read the system's certificate authorities: {}", ec.message())
                                                       : fmt::format("cannot read the certificate authorities in {}: {}", Escape(options.ca_file), ec.message()));
    }
    is_tls_ready = true;
    return Status::Ok();
  }

  Status Connect(Wire& wire, const Url& server) {
    const std::string what = "connecting to " + Peer(server);
    const int64_t begin_ns = Clock::Steady().NowNs();
    const auto left_ms = [&] {
      return std::max<int64_t>(options.connect_ms - (Clock::Steady().NowNs() - begin_ns) / 1'000'000, 1);
    };
    tcp::resolver resolver(context);
    tcp::resolver::results_type addresses;
    error_code ec;
    DI_RETURN_IF_ERROR(Wait(wire, left_ms(), what, ec, [&](auto handler) {
      resolver.async_resolve(server.host, std::to_string(server.port), [&addresses, handler](const error_code& error, tcp::resolver::results_type found) {
        addresses = std::move(found);
        handler(error);
      });
    }));
    if (ec) return Unavailable(fmt::format("the name {} is not known: {}", Escape(server.host, 100), ec.message()));
    DI_RETURN_IF_ERROR(Wait(wire, left_ms(), what, ec, [&](auto handler) {
      asio::async_connect(wire.socket, addresses, [handler](const error_code& error, const tcp::endpoint&) { handler(error); });
    }));
    if (ec) return Unavailable(fmt::format("cannot connect to {}: {}", Peer(server), ec.message()));
    error_code ignored;
    wire.socket.set_option(tcp::no_delay(true), ignored);
    return Status::Ok();
  }

  // Asks a proxy to pass bytes on.
  Status Tunnel(Wire& wire, const Url& url) {
    http::request<http::empty_body> request(http::verb::connect, fmt::format("{}:{}", url.host.find(':') == std::string::npos ? url.host : "[" + url.host + "]", url.port), 11);
    request.set(http::field::host, request.target());
    request.set(http::field::user_agent, options.user_agent);
    if (!proxy_authorization.empty()) request.set(http::field::proxy_authorization, proxy_authorization);
    error_code ec;
    DI_RETURN_IF_ERROR(Wait(wire, options.connect_ms, "the proxy", ec, [&](auto handler) { http::async_write(wire.socket, request, handler); }));
    if (ec) return Unavailable(fmt::format("the proxy broke the connection: {}", ec.message()));
    http::response_parser<http::empty_body> parser;
    parser.skip(true);
    DI_RETURN_IF_ERROR(Wait(wire, options.connect_ms, "the proxy", ec, [&](auto handler) { http::async_read_header(wire.socket, wire.buffer, parser, handler); }));
    if (ec) return Unavailable(fmt::format("the proxy broke the connection: {}", ec.message()));
    if (parser.get().result_int() / 100 == 2) return Status::Ok();
    return Unavailable(fmt::format("the proxy refused to connect to {} with status {}", Peer(url), parser.get().result_int()));
  }

  Status ShakeHands(Wire& wire, const Url& url) {
    DI_RETURN_IF_ERROR(ReadyTls());
    wire.StartTls();
    SSL* const ssl = wire.tls->native_handle();
    error_code is_name;
    asio::ip::make_address(url.host, is_name);
    if (is_name) {
      SSL_set_tlsext_host_name(ssl, url.host.c_str());
      SSL_set1_host(ssl, url.host.c_str());
    } else {
      X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(ssl), url.host.c_str());
    }
    wire.tls->set_verify_mode(asio::ssl::verify_peer);
    error_code ec;
    DI_RETURN_IF_ERROR(Wait(wire, options.connect_ms, "connecting to " + Peer(url), ec, [&](auto handler) {
      wire.tls->async_handshake(asio::ssl::stream_base::client, handler);
    }));
    if (!ec) return Status::Ok();
    if (const long fault = SSL_get_verify_result(ssl); fault != X509_V_OK) {
      return Status(StatusCode::kPermissionDenied, fmt::format("the certificate of {} is not valid ({}); if its authority is your own, name its file in SSL_CERT_FILE",
                                                               Peer(url), X509_verify_cert_error_string(fault)));
    }
    return Unavailable(fmt::format("no TLS connection to {}: {}", Peer(url), ec.message()));
  }

  Result<std::unique_ptr<Wire>> Open(const Url& url) {
    auto wire = std::make_unique<Wire>(context, tls, url);
    const std::string& proxy = url.is_https ? options.https_proxy : options.http_proxy;
    if (proxy.empty() || IsWithout(options.no_proxy, url.host)) {
      DI_RETURN_IF_ERROR(Connect(*wire, url));
    } else {
      DI_ASSIGN_OR_RETURN(const Url server, ParseUrl(proxy.find("://") == std::string::npos ? "http://" + proxy : proxy));
      if (server.is_https) return InvalidArgument("the proxy's own address must begin with http://");
      proxy_authorization = server.user_info.empty() ? "" : "Basic " + EncodeBase64(server.user_info);
      DI_RETURN_IF_ERROR(Connect(*wire, server));
      if (url.is_https) DI_RETURN_IF_ERROR(Tunnel(*wire, url));
      else wire->is_through_proxy = true;
    }
    if (url.is_https) DI_RETURN_IF_ERROR(ShakeHands(*wire, url));
    return wire;
  }

  std::unique_ptr<Wire> TakeKept(const Url& url) {
    for (auto it = kept.begin(); it != kept.end(); ++it) {
      if (!(*it)->origin.SameOrigin(url)) continue;
      std::unique_ptr<Wire> wire = std::move(*it);
      kept.erase(it);
      return wire;
    }
    return nullptr;
  }

  // `is_stale`: the server had closed a kept connection, and nothing of the request was answered.
  Result<HttpAnswer> Exchange(Wire& wire, const HttpCall& call, const std::function<Status(const HttpAnswer&)>& on_head,
                              const std::function<Status(std::string_view)>& on_body, bool& is_stale, bool& can_keep) {
    http::request<http::string_body> request;
    request.version(11);
    request.method_string(call.method);
    request.target(wire.is_through_proxy ? call.url.Text() : call.url.target);
    request.set(http::field::host, call.url.HostHeader());
    request.set(http::field::user_agent, options.user_agent);
    request.set(http::field::accept_encoding, "identity");
    if (wire.is_through_proxy && !proxy_authorization.empty()) request.set(http::field::proxy_authorization, proxy_authorization);
    for (const auto& [name, value] : call.headers) request.set(name, value);
    if (!call.body.empty() || call.method == "POST" || call.method == "PUT") {
      request.body() = call.body;
      request.prepare_payload();
    }
    const auto broke = [&](const error_code& ec) {
      return Unavailable(fmt::format("the connection to {} broke: {}", Peer(call.url), ec.message()));
    };
    const std::string slow = "an answer of " + Peer(call.url);
    error_code ec;
    DI_RETURN_IF_ERROR(Wait(wire, options.idle_ms, slow, ec, [&](auto handler) {
      wire.With([&](auto& stream) { http::async_write(stream, request, handler); });
    }));
    if (ec) {
      is_stale = wire.is_used;
      return broke(ec);
    }
    http::response_parser<http::buffer_body> parser;
    parser.header_limit(kMaxHeaderBytes);
    parser.body_limit(std::numeric_limits<uint64_t>::max());  // callers have their own
    if (call.method == "HEAD") parser.skip(true);
    DI_RETURN_IF_ERROR(Wait(wire, options.idle_ms, slow, ec, [&](auto handler) {
      wire.With([&](auto& stream) { http::async_read_header(stream, wire.buffer, parser, handler); });
    }));
    if (ec) {
      is_stale = wire.is_used && !parser.got_some();
      return broke(ec);
    }
    HttpAnswer answer;
    answer.status = static_cast<int>(parser.get().result_int());
    for (const auto& field : parser.get()) answer.headers.emplace_back(AsciiLower(std::string(field.name_string())), std::string(field.value()));
    DI_RETURN_IF_ERROR(on_head(answer));
    std::string piece(kReadBytes, '\0');
    while (!parser.is_done()) {
      parser.get().body().data = piece.data();
      parser.get().body().size = piece.size();
      DI_RETURN_IF_ERROR(Wait(wire, options.idle_ms, slow, ec, [&](auto handler) {
        wire.With([&](auto& stream) { http::async_read_some(stream, wire.buffer, parser, handler); });
      }));
      const size_t size = piece.size() - parser.get().body().size;
      if (size > 0) DI_RETURN_IF_ERROR(on_body(std::string_view(piece).substr(0, size)));
      if (ec && ec != http::error::need_buffer) return broke(ec);
    }
    can_keep = parser.keep_alive();
    return answer;
  }
};

HttpClient::HttpClient(HttpClientOptions options) : impl_(std::make_unique<Impl>(std::move(options))) {}
HttpClient::~HttpClient() { CloseAll(); }

void HttpClient::CloseAll() { impl_->kept.clear(); }

Result<HttpAnswer> HttpClient::Stream(const HttpCall& call, const std::function<Status(const HttpAnswer&)>& on_head,
                                      const std::function<Status(std::string_view)>& on_body) {
  try {
    while (true) {
      std::unique_ptr<Wire> wire = impl_->TakeKept(call.url);
      if (wire == nullptr) {
        DI_ASSIGN_OR_RETURN(wire, impl_->Open(call.url));
      }
      bool is_stale = false, can_keep = false;
      Result<HttpAnswer> answer = impl_->Exchange(*wire, call, on_head, on_body, is_stale, can_keep);
      if (is_stale) continue;  // a new connection is not stale, so this ends
      if (answer.ok() && can_keep) {
        wire->is_used = true;
        impl_->kept.push_front(std::move(wire));
        if (impl_->kept.size() > kMaxKept) impl_->kept.pop_back();
      }
      return answer;
    }
  } catch (const std::exception& e) {  // Beast and Asio throw where memory or descriptors run out
    return Unavailable(fmt::format("the request to {} failed: {}", Peer(call.url), e.what()));
  }
}

Result<HttpAnswer> HttpClient::Send(const HttpCall& call, int64_t max_body_bytes) {
  std::string body;
  Result<HttpAnswer> answer = Stream(
      call, [](const HttpAnswer&) { return Status::Ok(); },
      [&](std::string_view data) {
        if (static_cast<int64_t>(body.size() + data.size()) > max_body_bytes) {
          return Status(StatusCode::kTooLarge, fmt::format("the answer of {} is larger than {} bytes", Peer(call.url), max_body_bytes));
        }
        body += data;
        return Status::Ok();
      });
  if (answer.ok()) (*answer).body = std::move(body);
  return answer;
}

}  // namespace deepinfer::net
