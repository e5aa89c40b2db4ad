// SPDX-License-Identifier: Apache-2.0
#include "engine/step_profiler.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <filesystem>
#include <utility>

#include <fmt/chrono.h>
#include <fmt/format.h>

#include "core/ascii.h"
#include "core/escape.h"
#include "core/file.h"
#include "core/json.h"
#include "engine/step_trace.h"

namespace deepinfer::engine {
namespace {

constexpr int kMaxSteps = 50;
constexpr int64_t kQueuedNs = 30'000'000'000, kRecordingNs = 600'000'000'000;
// A waiting request looks at the clock at least that often.
constexpr int64_t kLongestWaitNs = 1'000'000'000;

ProfileResponse Error(int status, const std::string& message) {
  return {status, DumpJson({{"status", "error"}, {"message", message}})};
}

// One name or value of a query: + is a blank, %XX a byte.
Result<std::string> DecodeQuery(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      out += text[i] == '+' ? ' ' : text[i];
      continue;
    }
    const int high = i + 2 < text.size() ? HexDigit(text[i + 1]) : -1, low = i + 2 < text.size() ? HexDigit(text[i + 2]) : -1;
    if (high < 0 || low < 0) return InvalidArgument("the query has a % that is not followed by two hexadecimal digits");
    out += static_cast<char>(high * 16 + low);
    i += 2;
  }
  return out;
}

Status SetNumSteps(int64_t value, ProfileRequest& request) {
  if (value < 1 || value > kMaxSteps)
    return InvalidArgument(fmt::format("num_steps is {} but must be from 1 to {}", value, kMaxSteps), "num_steps");
  request.num_steps = static_cast<int>(value);
  return Status::Ok();
}

Status UnknownName(std::string_view name) {
  return InvalidArgument(fmt::format("unknown parameter \"{}\"; known are output_dir and num_steps", Escape(name, 64)));
}

Status ReadQuery(std::string_view query, ProfileRequest& request) {
  bool has_dir = false, has_steps = false;
  while (!query.empty()) {
    const size_t end = std::min(query.find('&'), query.size());
    const std::string_view part = query.substr(0, end);
    query.remove_prefix(std::min(end + 1, query.size()));
    if (part.empty()) continue;
    const size_t equals = std::min(part.find('='), part.size());
    DI_ASSIGN_OR_RETURN(const std::string name, DecodeQuery(part.substr(0, equals)));
    DI_ASSIGN_OR_RETURN(std::string value, DecodeQuery(part.substr(std::min(equals + 1, part.size()))));
    bool& has = name == "output_dir" ? has_dir : has_steps;
    if (name != "output_dir" && name != "num_steps") return UnknownName(name);
    if (std::exchange(has, true)) return InvalidArgument(fmt::format("{} is given twice", name), name);
    if (name == "output_dir") {
      request.output_dir = std::move(value);
      continue;
    }
    int64_t number = 0;
    const auto [rest, error] = std::from_chars(value.data(), value.data() + value.size(), number);
    if (error != std::errc() || rest != value.data() + value.size())
      return InvalidArgument(fmt::format("num_steps is \"{}\" but must be a whole number", Escape(value, 64)), "num_steps");
    DI_RETURN_IF_ERROR(SetNumSteps(number, request));
  }
  return Status::Ok();
}

Status ReadBody(std::string_view body, ProfileRequest& request) {
  if (body.empty()) return Status::Ok();
  const Result<Json> json = ParseJson(body);
  if (!json.ok()) return json.status().WithContext("the body");
  if (!json->is_object()) return InvalidArgument("the body must be a JSON object");
  for (const auto& [name, value] : json->items()) {
    if (name == "output_dir") {
      if (!value.is_string()) return InvalidArgument("output_dir must be a string", "output_dir");
      request.output_dir = value.get<std::string>();
    } else if (name == "num_steps") {
      if (!value.is_number_integer()) return InvalidArgument("num_steps must be a whole number", "num_steps");
      const bool is_huge = value.is_number_unsigned() && value.get<uint64_t>() > uint64_t{kMaxSteps};
      DI_RETURN_IF_ERROR(SetNumSteps(is_huge ? std::max<int64_t>(value.get<int64_t>(), kMaxSteps + 1) : value.get<int64_t>(), request));
    } else {
      return UnknownName(name);
    }
  }
  return Status::Ok();
}

int64_t UnixMs() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::system_clock::now().time_since_epoch()).count();
}

}  // namespace

Result<ProfileRequest> ParseProfileRequest(std::string_view query, std::string_view body, const std::string& default_dir) {
  ProfileRequest request;
  request.output_dir = default_dir;
  DI_RETURN_IF_ERROR(ReadQuery(query, request));
  DI_RETURN_IF_ERROR(ReadBody(body, request));
  std::error_code error;
  const bool is_whole = request.output_dir.find('\0') == std::string::npos;
  if (!is_whole || !std::filesystem::is_directory(request.output_dir, error))
    return InvalidArgument(fmt::format("output_dir \"{}\" is no directory; create it first", Escape(request.output_dir, 200)), "output_dir");
  return request;
}

