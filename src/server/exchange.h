// SPDX-License-Identifier: Apache-2.0
//
// One HTTP request and its response, between a connection and the code that answers. All methods belong to the connection's
// I/O thread; other threads reach it through io(). Once the client is gone every method is a no-op.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "server/http_message.h"
#include "server/io_thread.h"
#include "server/trace_context.h"

namespace deepinfer::server {

class Connection;

// Whoever works on the response for longer than one call.
class ExchangeObserver {
 public:
  virtual ~ExchangeObserver() = default;
  // The client is gone, or too slow; the exchange is over.
  virtual void OnGone() = 0;
  // Everything written so far has left.
  virtual void OnDrained() = 0;
  // The client shut its sending side. Something must be sent now: a closed peer answers it with a reset.
  virtual void OnHalfClosed() = 0;
  virtual void OnTick(int64_t now_ns) = 0;
};

// What the logs say of an exchange. Never text of a prompt or an answer.
struct ExchangeRecord {
  std::string request_id;
  std::string key_id;
  std::string endpoint = "none";
  std::string traffic_class;
  std::string model;
  std::string reason;       // finish reason, client_disconnected, slow_reader, or empty
  std::string error_type;   // of the error body that was sent
  int status = 0;           // 499: the client went before anything was sent
  // Times of the steady clock; 0 = it did not come to that.
  int64_t begin_ns = 0;      // first byte of the request
  int64_t body_ns = 0;       // it was complete
  int64_t submitted_ns = 0;  // converted and handed to the backend
  int64_t scheduled_ns = 0;  // its computation began
  int64_t first_token_ns = 0;
  int64_t end_ns = 0;
  int64_t num_preempted = 0, preempted_ns = 0;  // taken off the device: how often, the newest time
  TraceContext trace;
  int64_t begin_unix_ms = 0;
  int64_t bytes_in = 0, bytes_out = 0;
  int64_t prompt_tokens = 0, cached_tokens = 0, output_tokens = 0;
  int64_t num_used = 0;  // tokens that were computed for it, also when it failed
  int64_t num_charged = 0;  // of them, those that its key was charged with at the start
  bool has_usage = false;
};

class Exchange : public std::enable_shared_from_this<Exchange> {
 public:
  Exchange(Connection* connection, IoThread& io) : connection_(connection), io_(io) {}

  IoThread& io() { return io_; }
  const std::string& peer() const { return peer_; }
  HttpRequest request;
  ExchangeRecord record;
  HttpHeaders extra_headers;  // of every response: request id, CORS
  std::shared_ptr<const void> identity;  // the handler's: who asks

  // A whole response.
  void Respond(const HttpResponse& response);
  // A response in pieces: Begin, then chunks, then Finish.
  void Begin(int status, std::string_view content_type, const HttpHeaders& headers = {});
  // Appends one chunk through a string that is the output buffer itself: `std::string& out = Open(); ...; Close();`
  std::string& Open();
  void Close();
  void Write(std::string_view data) {
    Open().append(data);
    Close();
  }
  void Finish();
  // Ends the response by closing the connection, so that the client sees that it is cut off.
  void Abort(std::string_view reason);

  bool is_over() const { return connection_ == nullptr; }
  bool has_begun() const { return has_begun_; }
  bool is_half_closed() const { return is_half_closed_; }
  size_t num_unsent() const;

  void SetObserver(std::shared_ptr<ExchangeObserver> observer);

 private:
  friend class Connection;
  Connection* connection_;  // null when it is over
  IoThread& io_;
  std::string peer_;
  std::shared_ptr<ExchangeObserver> observer_;
  bool has_begun_ = false;
  bool is_half_closed_ = false;
  bool is_chunked_ = true;
  size_t chunk_begin_ = 0;
  std::string nowhere_;  // what is written after the end
};

// Answers the requests of a listener. Called on I/O threads.
class RequestHandler {
 public:
  virtual ~RequestHandler() = default;
  // When the head has arrived and the body may not have: a refusal that need not wait for it.
  virtual std::optional<HttpResponse> CheckHead(Exchange& exchange, const HttpRequest& head) = 0;
  virtual void OnRequest(std::shared_ptr<Exchange> exchange) = 0;
  // The answer to a request that could not be read: 400, 408, 413, 431.
  virtual HttpResponse MakeError(Exchange& exchange, const HttpRequest* head, int status, const std::string& message) = 0;
  // The exchange is over: logs and counters.
  virtual void OnOver(Exchange& exchange) = 0;
};

}  // namespace deepinfer::server
