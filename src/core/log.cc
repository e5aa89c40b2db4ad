// SPDX-License-Identifier: Apache-2.0
#include "core/log.h"

#include <spdlog/sinks/stdout_color_sinks.h>

namespace deepinfer {

Status InitLogging(std::string_view level, LogFormat format) {
  const auto parsed = spdlog::level::from_str(std::string(level));
  if (parsed == spdlog::level::off && level != "off") {
    return InvalidArgument("log-level must be one of trace, debug, info, warn, error, off; got \"" + std::string(level) + "\"");
  }
  auto logger = std::make_shared<spdlog::logger>("deepinfer", std::make_shared<spdlog::sinks::stderr_color_sink_mt>());
  if (format == LogFormat::kJson) {
    logger->set_pattern(R"({"time":"%Y-%m-%dT%H:%M:%S.%e%z","level":"%l","message":"%v"})");
  } else {
    logger->set_pattern("%H:%M:%S.%e %^%l%$ %v");
  }
  logger->set_level(parsed);
  spdlog::set_default_logger(std::move(logger));
  return Status::Ok();
}

}  // namespace deepinfer