StepProfiler::StepProfiler(StepProfilerOptions options) : options_([&] {
  if (options.default_dir.empty()) {
    std::error_code error;
    options.default_dir = std::filesystem::temp_directory_path(error).string();
  }
  if (!options.unix_ms) options.unix_ms = UnixMs;
  if (!options.write) options.write = WriteFileAtomically;
  return std::move(options);
}()) {}

std::optional<ProfileResponse> StepProfiler::Begin(std::string_view query, std::string_view body) {
  const Result<ProfileRequest> request = ParseProfileRequest(query, body, options_.default_dir);
  if (!request.ok()) return Error(400, request.status().message());
  std::lock_guard lock(mutex_);
  if (state_ != State::kIdle) return Error(409, "another profile is queued or running; try again when it has ended");
  request_ = *request;
  steps_.clear();
  steps_.reserve(static_cast<size_t>(request_.num_steps));
  since_ns_ = options_.clock->NowNs();
  state_ = State::kQueued;
  is_listening_ = true;
  return std::nullopt;
}

void StepProfiler::OnStep(const StepTiming& timing) {
  if (!is_listening_.load(std::memory_order_relaxed)) return;
  std::lock_guard lock(mutex_);
  // A step that was under way when the request came is not part of it.
  if (state_ == State::kQueued && timing.schedule_begin_ns >= since_ns_) {
    state_ = State::kRecording;
    since_ns_ = options_.clock->NowNs();
  }
  if (state_ != State::kRecording) return;
  steps_.push_back(timing);
  if (steps_.size() < static_cast<size_t>(request_.num_steps)) return;
  state_ = State::kComplete;
  is_listening_ = false;
  changed_.notify_all();
}

std::optional<ProfileResponse> StepProfiler::Poll() {
  std::unique_lock lock(mutex_);
  const int64_t age_ns = options_.clock->NowNs() - since_ns_;
  std::optional<ProfileResponse> response;
  switch (state_) {
    case State::kIdle: return Error(500, "no profile was asked for");
    case State::kWriting: return std::nullopt;
    case State::kCancelled: response = Error(499, "the profile was cancelled"); break;
    case State::kQueued:
      if (age_ns < kQueuedNs) return std::nullopt;
      response = Error(503, "no step began within 30 s, the profile was cancelled; send requests while profiling");
      break;
    case State::kRecording:
      if (age_ns < kRecordingNs) return std::nullopt;
      response = Error(503, fmt::format("{} of {} steps ended within 600 s, the profile was cancelled; ask for fewer", steps_.size(), request_.num_steps));
      break;
    case State::kComplete: {
      state_ = State::kWriting;
      const ProfileRequest request = request_;
      const std::vector<StepTiming> steps = std::move(steps_);
      lock.unlock();
      response = Write(request, steps);
      lock.lock();
      break;
    }
  }
  state_ = State::kIdle;
  is_listening_ = false;
  return response;
}

void StepProfiler::Cancel() {
  std::lock_guard lock(mutex_);
  if (state_ == State::kIdle || state_ == State::kWriting) return;
  state_ = State::kCancelled;
  is_listening_ = false;
  changed_.notify_all();
}

ProfileResponse StepProfiler::Handle(std::string_view query, std::string_view body) {
  if (std::optional<ProfileResponse> refused = Begin(query, body)) return *refused;
  for (;;) {
    if (std::optional<ProfileResponse> response = Poll()) return *response;
    std::unique_lock lock(mutex_);
    const int64_t limit_ns = state_ == State::kQueued ? kQueuedNs : kRecordingNs;
    const int64_t left_ns = since_ns_ + limit_ns - options_.clock->NowNs();
    changed_.wait_for(lock, std::chrono::nanoseconds(std::clamp<int64_t>(left_ns, 0, kLongestWaitNs)),
                      [&] { return state_ == State::kComplete || state_ == State::kCancelled; });
  }
}

ProfileResponse StepProfiler::Write(const ProfileRequest& request, const std::vector<StepTiming>& steps) const {
  const int64_t ms = options_.unix_ms();
  const std::string name = fmt::format("profile-{}-gpu{}-rank{}-{:%Y%m%d-%H%M%S}-{:03d}.json", options_.address, options_.device_idx,
                                       options_.rank, fmt::gmtime(static_cast<std::time_t>(ms / 1000)), ms % 1000);
  const std::string path = (std::filesystem::path(request.output_dir) / name).string();
  if (const Status status = options_.write(path, ChromeTrace(steps)); !status.ok()) return Error(500, status.message());
  return {200, DumpJson({{"status", "ok"},
                         {"message", fmt::format("recorded {} steps", steps.size())},
                         {"gpu_id", options_.device_idx},
                         {"trace_file", path}})};
}

}  // namespace deepinfer::engine
