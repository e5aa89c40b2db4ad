// SPDX-License-Identifier: Apache-2.0
#include "cli/commands/bench_serve_client.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <unordered_set>

#include <boost/asio/buffer.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/write.hpp>
#include <fmt/format.h>

#include "core/clock.h"

namespace deepinfer::cli {

namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

constexpr size_t kReadBytes = 16 << 10;
constexpr size_t kWriteBytes = 256 << 10;

int64_t Now() { return Clock::Steady().NowNs(); }

class ClientImpl;

// One connection and the request on it.
class ClientConnection : public std::enable_shared_from_this<ClientConnection> {
 public:
  ClientConnection(ClientImpl& owner, asio::io_context& context);
  ~ClientConnection();

  void Connect(const tcp::endpoint& endpoint, std::function<void(const error_code&)> done) {
    socket_.async_connect(endpoint, [self = shared_from_this(), done = std::move(done)](const error_code& ec) {
      error_code ignored;
      if (!ec) self->socket_.set_option(tcp::no_delay(true), ignored);
      if (!ec) self->socket_.non_blocking(true, ignored);
      done(ec);
    });
  }
  void Start(LoadRequest request, int64_t begin_ns, LoadClient::Done done);
  void Close() {
    error_code ignored;
    socket_.close(ignored);
    is_open_ = false;
  }
  // Without a call.
  void CutOff() {
    if (!is_busy_) return;
    is_busy_ = false;
    Close();
  }
  bool is_open() const { return is_open_; }

 private:
  void Write(size_t from);
  void Read();
  void OnRead(const error_code& ec, size_t size);
  void OnBody();
  void Finish(bool can_stay);

  ClientImpl& owner_;
  tcp::socket socket_;
  std::unique_ptr<char[]> buffer_;  // while a request runs
  LoadRequest request_;
  LoadClient::Done done_;
  LoadOutcome outcome_;
  ResponseReader reader_;
  EventCounter events_;
  bool is_open_ = true, is_busy_ = false;
};

class ClientImpl : public LoadClient {
 public:
  explicit ClientImpl(tcp::endpoint endpoint) : endpoint_(std::move(endpoint)) {}

  void Send(LoadRequest request, Done done) override {
    max_under_way = std::max(max_under_way, ++num_under_way);
    const int64_t begin_ns = Now();
    while (!kept_.empty()) {
      const std::shared_ptr<ClientConnection> connection = std::move(kept_.back());
      kept_.pop_back();
      if (!connection->is_open()) continue;
      return connection->Start(std::move(request), begin_ns, Keeping(connection, std::move(done)));
    }
    auto connection = std::make_shared<ClientConnection>(*this, context_);
    connection->Connect(endpoint_, [this, connection, begin_ns, request = std::move(request), done = std::move(done)](const error_code& ec) mutable {
      Done keeping = Keeping(connection, std::move(done));
      if (!ec) {
        ++num_connected;
        return connection->Start(std::move(request), begin_ns, std::move(keeping));
      }
      connection->Close();
      LoadOutcome outcome;
      outcome.begin_ns = begin_ns;
      outcome.end_ns = Now();
      outcome.error = "cannot connect: " + ec.message();
      keeping(std::move(outcome));
    });
  }

  void OpenIdle(std::function<void(bool)> done) override {
    auto connection = std::make_shared<ClientConnection>(*this, context_);
    connection->Connect(endpoint_, [this, connection, done = std::move(done)](const error_code& ec) {
      if (!ec) idle_.push_back(connection);
      done(!ec);
    });
  }
  void SendOnIdle(size_t i, LoadRequest request, Done done) override {
    idle_[i]->Start(std::move(request), Now(), std::move(done));
  }
  size_t num_idle() const override {
    return static_cast<size_t>(std::count_if(idle_.begin(), idle_.end(), [](const auto& connection) { return connection->is_open(); }));
  }

  void At(int64_t time_ns, std::function<void()> fn) override {
    auto timer = std::make_shared<asio::steady_timer>(context_);
    timer->expires_after(std::chrono::nanoseconds(std::max<int64_t>(0, time_ns - Now())));
    timer->async_wait([timer, fn = std::move(fn)](const error_code& ec) {
      if (!ec) fn();
    });
  }

  void Run() override {
    context_.restart();
    const auto guard = asio::make_work_guard(context_);
    context_.run();
  }
  void Stop() override { context_.stop(); }
  void CutOff() override {
    for (ClientConnection* const connection : connections) connection->CutOff();
  }

  // Back among the kept ones when the request has ended and the connection can take another.
  Done Keeping(const std::shared_ptr<ClientConnection>& connection, Done done) {
    return [this, connection, done = std::move(done)](LoadOutcome&& outcome) {
      --num_under_way;
      if (connection->is_open()) kept_.push_back(connection);
      done(std::move(outcome));
    };
  }

  std::unordered_set<ClientConnection*> connections;  // all there are

