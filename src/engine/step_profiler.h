// SPDX-License-Identifier: Apache-2.0
//
// The profiling endpoint without its socket (engine.md 21 of the specification): one request at a time asks for the timeline
// of the next steps, gets it as a Chrome trace file and is answered with an HTTP status and a JSON body.
//
//   Handle(query, body)  = Begin, then Poll until there is an answer; a server's worker thread calls it
//   OnStep(timing)       = EngineCoreOptions::on_step; the scheduler thread calls it
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/clock.h"
#include "core/status.h"
#include "engine/step_timing.h"

namespace deepinfer::engine {

struct ProfileRequest {
  std::string output_dir;
  int num_steps = 20;  // 1..50
};

// From a raw URL query and a JSON body, either may be empty; where both name a parameter the body wins. Unknown names are
// errors, and so is an output_dir that is no directory.
Result<ProfileRequest> ParseProfileRequest(std::string_view query, std::string_view body, const std::string& default_dir);

struct ProfileResponse {
  int status = 0;    // 200, 400, 409, 499, 500, 503
  std::string body;  // {"status":"ok","message","gpu_id","trace_file"} or {"status":"error","message"}
};

struct StepProfilerOptions {
  std::string default_dir;  // empty: the system's folder for temporary files
  std::string address = "127.0.0.1";  // a part of the file name
  int device_idx = 0, rank = 0;
  const Clock* clock = &Clock::Steady();
  std::function<int64_t()> unix_ms;  // wall clock; null: the machine's
  std::function<Status(const std::string& path, std::string_view bytes)> write;  // null: WriteFileAtomically
};

class StepProfiler {
 public:
  explicit StepProfiler(StepProfilerOptions options);

  // Answers when the file is written or the request has failed.
  ProfileResponse Handle(std::string_view query, std::string_view body);

  // Unset: the request is queued and its owner goes on with Poll. Set: it was refused.
  std::optional<ProfileResponse> Begin(std::string_view query, std::string_view body);
  // Set: the request is over and the next one may begin. Writes the file.
  std::optional<ProfileResponse> Poll();
  // The client is gone: the request ends, its next Poll says so.
  void Cancel();

  // Costs one atomic load while nobody profiles.
  void OnStep(const StepTiming& timing);

 private:
  enum class State { kIdle, kQueued, kRecording, kComplete, kWriting, kCancelled };

  ProfileResponse Write(const ProfileRequest& request, const std::vector<StepTiming>& steps) const;

  const StepProfilerOptions options_;
  std::atomic<bool> is_listening_{false};
  std::mutex mutex_;
  std::condition_variable changed_;
  State state_ = State::kIdle;     // GUARDED_BY(mutex_)
  ProfileRequest request_;         // GUARDED_BY(mutex_)
  std::vector<StepTiming> steps_;  // GUARDED_BY(mutex_)
  int64_t since_ns_ = 0;           // GUARDED_BY(mutex_) queued or recording since then
};

}  // namespace deepinfer::engine
