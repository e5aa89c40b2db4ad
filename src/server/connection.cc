// SPDX-License-Identifier: Apache-2.0
#include "server/connection.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <ctime>
#include <iterator>

#include <fmt/format.h>

#include "core/check.h"
#include "core/clock.h"

namespace deepinfer::server {

namespace {

// Bytes of later requests that are read while one is answered.
constexpr size_t kMaxPipelined = 64 << 10;
// Answers that wait to be sent before a further pipelined request is taken.
constexpr size_t kMaxUnsent = 256 << 10;
constexpr size_t kMaxWrite = 256 << 10;
// Smaller bodies are not counted.
constexpr int64_t kCountedBytes = 256 << 10;
// Buffers of an idle connection are given back above this.
constexpr size_t kKeptBytes = 4 << 10;
// Bytes of a request that the parser has to see together: a line between chunks, or the trailer. The head has its own limit.
constexpr size_t kMaxUnparsed = 64 << 10;
// Size of a chunk in hexadecimal, filled in when it is known.
constexpr std::string_view kChunkHole = "00000000\r\n";

int64_t Now() { return Clock::Steady().NowNs(); }

int64_t UnixMs() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::system_clock::now().time_since_epoch()).count();
}

std::string_view CachedDate() {
  thread_local int64_t second = -1;
  thread_local std::string text;
  const int64_t now = std::time(nullptr);
  if (now != second) {
    second = now;
    text = HttpDate(now);
  }
  return text;
}

void GiveBack(std::string& buffer) {
  if (buffer.empty() && buffer.capacity() > kKeptBytes) std::string().swap(buffer);
}

}  // namespace

// ---- exchange -------------------------------------------------------------------------------------------------------------

size_t Exchange::num_unsent() const {
  return connection_ == nullptr ? 0 : connection_->out_.size() + connection_->writing_.size() - connection_->num_written_;
}

void Exchange::SetObserver(std::shared_ptr<ExchangeObserver> observer) {
  if (is_over()) return observer->OnGone();
  observer_ = std::move(observer);
  if (is_half_closed_) std::shared_ptr<ExchangeObserver>(observer_)->OnHalfClosed();
}

void Exchange::Respond(const HttpResponse& response) {
  if (is_over() || has_begun_) return;
  Connection& connection = *connection_;
  has_begun_ = true;
  record.status = response.status;
  connection.AppendHead(*this, response.status, response.content_type, response.headers, static_cast<int64_t>(response.body.size()));
  if (request.method != "HEAD") connection.out_ += response.body;
  connection.EndExchange(*this);
}

void Exchange::Begin(int status, std::string_view content_type, const HttpHeaders& headers) {
  if (is_over() || has_begun_) return;
  has_begun_ = true;
  is_chunked_ = !request.is_http10;
  record.status = status;
  connection_->AppendHead(*this, status, content_type, headers, -1);
}

std::string& Exchange::Open() {
  if (is_over()) {
    nowhere_.clear();
    return nowhere_;
  }
  if (is_chunked_) connection_->out_ += kChunkHole;
  chunk_begin_ = connection_->out_.size();
  return connection_->out_;
}

void Exchange::Close() {
  if (is_over()) return;
  std::string& out = connection_->out_;
  size_t size = out.size() - chunk_begin_;
  if (is_chunked_ && size == 0) {
    out.resize(out.size() - kChunkHole.size());
  } else if (is_chunked_) {
    for (size_t i = 0; i < 8; ++i, size >>= 4) out[chunk_begin_ - 3 - i] = "0123456789abcdef"[size & 15];
    out += "\r\n";
  }
  connection_->Flush();
}

void Exchange::Finish() {
  if (is_over()) return;
  if (is_chunked_) connection_->out_ += "0\r\n\r\n";
  connection_->EndExchange(*this);
}

void Exchange::Abort(std::string_view reason) {
  if (!is_over()) connection_->Gone(reason);
}

// ---- connection -----------------------------------------------------------------------------------------------------------

Connection::Connection(std::shared_ptr<Socket> socket, IoThread& io, RequestHandler& handler, const ConnectionLimits& limits,
                       std::atomic<int64_t>& all_body_bytes)
    : socket_(std::move(socket)), io_(io), handler_(handler), limits_(limits), all_body_bytes_(all_body_bytes) {}

