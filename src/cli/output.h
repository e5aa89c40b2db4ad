// SPDX-License-Identifier: Apache-2.0
//
// Results on stdout. Errors are sticky: after the first failed write nothing more is written, ok() tells loops to stop,
// and main turns the error into exit code 1 ("cannot write to stdout: No space left on device"), or ends quietly when the
// reader has gone (`deepinfer ... | head`).
#pragma once

#include <cstdio>
#include <string_view>

#include "core/status.h"

namespace deepinfer::cli {

class Output {
 public:
  explicit Output(std::FILE* file = stdout) : file_(file) {}

  void Write(std::string_view text);
  void Line(std::string_view text);  // text and a newline
  void Flush();

  bool ok() const { return error_ == 0; }
  bool reader_gone() const;  // EPIPE
  bool is_terminal() const;
  // For loops: an error once nothing more can be written (kCancelled when the reader has gone; main ends quietly then).
  Status Check() const;
  // Flushes; kResourceExhausted naming the reason after a failed write.
  Status Finish();

 private:
  std::FILE* file_;
  int error_ = 0;
};

}  // namespace deepinfer::cli
