// SPDX-License-Identifier: Apache-2.0
#include "cli/input.h"

#include <cerrno>
#include <cstring>
#include <unistd.h>

#include <fmt/format.h>

#include "hub/model_locator.h"

namespace deepinfer::cli {

Result<std::string> ReadStdin(int64_t max_bytes) {
  std::string text;
  std::string buffer(1 << 16, '\0');
  for (;;) {
    const ssize_t n = ::read(STDIN_FILENO, buffer.data(), buffer.size());
    if (n < 0 && errno == EINTR) return Cancelled("interrupted");
    if (n < 0) return BadModel(fmt::format("cannot read stdin: {}", std::strerror(errno)));
    if (n == 0) return text;
    if (static_cast<int64_t>(text.size()) + n > max_bytes) {
      return BadModel(fmt::format("stdin has more than {} bytes; split the input", max_bytes));
    }
    text.append(buffer.data(), static_cast<size_t>(n));
  }
}

Status ForEachLine(std::string_view text, const std::function<Status(std::string_view line, int64_t number)>& fn, std::string_view name) {
  int64_t number = 0;
  while (!text.empty()) {
    const size_t end = text.find('\n');
    std::string_view line = text.substr(0, end);
    text = end == std::string_view::npos ? std::string_view() : text.substr(end + 1);
    ++number;
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.find_first_not_of(" \t") == std::string_view::npos) continue;
    if (Status status = fn(line, number); !status.ok()) return std::move(status).WithContext(fmt::format("{} line {}", name, number));
  }
  return Status::Ok();
}

Result<std::string> ModelDir(const Invocation& invocation) {
  hub::LocateOptions options{.environment = invocation.environment,
                             .revision = invocation.config.model.revision,
                             .binary_dir = {}};
  return hub::ResolveModelDir(invocation.config.model.model, options);
}

}  // namespace deepinfer::cli