Connection::~Connection() { ForgetBody(); }

void Connection::Start() {
  io_.AddTicked(this);
  since_ns_ = Now();
  is_reading_ = true;
  socket_->Open(shared_from_this());
}

void Connection::WantRead() {
  if (is_reading_ || is_half_closed_ || state_ == State::kClosed) return;
  if ((state_ == State::kResponding || state_ == State::kIdle) && in_.size() >= kMaxPipelined) {
    if (is_watching_) return;
    is_watching_ = true;
    return socket_->WatchReset(shared_from_this());
  }
  is_reading_ = true;
  socket_->Read(shared_from_this());
}

void Connection::OnRead(SocketEvent event, std::string_view data) {
  const std::shared_ptr<Connection> self = shared_from_this();
  is_reading_ = false;
  if (state_ == State::kClosed) return;
  if (event == SocketEvent::kReset) return Gone("client_disconnected");
  if (event == SocketEvent::kEnd) {
    is_half_closed_ = true;
    if (in_.empty()) keep_alive_ = false;
    if (state_ != State::kResponding) {
      // What it has asked for still goes out.
      if ((state_ == State::kIdle || state_ == State::kLingering) && (is_write_open_ || !out_.empty())) return Linger();
      return Gone("client_disconnected");
    }
    exchange_->is_half_closed_ = true;
    is_watching_ = true;
    socket_->WatchReset(self);
    if (const std::shared_ptr<ExchangeObserver> observer = exchange_->observer_) observer->OnHalfClosed();
    return;
  }
  if (state_ == State::kOpening) {
    state_ = State::kIdle;
    since_ns_ = Now();
  }
  if (state_ == State::kResponding) in_ += data;
  else if (state_ != State::kLingering) Process(data);
  WantRead();
}

// Requests from in_ and `data` behind it, until one is being answered or bytes run out.
void Connection::Process(std::string_view data) {
  if (is_processing_) return;
  is_processing_ = true;
  if (!in_.empty()) {
    in_ += data;
    data = {};
  }
  while (state_ == State::kIdle || state_ == State::kReading) {
    // Blank lines in front of a request are allowed.
    std::string_view bytes = in_.empty() ? data : std::string_view(in_);
    if (state_ == State::kIdle) {
      if (out_.size() + writing_.size() > kMaxUnsent) break;
      const size_t first = std::min(bytes.find_first_not_of("\r\n"), bytes.size());
      bytes.remove_prefix(first);
      if (in_.empty()) data = bytes;
      else in_.erase(0, first), bytes = in_;
      if (bytes.empty()) break;
      parser_.emplace(limits_.http);
      state_ = State::kReading;
      since_ns_ = Now();
      body_bytes_ = 0;
    }
    const size_t used = FeedParser(bytes);
    if (in_.empty()) data.remove_prefix(std::min(used, data.size()));
    else in_.erase(0, used);
    if (state_ == State::kReading) break;  // more is needed
  }
  if (in_.empty()) in_.assign(data);
  else if (!data.empty()) in_ += data;
  GiveBack(in_);
  is_processing_ = false;
  if (state_ == State::kReading && in_.size() > kMaxUnparsed) return Refuse(431, "a chunk's line, or the trailer, of the request is longer than 64 KiB");
  // Nothing more comes from a half-closed client: with its last request answered the connection has done its work.
  if (is_half_closed_ && state_ == State::kIdle && in_.empty()) Linger();
}

