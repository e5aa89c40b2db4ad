// SPDX-License-Identifier: Apache-2.0
#include "server/http_server.h"

#include <future>

namespace deepinfer::server {

namespace {
constexpr int kMaxStopRounds = 100;
}  // namespace

HttpServer::HttpServer(int num_threads, const ConnectionLimits& limits) : limits_(limits) {
  for (int i = 0; i < num_threads; ++i) {
    threads_.push_back(std::make_unique<IoThread>());
    state_[threads_.back().get()];
  }
}

HttpServer::~HttpServer() { Stop(); }

Result<std::shared_ptr<Listener>> HttpServer::Listen(const std::string& host, int port, RequestHandler& handler, std::string_view option) {
  DI_ASSIGN_OR_RETURN(std::shared_ptr<Listener> listener, Listener::Open(host, port, threads_, option));
  listeners_.emplace_back(listener, &handler);
  return listener;
}

void HttpServer::Start() {
  is_started_ = true;
  for (const auto& thread : threads_) thread->Start();
  for (auto& [listener, handler] : listeners_) {
    listener->Start([this, handler = handler](std::shared_ptr<Socket> socket, IoThread& io) {
      auto connection = std::make_shared<Connection>(std::move(socket), io, *handler, limits_, all_body_bytes_);
      Thread& state = state_.at(&io);
      state.connections.insert(connection);
      num_connections_.fetch_add(1, std::memory_order_relaxed);
      connection->SetOnClosed([this, &state](Connection* closed) {
        // The caller holds a reference of its own.
        state.connections.erase(closed->shared_from_this());
        num_connections_.fetch_sub(1, std::memory_order_relaxed);
      });
      connection->Start();
    });
  }
}

void HttpServer::CloseIdle() {
  for (const auto& thread : threads_) {
    Thread* const state = &state_.at(thread.get());
    thread->Post([state] {
      const auto copy = state->connections;
      for (const auto& connection : copy) connection->CloseWhenIdle();
    });
  }
}

void HttpServer::Stop() {
  if (is_stopped_ || !is_started_) return;
  is_stopped_ = true;
  for (auto& [listener, handler] : listeners_) listener->Stop();
  // Twice at least: what the first round has ended may have left work on the threads (a request that was just handed over learns
  // that its client is gone), which has to run before they stop.
  for (int round = 0; round < kMaxStopRounds && (round < 2 || num_connections() > 0); ++round) {
    for (const auto& thread : threads_) {
      Thread* const state = &state_.at(thread.get());
      std::promise<void> done;
      thread->Post([state, &done] {
        const auto copy = state->connections;
        for (const auto& connection : copy) connection->CloseNow();
        done.set_value();
      });
      done.get_future().wait();
    }
  }
  for (const auto& thread : threads_) thread->Stop();
  for (const auto& thread : threads_) thread->Join();
}

}  // namespace deepinfer::server
