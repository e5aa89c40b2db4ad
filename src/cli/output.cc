// SPDX-License-Identifier: Apache-2.0
#include "cli/output.h"

#include <cerrno>
#include <cstring>
#include <unistd.h>

#include <fmt/format.h>

namespace deepinfer::cli {

void Output::Write(std::string_view text) {
  if (error_ != 0 || text.empty()) return;
  errno = 0;
  if (std::fwrite(text.data(), 1, text.size(), file_) != text.size()) error_ = errno != 0 ? errno : EIO;
}

void Output::Line(std::string_view text) {
  Write(text);
  Write("\n");
}

void Output::Flush() {
  if (error_ != 0) return;
  errno = 0;
  if (std::fflush(file_) != 0 || std::ferror(file_) != 0) error_ = errno != 0 ? errno : EIO;
}

bool Output::reader_gone() const { return error_ == EPIPE; }

bool Output::is_terminal() const { return ::isatty(::fileno(file_)) == 1; }

Status Output::Check() const {
  if (error_ == 0) return Status::Ok();
  if (error_ == EPIPE) return Cancelled("the reader of stdout has gone");
  return ResourceExhausted(fmt::format("cannot write to stdout: {}; free some space or choose another destination",
                                       std::strerror(error_)));
}

Status Output::Finish() {
  Flush();
  return error_ == EPIPE ? Status::Ok() : Check();
}

}  // namespace deepinfer::cli
