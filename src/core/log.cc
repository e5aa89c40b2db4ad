// SPDX-License-Identifier: Apache-2.0
#include "core/log.h"

#include <memory>

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <spdlog/sinks/stdout_color_sinks.h>

#include "core/escape.h"
#include "core/json.h"
#include "core/terminal.h"

namespace deepinfer {

namespace {

struct TimeParts {
  std::tm calendar{};
  int milliseconds = 0;
};

TimeParts Split(std::chrono::system_clock::time_point time, bool utc) {
  TimeParts parts;
  const std::time_t seconds = std::chrono::system_clock::to_time_t(time);
  if (utc) {
    ::gmtime_r(&seconds, &parts.calendar);
  } else {
    ::localtime_r(&seconds, &parts.calendar);
  }
  parts.milliseconds =
      static_cast<int>(std::chrono::duration_cast<std::chrono::milliseconds>(time.time_since_epoch()).count() % 1000);
  return parts;
}

std::string_view LevelName(spdlog::level::level_enum level) {
  if (level == spdlog::level::warn) return "warn";
  if (level == spdlog::level::err) return "error";
  const auto view = spdlog::level::to_string_view(level);
  return {view.data(), view.size()};
}

// One line a record on either format; control characters never reach the terminal or the collector raw.
class LineFormatter : public spdlog::formatter {
 public:
  explicit LineFormatter(LogFormat format) : format_(format) {}

  void format(const spdlog::details::log_msg& record, spdlog::memory_buf_t& out) override {
    EndStatusLine();
    const std::string_view message(record.payload.data(), record.payload.size());
    const TimeParts time = Split(record.time, format_ == LogFormat::kJson);
    if (format_ == LogFormat::kJson) {
      const Json line = {{"time", fmt::format("{:%Y-%m-%dT%H:%M:%S}.{:03d}Z", time.calendar, time.milliseconds)},
                         {"level", std::string(LevelName(record.level))},
                         {"component", "deepinfer"},
                         {"message", std::string(message)}};
      fmt::format_to(std::back_inserter(out), "{}\n", DumpJson(line));
      return;
    }
    fmt::format_to(std::back_inserter(out), "{:%H:%M:%S}.{:03d} ", time.calendar, time.milliseconds);
    record.color_range_start = out.size();
    fmt::format_to(std::back_inserter(out), "{}", LevelName(record.level));
    record.color_range_end = out.size();
    fmt::format_to(std::back_inserter(out), " {}\n", EscapeForTerminal(message));
  }

  std::unique_ptr<spdlog::formatter> clone() const override { return std::make_unique<LineFormatter>(format_); }

 private:
  LogFormat format_;
};

}  // namespace

Status InitLogging(std::string_view level, LogFormat format) {
  const auto parsed = spdlog::level::from_str(std::string(level));
  if (parsed == spdlog::level::off && level != "off") {
    return InvalidArgument("log-level must be one of trace, debug, info, warn, error, off; got \"" + Escape(level, 64) + "\"");
  }
  auto logger = std::make_shared<spdlog::logger>("deepinfer", std::make_shared<spdlog::sinks::stderr_color_sink_mt>());
  logger->set_formatter(std::make_unique<LineFormatter>(format));
  logger->set_level(parsed);
  spdlog::set_default_logger(std::move(logger));
  return Status::Ok();
}

}  // namespace deepinfer