// May end in any state; kReading means that more is needed.
size_t Connection::FeedParser(std::string_view data) {
  const bool had_head = parser_->state() != HttpParser::State::kHead;
  const size_t used = parser_->Feed(data);
  body_bytes_ += static_cast<int64_t>(used);
  const HttpParser::State parsed = parser_->state();
  if (parsed == HttpParser::State::kFailed && (had_head || exchange_ == nullptr)) {
    Refuse(parser_->error_status(), parser_->error());
    return used;
  }
  if (!had_head && parsed != HttpParser::State::kHead) {
    MakeExchange();
    keep_alive_ = parser_->head().keep_alive && !is_closing_;
    std::optional<HttpResponse> refusal = handler_.CheckHead(*exchange_, parser_->head());
    if (parsed == HttpParser::State::kFailed && !refusal) {
      Refuse(parser_->error_status(), parser_->error());
      return used;
    }
    if (refusal) {
      // The rest of the body is not read.
      if (parsed != HttpParser::State::kDone) keep_alive_ = false;
      state_ = State::kResponding;
      exchange_->record.bytes_in = body_bytes_;
      exchange_->Respond(*refusal);
      return used;
    }
    if (parsed == HttpParser::State::kBody && parser_->expects_continue()) {
      out_ += "HTTP/1.1 100 Continue\r\n\r\n";
      Flush();
    }
  }
  if (exchange_ != nullptr && !CountBody()) {
    Refuse(503, "the server has no memory for further request bodies; try again later");
    return used;
  }
  if (parsed == HttpParser::State::kDone) {
    exchange_->request = parser_->Take();
    exchange_->record.bytes_in = body_bytes_;
    parser_.reset();
    state_ = State::kResponding;
    since_ns_ = Now();
    handler_.OnRequest(exchange_);
  }
  return used;
}

bool Connection::CountBody() {
  if (body_bytes_ - counted_bytes_ < kCountedBytes) return true;
  const int64_t added = body_bytes_ - counted_bytes_;
  counted_bytes_ = body_bytes_;
  return all_body_bytes_.fetch_add(added) + added <= limits_.max_all_body_bytes;
}

void Connection::ForgetBody() {
  if (counted_bytes_ > 0) all_body_bytes_.fetch_sub(counted_bytes_);
  counted_bytes_ = 0;
}

void Connection::MakeExchange() {
  exchange_ = std::make_shared<Exchange>(this, io_);
  exchange_->peer_ = socket_->PeerAddress();
  exchange_->is_half_closed_ = is_half_closed_;
  exchange_->record.begin_ns = since_ns_;
  exchange_->record.begin_unix_ms = UnixMs();
}

void Connection::Refuse(int status, const std::string& message) {
  const bool has_head = exchange_ != nullptr;
  if (!has_head) MakeExchange();
  keep_alive_ = false;
  state_ = State::kResponding;
  exchange_->record.bytes_in = body_bytes_;
  const HttpResponse response = handler_.MakeError(*exchange_, has_head && parser_ ? &parser_->head() : nullptr, status, message);
  exchange_->Respond(response);
}

void Connection::AppendHead(Exchange& exchange, int status, std::string_view content_type, const HttpHeaders& headers,
                            int64_t content_length) {
  auto out = std::back_inserter(out_);
  fmt::format_to(out, "HTTP/1.1 {} {}\r\nDate: {}\r\n", status, ReasonPhrase(status), CachedDate());
  if (!content_type.empty()) fmt::format_to(out, "Content-Type: {}\r\n", content_type);
  if (content_length < 0 && exchange.request.is_http10) keep_alive_ = false;
  if (content_length >= 0) {
    if (status != 204) fmt::format_to(out, "Content-Length: {}\r\n", content_length);
  } else if (exchange.is_chunked_) {
    out_ += "Transfer-Encoding: chunked\r\n";
  }
  for (const auto& [name, value] : exchange.extra_headers) fmt::format_to(out, "{}: {}\r\n", name, value);
  for (const auto& [name, value] : headers) fmt::format_to(out, "{}: {}\r\n", name, value);
  if (!keep_alive_) out_ += "Connection: close\r\n";
  else if (exchange.request.is_http10) out_ += "Connection: keep-alive\r\n";
  out_ += "\r\n";
}

void Connection::EndExchange(Exchange& exchange) {
  const std::shared_ptr<Connection> self = shared_from_this();
  const std::shared_ptr<Exchange> keep = std::move(exchange_);
  exchange_.reset();
  exchange.connection_ = nullptr;
  exchange.observer_.reset();
  ForgetBody();
  exchange.record.end_ns = Now();
  exchange.record.bytes_out += static_cast<int64_t>(out_.size());
  parser_.reset();
  state_ = State::kIdle;
  since_ns_ = exchange.record.end_ns;
  handler_.OnOver(exchange);
  Flush();
  if (state_ == State::kClosed) return;
  if (!keep_alive_ || (is_half_closed_ && in_.empty() && !is_processing_)) return Linger();
  if (!is_processing_) {
    Process({});
    WantRead();
  }
}

