// SPDX-License-Identifier: Apache-2.0
//
// The I/O threads, the listeners and their connections. Start, Drain and Stop belong to one thread, the owner's.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <unordered_set>
#include <vector>

#include "core/status.h"
#include "server/connection.h"
#include "server/listener.h"

namespace deepinfer::server {

class HttpServer {
 public:
  HttpServer(int num_threads, const ConnectionLimits& limits);
  // Closes everything.
  ~HttpServer();

  // Before Start. `handler` outlives the server.
  Result<std::shared_ptr<Listener>> Listen(const std::string& host, int port, RequestHandler& handler, std::string_view option = "--port");
  void Start();
  // Connections close after the response that is under way; idle ones at once. New ones are still accepted.
  void CloseIdle();
  // Listeners and connections close now; waits for the threads.
  void Stop();

  int64_t num_connections() const { return num_connections_.load(std::memory_order_relaxed); }

 private:
  struct Thread {
    std::unordered_set<std::shared_ptr<Connection>> connections;
  };

  ConnectionLimits limits_;
  std::atomic<int64_t> all_body_bytes_{0};  // outlives the connections that handlers in the threads hold
  std::vector<std::unique_ptr<IoThread>> threads_;
  std::map<IoThread*, Thread> state_;  // each entry is its thread's
  std::vector<std::pair<std::shared_ptr<Listener>, RequestHandler*>> listeners_;
  std::atomic<int64_t> num_connections_{0};
  bool is_started_ = false, is_stopped_ = false;
};

}  // namespace deepinfer::server