 private:
  const tcp::endpoint endpoint_;
  asio::io_context context_{1};  // outlives the sockets
  std::vector<std::shared_ptr<ClientConnection>> kept_, idle_;
};

ClientConnection::ClientConnection(ClientImpl& owner, asio::io_context& context) : owner_(owner), socket_(context) { owner_.connections.insert(this); }
ClientConnection::~ClientConnection() { owner_.connections.erase(this); }

void ClientConnection::Start(LoadRequest request, int64_t begin_ns, LoadClient::Done done) {
  request_ = std::move(request);
  done_ = std::move(done);
  outcome_ = {};
  outcome_.begin_ns = begin_ns;
  reader_ = {};
  events_ = EventCounter(request_.api);
  buffer_.reset(new char[kReadBytes]);
  is_busy_ = true;
  Write(0);
  if (request_.leave_after == 0) {
    outcome_.has_left = true;
    return Finish(false);
  }
  Read();
}

// In parts: one call with a large body would keep the thread from its streams.
void ClientConnection::Write(size_t from) {
  const size_t size = std::min(kWriteBytes, request_.bytes->size() - from);
  asio::async_write(socket_, asio::buffer(request_.bytes->data() + from, size),
                    [self = shared_from_this(), bytes = request_.bytes, from](const error_code& ec, size_t written) {
                      // A refusal may come before the whole body is sent: reading tells how it ends.
                      if (ec || !self->is_busy_ || self->request_.bytes != bytes) return;
                      if (from + written < bytes->size()) self->Write(from + written);
                    });
}

void ClientConnection::Read() {
  socket_.async_read_some(asio::buffer(buffer_.get(), kReadBytes), [self = shared_from_this()](const error_code& ec, size_t size) {
    if (self->is_busy_) self->OnRead(ec, size);
  });
}

void ClientConnection::OnRead(const error_code& ec, size_t size) {
  if (ec) reader_.End();
  else reader_.Feed({buffer_.get(), size});
  outcome_.status = reader_.status();
  if (reader_.has_head() && reader_.is_event_stream()) OnBody();
  if (outcome_.has_left) return Finish(false);
  if (!reader_.is_done() && !reader_.has_failed()) return Read();
  if (reader_.has_failed()) {
    outcome_.error = ec ? fmt::format("the connection was lost {}: {}", outcome_.num_events > 0 ? "in the middle of a stream" : "before the answer", ec.message())
                        : "the response is not valid HTTP";
  } else if (reader_.is_event_stream()) {
    outcome_.is_complete = events_.is_complete();
    outcome_.error = events_.error();
    if (!outcome_.is_complete && outcome_.error.empty()) outcome_.error = "the stream ended without a finish reason or the mark of its end";
  } else {
    outcome_.is_complete = true;
    outcome_.body = std::move(reader_.body());
    if (outcome_.status >= 300) outcome_.error = outcome_.body.substr(0, 300);
  }
  Finish(reader_.is_done() && reader_.keep_alive() && !ec);
}

void ClientConnection::OnBody() {
  const int64_t count = events_.Take(reader_.body());
  if (count == 0) return;
  const int64_t now_ns = Now();
  if (outcome_.num_events == 0) outcome_.first_ns = now_ns;
  else owner_.gaps_ms.push_back(static_cast<float>(static_cast<double>(now_ns - outcome_.last_ns) * 1e-6));
  outcome_.last_ns = now_ns;
  outcome_.num_events += count;
  if (request_.leave_after > 0 && outcome_.num_events >= request_.leave_after && !events_.is_complete()) outcome_.has_left = true;
}

void ClientConnection::Finish(bool can_stay) {
  is_busy_ = false;
  buffer_.reset();
  if (!can_stay) Close();
  outcome_.end_ns = Now();
  outcome_.has_usage = events_.has_usage();
  outcome_.prompt_tokens = events_.prompt_tokens();
  outcome_.cached_tokens = events_.cached_tokens();
  outcome_.output_tokens = events_.output_tokens();
  const LoadClient::Done done = std::move(done_);
  done_ = nullptr;
  done(std::move(outcome_));
}

}  // namespace

Result<ServerAddress> ParseServerUrl(const std::string& url) {
  const auto fault = [&url](std::string_view what) {
    return InvalidArgument(fmt::format("--url {}: {}; give an address like http://127.0.0.1:8000", url, what), "url");
  };
  constexpr std::string_view kScheme = "http://";
  if (!url.starts_with(kScheme)) return fault("only http:// can be measured");
  ServerAddress address;
  std::string rest = url.substr(kScheme.size());
  const size_t slash = std::min(rest.find('/'), rest.size());
  address.prefix = rest.substr(slash);
  while (!address.prefix.empty() && address.prefix.back() == '/') address.prefix.pop_back();
  // Client libraries take the version as a part of the address.
  if (address.prefix.ends_with("/v1")) address.prefix.resize(address.prefix.size() - 3);
  rest.resize(slash);
  const size_t bracket = rest.find(']');
  const size_t colon = rest.find(':', bracket == std::string::npos ? 0 : bracket);
  if (colon != std::string::npos) {
    const auto [end, error] = std::from_chars(rest.data() + colon + 1, rest.data() + rest.size(), address.port);
    if (error != std::errc() || end != rest.data() + rest.size() || address.port < 1 || address.port > 65535) return fault("the port is not a number");
    rest.resize(colon);
  }
  if (rest.size() > 2 && rest.front() == '[' && rest.back() == ']') rest = rest.substr(1, rest.size() - 2);
  if (rest.empty()) return fault("the host is missing");
  address.host = rest;
  return address;
}

Result<std::unique_ptr<LoadClient>> LoadClient::Make(const ServerAddress& address) {
  asio::io_context context;
  tcp::resolver resolver(context);
  error_code ec;
  const auto found = resolver.resolve(address.host, std::to_string(address.port), ec);
  if (ec || found.begin() == found.end()) return Unavailable(fmt::format("--url: cannot find the host {}: {}", address.host, ec.message()));
  // The first that answers: "localhost" may be ::1, where nobody listens.
  for (const auto& one : found) {
    tcp::socket probe(context);
    probe.connect(one.endpoint(), ec);
    if (!ec) return std::unique_ptr<LoadClient>(std::make_unique<ClientImpl>(one.endpoint()));
  }
  return Unavailable(fmt::format("nothing answers at {}:{} ({}); start a server, `deepinfer serve`, or give its --url", address.host, address.port, ec.message()));
}

}  // namespace deepinfer::cli