void Connection::Flush() {
  if (is_write_open_ || state_ == State::kClosed) return;
  if (num_written_ == writing_.size()) {
    writing_.clear();
    num_written_ = 0;
    if (out_.empty()) return;
    writing_.swap(out_);
    // The usual case, a few events that the socket takes at once, needs no answer.
    Wrote(socket_->TryWrite(std::string_view(writing_).substr(0, kMaxWrite)));
    if (num_written_ == writing_.size()) {
      if (exchange_ == nullptr) {
        writing_.clear();
        num_written_ = 0;
        GiveBack(writing_);
        GiveBack(out_);
      }
      return;
    }
  }
  is_write_open_ = true;
  write_since_ns_ = Now();
  socket_->Write(shared_from_this(), std::string_view(writing_).substr(num_written_, kMaxWrite));
}

void Connection::Wrote(size_t size) {
  num_written_ += size;
  if (exchange_ != nullptr) exchange_->record.bytes_out += static_cast<int64_t>(size);
}

void Connection::OnWritten(bool ok) {
  const std::shared_ptr<Connection> self = shared_from_this();
  is_write_open_ = false;
  if (state_ == State::kClosed) return;
  if (!ok) return Gone("client_disconnected");
  Wrote(std::min(writing_.size() - num_written_, kMaxWrite));
  Flush();
  if (is_write_open_) return;
  GiveBack(writing_);
  GiveBack(out_);
  if (state_ == State::kLingering) return Linger();
  if (exchange_ != nullptr) {
    if (const std::shared_ptr<ExchangeObserver> observer = exchange_->observer_) observer->OnDrained();
  } else if (state_ == State::kIdle && !in_.empty() && !is_processing_) {
    Process({});
    WantRead();
  }
}

void Connection::OnTick(int64_t now_ns) {
  const std::shared_ptr<Connection> self = shared_from_this();
  if (is_write_open_ && now_ns - write_since_ns_ > limits_.write_ns) return Gone("slow_reader");
  switch (state_) {
    case State::kOpening:
      if (now_ns - since_ns_ > (socket_->is_tls() ? limits_.request_ns : limits_.idle_ns)) Shut();
      return;
    case State::kReading:
      if (now_ns - since_ns_ <= limits_.request_ns) return;
      return Refuse(408, fmt::format("the request was not received within {} s", limits_.request_ns / 1'000'000'000));
    case State::kIdle:
      if (now_ns - since_ns_ > limits_.idle_ns) Shut();
      return;
    case State::kResponding:
      if (const std::shared_ptr<ExchangeObserver> observer = exchange_->observer_) observer->OnTick(now_ns);
      return;
    case State::kLingering:
      if (now_ns - since_ns_ > limits_.linger_ns) Shut();
      return;
    case State::kClosed: return;
  }
}

void Connection::Gone(std::string_view reason) {
  if (const std::shared_ptr<Exchange> exchange = std::move(exchange_)) {
    exchange_.reset();
    const std::shared_ptr<ExchangeObserver> observer = std::move(exchange->observer_);
    exchange->connection_ = nullptr;
    exchange->record.end_ns = Now();
    exchange->record.reason = std::string(reason);
    if (!exchange->has_begun_) exchange->record.status = 499;
    if (observer != nullptr) observer->OnGone();
    handler_.OnOver(*exchange);
  }
  Shut();
}

// Everything is sent, then our side is shut and the peer's rest thrown away: closing at once could reset the connection before
// the peer has read the answer.
void Connection::Linger() {
  if (state_ != State::kLingering) {
    state_ = State::kLingering;
    since_ns_ = Now();
    in_.clear();
  }
  if (is_write_open_) return;
  if (is_half_closed_) return Shut();
  if (!is_shut_) socket_->ShutDownSending();
  is_shut_ = true;
  WantRead();
}

void Connection::Shut() {
  if (state_ == State::kClosed) return;
  const std::shared_ptr<Connection> self = shared_from_this();
  state_ = State::kClosed;
  io_.RemoveTicked(this);
  socket_->Close();
  if (on_closed_) on_closed_(this);
}

void Connection::CloseNow() { Gone("server_stopped"); }

void Connection::CloseWhenIdle() {
  keep_alive_ = false;
  is_closing_ = true;
  if (state_ == State::kOpening || (state_ == State::kIdle && in_.empty() && !is_write_open_)) Shut();
}

}  // namespace deepinfer::server
