// SPDX-License-Identifier: Apache-2.0
//
// An HTTP client for loads: any number of connections on one thread, kept open between requests, streams timed as their
// bytes arrive. Everything but Stop and the times of Outcome belongs to the thread of Run. Boost.Asio stands behind it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "cli/commands/bench_serve_response.h"
#include "core/status.h"

namespace deepinfer::cli {

// "http://host:port/prefix".
struct ServerAddress {
  std::string host;
  int port = 80;
  std::string prefix;  // of every path; without a slash at its end
};
Result<ServerAddress> ParseServerUrl(const std::string& url);

struct LoadRequest {
  std::shared_ptr<const std::string> bytes;  // head and body
  LoadApi api = LoadApi::kChat;
  int64_t leave_after = -1;  // close the connection after so many events; -1: read to the end
};

struct LoadOutcome {
  int status = 0;            // 0: no response
  bool is_complete = false;  // the whole response, and of a stream its finish reason and its end
  bool has_left = false;     // as the request wanted
  std::string error;         // what went wrong; of a response that is no stream, its body
  std::string body;          // of a response that is no stream
  int64_t begin_ns = 0, first_ns = 0, last_ns = 0, end_ns = 0;  // first and last event
  int64_t num_events = 0;
  bool has_usage = false;
  int64_t prompt_tokens = 0, cached_tokens = 0, output_tokens = 0;

  bool is_ok() const { return status >= 200 && status < 300 && is_complete && error.empty(); }
};

class LoadClient {
 public:
  using Done = std::function<void(LoadOutcome&&)>;

  static Result<std::unique_ptr<LoadClient>> Make(const ServerAddress& address);
  virtual ~LoadClient() = default;

  // On a connection that is kept, else on a new one.
  virtual void Send(LoadRequest request, Done done) = 0;
  // Opens a connection that stays idle; false: it could not.
  virtual void OpenIdle(std::function<void(bool is_open)> done) = 0;
  // Sends on idle connection i, which stays idle afterwards.
  virtual void SendOnIdle(size_t i, LoadRequest request, Done done) = 0;
  virtual size_t num_idle() const = 0;  // that the server has not closed
  // At that time of the steady clock.
  virtual void At(int64_t time_ns, std::function<void()> fn) = 0;

  // Until Stop. What is under way then stays as it is until the next Run, or CutOff closes it without a call.
  virtual void Run() = 0;
  virtual void Stop() = 0;
  virtual void CutOff() = 0;

  // Milliseconds between two arrivals of events in one stream, in the order of arrival.
  std::vector<float> gaps_ms;
  int64_t num_connected = 0, num_under_way = 0, max_under_way = 0;
};

}  // namespace deepinfer::cli
