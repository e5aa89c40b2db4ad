// SPDX-License-Identifier: Apache-2.0
//
// DI_LOG(info, "loaded {} tensors", n): logging over spdlog, always to stderr. Prompts, completions, keys and tokens are
// never logged. Text that comes from a model, a file or a client goes through Escape() of core/escape.h first.
#pragma once

#include <string_view>

#include <spdlog/spdlog.h>

#include "core/status.h"

namespace deepinfer {

enum class LogFormat { kText, kJson };

// Called once at start. level: trace, debug, info, warn, error, off.
Status InitLogging(std::string_view level, LogFormat format);

}  // namespace deepinfer

#define DI_LOG(level, ...) ::spdlog::level(__VA_ARGS__)
