// SPDX-License-Identifier: Apache-2.0
//
// An HTTP/1.1 connection: requests one after another (pipelined ones wait), responses whole or in chunks, time limits, and the
// rules about clients that go away (operations.md 1.4 of the specification). Lives on one I/O thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "server/exchange.h"
#include "server/http_parser.h"
#include "server/io_thread.h"
#include "server/socket.h"

namespace deepinfer::server {

struct ConnectionLimits {
  HttpLimits http;
  int64_t request_ns = 30'000'000'000;   // from a request's first byte to its last
  int64_t idle_ns = 300'000'000'000;     // between requests
  int64_t write_ns = 120'000'000'000;    // for a quarter of a MiB to leave
  int64_t linger_ns = 10'000'000'000;    // for the peer to close after we have
  int64_t max_all_body_bytes = int64_t{2} << 30;  // of all requests together; more get 503
};

class Connection : public SocketUser, public IoTicked, public std::enable_shared_from_this<Connection> {
 public:
  // `all_body_bytes`: of all connections; it and the others outlive the connection.
  Connection(std::shared_ptr<Socket> socket, IoThread& io, RequestHandler& handler, const ConnectionLimits& limits,
             std::atomic<int64_t>& all_body_bytes);
  ~Connection() override;

  void Start();
  // Closes now, or after the response that is under way.
  void CloseNow();
  void CloseWhenIdle();
  // Called once, when it has closed.
  void SetOnClosed(std::function<void(Connection*)> fn) { on_closed_ = std::move(fn); }

  void OnRead(SocketEvent event, std::string_view data) override;
  void OnWritten(bool ok) override;
  void OnTick(int64_t now_ns) override;

 private:
  friend class Exchange;
  enum class State { kOpening, kIdle, kReading, kResponding, kLingering, kClosed };

  void Process(std::string_view data);
  size_t FeedParser(std::string_view data);
  void MakeExchange();
  // False: the bodies of all requests together are too large.
  bool CountBody();
  void ForgetBody();
  void Refuse(int status, const std::string& message);
  void WantRead();
  void Flush();
  void Wrote(size_t size);
  void AppendHead(Exchange& exchange, int status, std::string_view content_type, const HttpHeaders& headers, int64_t content_length);
  void EndExchange(Exchange& exchange);
  void Gone(std::string_view reason);
  void Linger();
  void Shut();

  std::shared_ptr<Socket> socket_;
  IoThread& io_;
  RequestHandler& handler_;
  const ConnectionLimits& limits_;
  std::atomic<int64_t>& all_body_bytes_;
  std::function<void(Connection*)> on_closed_;

  State state_ = State::kOpening;
  std::string in_;  // bytes not taken by the parser yet
  std::optional<HttpParser> parser_;
  std::shared_ptr<Exchange> exchange_;
  std::string out_, writing_;  // waiting; being written
  size_t num_written_ = 0;     // of writing_
  int64_t since_ns_ = 0;       // of the state
  int64_t write_since_ns_ = 0;
  int64_t body_bytes_ = 0;
  int64_t counted_bytes_ = 0;  // in all_body_bytes_
  bool is_reading_ = false, is_watching_ = false, is_write_open_ = false;
  bool is_processing_ = false;
  bool keep_alive_ = true;
  bool is_half_closed_ = false;
  bool is_shut_ = false;     // our sending side
  bool is_closing_ = false;  // no further request is taken
};

}  // namespace deepinfer::server
